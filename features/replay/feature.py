"""Declares the feature replay."""

from bus.feature import Feature

FEATURE = Feature(
    name="replay",
    says="repeats the decisions of a past period on the hosts of that time",
    needs=("policies", "history"),
    commands={"Inspect and check": {"replay": "commands"}},
    exit_codes={"replay": "decisions differ; **2**: the replay is not possible"},
)
