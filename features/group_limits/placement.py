"""The part of placement that limits the members of server groups: the rule."""

from features.group_limits.members import GroupMembers
from features.group_limits.rule import GroupLimitRule
from features.quotas.limits import CachedLimits
from placement_worker.extension import ForPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    return PlacementPart(rules=[GroupLimitRule(needs.of(CachedLimits))], offers=(GroupMembers(),))


PART = ForPlacement(part)
