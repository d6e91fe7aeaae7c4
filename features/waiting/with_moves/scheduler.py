"""Lets moves wait for a host."""

from features.moves.placing import MovePlacing
from features.waiting.store import WaitingStore
from features.waiting.with_moves.placing import WaitingMoves
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: object) -> SchedulerPart:
    store = needs.of(WaitingStore)
    store.add_purpose(WaitingMoves(store, needs.of(MovePlacing)))
    return SchedulerPart()


PART = ForScheduler(part)
