"""The preemption's part of placement: the rule, and the records of preemptions."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every, prune_period
from features.preemption.messages import PREEMPTIONS
from features.preemption.operations import PreemptionRecords
from features.preemption.rule import PreemptionRule
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    records = PreemptionRecords(*needs.operations)

    def rows(placement: OpenPlacement) -> WorkerRows:
        async def prune() -> None:
            await records.prune(placement.oldest_kept())

        return WorkerRows(
            answers=[answers(PREEMPTIONS, records.find)], timers=[every(prune_period(placement.keep), prune)]
        )

    return PlacementPart(rules=[PreemptionRule(needs.database, needs.book)], offers=(records,), rows=rows)


PART = ForPlacement(part)
