"""Declares the feature group_limits."""

from bus.feature import Feature

FEATURE = Feature(
    name="group_limits",
    says="limits the number of members of a server group by the quota of its project",
    adds=("placement",),
    needs=("groups", "quotas"),
)
