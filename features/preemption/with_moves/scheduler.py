"""Requests a host again for each preempted instance that is shelved."""

from uuid import UUID, uuid5

from bus.parts import TYPES, MoveParts
from bus.worker import WorkerRows, on
from features.moves.messages import MOVE_REQUESTED, MoveRequested
from features.preemption.messages import BUILD_PREEMPTED, REQUEUE_WAIT, BuildPreempted
from features.preemption.victim_search import VictimSearch
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


async def requeue(preempted: BuildPreempted) -> MoveRequested | None:
    """Return the request to unshelve an instance that was preempted, as soon as capacity is free; None if its
    priority class does not provide for it. Without the feature that has the field `wait`, the request does
    not wait.
    """
    if not preempted.requeued:
        return None
    waits = {"wait": REQUEUE_WAIT, "priority": preempted.priority, "since": preempted.requested}
    return MoveRequested(
        move=str(uuid5(UUID(preempted.build), f"requeued after {preempted.by}")),
        build=preempted.build,
        kind="unshelve",
        cell=preempted.cell,
        parts=MoveParts(*TYPES.read_flat(MoveParts, waits)),
    )


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    needs.of(VictimSearch).requeues = True
    return SchedulerPart(rows=WorkerRows(consumes=[on(BUILD_PREEMPTED, requeue, emits=[MOVE_REQUESTED])]))


PART = ForScheduler(part)
