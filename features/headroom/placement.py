"""The headroom's part of placement: the controller of the held capacity."""

from __future__ import annotations

from bus.worker import WorkerRows, answers, every
from features.headroom.controller import HeadroomController
from features.headroom.held_sizes import GroupsOfJoins
from features.headroom.messages import HEADROOM
from placement_worker.extension import ForPlacement, OpenPlacement, PlacementNeeds, PlacementPart

ADJUST_SECONDS = 5.0


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    joint = GroupsOfJoins()

    def rows(placement: OpenPlacement) -> WorkerRows:
        controller = HeadroomController(*needs.operations, placement.claims, joint.groups)
        needs.offers.add(controller)
        return WorkerRows(
            answers=[answers(HEADROOM, controller.find)], timers=[every(ADJUST_SECONDS, controller.adjust)]
        )

    return PlacementPart(rows=rows, offers=(joint,))


PART = ForPlacement(part)
