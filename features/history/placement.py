"""The history's part of placement: the archive of the change log."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every, prune_period
from features.history.archive import ARCHIVE_SECONDS, Archive
from features.history.messages import HISTORY
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    archive = Archive(*needs.operations)

    def rows(placement: OpenPlacement) -> WorkerRows:
        async def prune() -> None:
            await archive.prune(placement.keep)

        return WorkerRows(
            answers=[answers(HISTORY, archive.find)],
            timers=[
                every(ARCHIVE_SECONDS, archive.store, at_once=True),
                every(prune_period(placement.keep), prune),
            ],
        )

    return PlacementPart(offers=(archive,), rows=rows)


PART = ForPlacement(part)
