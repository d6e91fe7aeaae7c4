"""The feature's part of placement: the bulk load of providers and the feed of changes."""

from __future__ import annotations

from features.placement_additions.feed import ChangeFeed
from placement_worker.extension import PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    return PlacementPart(offers=(ChangeFeed(needs.log.memory),))
