"""The reservations' part of placement: the rule, and operations on reservations."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every
from features.reservations.messages import EDIT_RESERVATION, RESERVATIONS
from features.reservations.operations import ReservationOperations
from features.reservations.rule import ReservationRule
from features.reservations.settings import ReservationSettings
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart

EXPIRE_SECONDS = 5.0


def part(needs: PlacementNeeds, settings: ReservationSettings) -> PlacementPart:
    def rows(placement: OpenPlacement) -> WorkerRows:
        operations = ReservationOperations(*needs.operations, placement.claims, settings)
        needs.offers.add(operations)
        return WorkerRows(
            answers=[answers(RESERVATIONS, operations.find), answers(EDIT_RESERVATION, operations.edit)],
            timers=[every(EXPIRE_SECONDS, operations.expire)],
        )

    rule = ReservationRule(needs.database, needs.book)
    return PlacementPart(rules=[rule], objects={"reservations": "''", "reservation_slots": "''"}, rows=rows)


PART = ForPlacement(part)
