"""Adds the capacity that reservations hold to the answers of capacity plans."""

from collections import Counter
from dataclasses import replace

from bus.vocabulary import totals
from features.capacity_plans.core.plan_form import Plan
from features.capacity_plans.core.planning import PlanAnswer
from features.capacity_plans.plan_additions import Asker, PlanAddition
from features.reservations.messages import (
    FAILOVER,
    RESERVATIONS,
    FindReservations,
    ReservationsFound,
    every_reservation,
)


async def complete(asker: Asker, answer: PlanAnswer, plan: Plan, project: str) -> PlanAnswer:
    return with_reserved(answer, await every_reservation(asker(RESERVATIONS), FindReservations()))


def with_reserved(answer: PlanAnswer, found: ReservationsFound) -> PlanAnswer:
    """Return a copy of the answer that also has the undrawn capacity held by the slots in `found`, by
    resource class, separately for reservations and for failover headroom.
    """
    reserved, headroom = Counter[str](), Counter[str]()
    for reservation in found.reservations:
        held = headroom if reservation.use == FAILOVER else reserved
        for slot in found.slots.get(reservation.id, ()):
            held.update(totals(slot.held))
    return replace(answer, reserved=tuple(sorted(reserved.items())), headroom=tuple(sorted(headroom.items())))


PART = PlanAddition(complete)
