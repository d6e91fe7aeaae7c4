"""Declares the feature quality_replay."""

from bus.feature import Feature

FEATURE = Feature(
    name="quality_replay",
    says="replays the recorded requests of a past period with other placement profiles",
    needs=("policies", "history"),
    commands={"Inspect and check": {"quality": "commands"}},
)
