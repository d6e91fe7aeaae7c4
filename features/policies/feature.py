"""Declares the feature policies."""

from bus.feature import Feature

FEATURE = Feature(
    name="policies",
    says="tries other filters, weighers and limits on recorded requests",
    needs=("what_if", "reservations", "history"),
    commands={"Inspect and check": {"rules test": "commands", "replay": "replay_command"}},
    exit_codes={"replay": "decisions differ; **2**: the replay is not possible"},
)
