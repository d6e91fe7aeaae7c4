"""Tries requests with other reservations: without some, or in addition to others."""

from bus.worker import WorkerRows
from features.policies.trials import PolicyTrials, Removed, Side
from features.policies.with_reservations.subject import SUBJECT, decode
from features.reservations.messages import RESERVATIONS, FindReservations, every_reservation
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

_REMOVED = Removed("its reservation is removed", "reservation")


def part(needs: SchedulerNeeds, settings: object) -> SchedulerPart:
    async def suppose(text: str, present: Side, trial: Side) -> None:
        supposed = decode(text)
        if supposed.without:
            ask = trial.what_ifs.scheduler.placement.ask(RESERVATIONS)
            found = await every_reservation(ask, FindReservations(ids=supposed.without))
            trial.free += [slot.held for slots in found.slots.values() for slot in slots if slot.held]
        trial.removed |= dict.fromkeys(supposed.without, _REMOVED)
        for request in supposed.reserves:
            slots = f"all {len(request.instances)} slots of reservation {request.flavor.name}"
            trial.first.append((request, slots))

    needs.of(PolicyTrials).supposing[SUBJECT] = suppose
    return SchedulerPart(rows=WorkerRows(asks=(RESERVATIONS,)))


PART = ForScheduler(part)
