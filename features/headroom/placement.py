"""The headroom's part of placement: the controller of the held capacity."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every
from features.headroom.controller import HeadroomController
from features.headroom.held_sizes import HeadroomJoins
from features.headroom.messages import HEADROOM
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart

ADJUST_SECONDS = 5.0


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    joins = HeadroomJoins()

    def rows(placement: OpenPlacement) -> WorkerRows:
        controller = HeadroomController(*needs.operations, placement.claims, joins)
        needs.offers.add(controller)
        return WorkerRows(
            answers=[answers(HEADROOM, controller.find)], timers=[every(ADJUST_SECONDS, controller.adjust)]
        )

    return PlacementPart(rows=rows, offers=(joins,))


PART = ForPlacement(part)
