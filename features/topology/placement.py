"""The topology's part of placement: the rule."""

from features.topology.rule import TopologyRule
from placement_worker.extension import PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    return PlacementPart(rules=[TopologyRule(needs.database)])
