"""The feature's part of placement: the bulk load of providers and the feed of changes."""

from __future__ import annotations

from bus.worker import WorkerRows, answers
from features.placement_additions.feed import ChangeFeed
from features.placement_additions.loading import BulkLoad
from features.placement_additions.messages import LOAD
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    bulk_load = BulkLoad(*needs.operations)

    def rows(placement: OpenPlacement) -> WorkerRows:
        return WorkerRows(answers=[answers(LOAD, bulk_load.load, concurrency=2)])

    return PlacementPart(offers=(bulk_load, ChangeFeed(needs.log.memory)), rows=rows)


PART = ForPlacement(part)
