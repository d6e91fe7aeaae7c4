"""Declares the feature replay."""

from bus.feature import Feature

FEATURE = Feature(
    name="replay",
    says="repeats the decisions of a past period on the hosts of that time",
    needs=("policies", "history"),
    commands={"policy replay": "commands"},
    exit_codes={"policy replay": "decisions differ; **2**: the replay is not possible"},
)
