"""Declares the feature quality_replay."""

from bus.feature import Feature

FEATURE = Feature(
    name="quality_replay",
    says="replays the recorded requests of a past period with other placement profiles",
    adds=("with_groups.replay_conditions",),
    defines=("replay_conditions",),
    needs=("policies", "history"),
    commands={"policy quality": "commands"},
)
