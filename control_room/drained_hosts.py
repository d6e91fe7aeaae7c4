"""Hosts that are drained, and their progress, by placement's traits and the reports of their cells."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bus.clock import Clock
from bus.host_marks import DRAIN as MARK
from bus.host_marks import causes_in
from bus.moves import FindMoves, MovesFound
from bus.queries import FindInstances, InstancesFound, InstanceStatus
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider
from control_room.core.moves import DrainShown, moved_away
from control_room.operations import DrainsHere
from control_room.queries import Reply, RoomQuestions, heard

DRAIN = "drain"  # the cause that `berth drain` closes hosts for
MOST = 40  # hosts that are examined
THERE: tuple[InstanceStatus, ...] = ("building", "swapping", "active", "moving", "verifying", "deleting")


@dataclass(frozen=True)
class DrainsSeen:
    drains: tuple[DrainShown, ...] = ()
    unseen: int = 0  # more hosts, which are not examined
    problem: str = ""


class DrainsLooked:
    def __init__(self, questions: RoomQuestions, here: DrainsHere, clock: Clock) -> None:
        self._questions = questions
        self._here = here
        self._clock = clock

    async def seen(self) -> DrainsSeen:
        question = FindProviders(like=ResourceGroup(required=(MARK,)), parts=("traits", "owner"))
        found = await heard("placement", self._questions.providers, question)
        if found.answer is None:
            return DrainsSeen(problem=found.problem)
        roots = sorted(
            (provider for provider in found.answer.providers if provider.parent is None), key=_called
        )
        drains = await asyncio.gather(*(self._one(root) for root in roots[:MOST]))
        return DrainsSeen(
            tuple(sorted(drains, key=lambda one: (one.left == 0, one.host))), max(0, len(roots) - MOST)
        )

    async def _one(self, root: Provider) -> DrainShown:
        name = _called(root)
        guests: Reply[InstancesFound] = Reply(f"cell {root.cell}", problem="it is in no cell")
        moves: Reply[MovesFound] = Reply(f"cell {root.cell}")
        if root.cell:
            there = FindInstances(cell=root.cell, host=root.id, statuses=THERE, limit=1, count=True)
            lately = FindMoves(cell=root.cell, host=name, limit=1000)
            guests, moves = await asyncio.gather(
                heard(guests.who, self._questions.instances, there),
                heard(guests.who, self._questions.moves, lately),
            )
        known = moves.answer.moves if moves.answer else ()
        here = self._here.far(root.id)
        under_way = sum(not move.ended and move.source == name for move in known)
        return DrainShown(
            root=root.id,
            host=name,
            cell=root.cell,
            # a moving instance is recorded at its destination, and may still return
            left=guests.answer.count + under_way if guests.answer else None,
            moved=moved_away(name, known, self._clock.now()),
            under_way=under_way,
            causes=_others(root.traits),
            here=here is not None and here.going,
            problem=f"{guests.who} does not answer: {guests.problem}" if guests.problem else "",
            stay=here.stay if here else (),
        )


def _called(root: Provider) -> str:
    return root.host or root.name


def _others(traits: Sequence[str]) -> tuple[str, ...]:
    """Return the other causes why the host is closed."""
    return tuple([cause for cause in causes_in(traits) if cause != DRAIN])
