"""Hosts that are drained, and their progress, by placement's traits and the reports of their cells."""

import asyncio
from dataclasses import dataclass

from bus.clock import Clock
from bus.host_marks import DRAIN as MARK
from bus.host_marks import causes_in
from bus.moves import FindMoves, MovesFound
from bus.queries import FindInstances, InstancesFound, InstanceStatus
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider
from control_room.core.moves import DrainShown, moved_away
from control_room.operations import Drains
from control_room.queries import Queries, Reply, query

DRAIN = "drain"  # the cause that `berth drain` closes hosts for
MOST = 40  # hosts that are examined
PRESENT: tuple[InstanceStatus, ...] = ("building", "swapping", "active", "moving", "verifying", "deleting")


@dataclass(frozen=True)
class DrainsFound:
    drains: tuple[DrainShown, ...] = ()
    unseen: int = 0  # more hosts, which are not examined
    problem: str = ""


class DrainReader:
    def __init__(self, queries: Queries, drains: Drains, clock: Clock) -> None:
        self._queries = queries
        self._drains = drains
        self._clock = clock

    async def read(self, _: None = None) -> DrainsFound:
        find = FindProviders(like=ResourceGroup(required=(MARK,)), parts=("traits", "owner"))
        found = await query("placement", self._queries.providers, find)
        if found.answer is None:
            return DrainsFound(problem=found.problem)
        roots = sorted((root for root in found.answer.providers if root.parent is None), key=_name)
        drains = await asyncio.gather(*(self._drain(root) for root in roots[:MOST]))
        drains.sort(key=lambda drain: (drain.left == 0, drain.host))
        return DrainsFound(tuple(drains), max(0, len(roots) - MOST))

    async def _drain(self, root: Provider) -> DrainShown:
        name = _name(root)
        guests: Reply[InstancesFound] = Reply(f"cell {root.cell}", problem="it is in no cell")
        moves: Reply[MovesFound] = Reply(f"cell {root.cell}")
        if root.cell:
            present = FindInstances(cell=root.cell, host=root.id, statuses=PRESENT, limit=1, count=True)
            recent = FindMoves(cell=root.cell, host=name, limit=1000)
            guests, moves = await asyncio.gather(
                query(guests.source, self._queries.instances, present),
                query(guests.source, self._queries.moves, recent),
            )
        known = moves.answer.moves if moves.answer else ()
        progress = self._drains.progress(root.id)
        running = sum(not move.ended and move.source == name for move in known)
        return DrainShown(
            root=root.id,
            host=name,
            cell=root.cell,
            # a moving instance is recorded at its destination, and may still return
            left=guests.answer.count + running if guests.answer else None,
            moved=moved_away(name, known, self._clock.now()),
            running=running,
            causes=tuple([cause for cause in causes_in(root.traits) if cause != DRAIN]),
            runs_here=progress is not None and progress.is_running,
            problem=f"{guests.source} does not answer: {guests.problem}" if guests.problem else "",
            unmoved=progress.unmoved if progress else (),
        )


def _name(root: Provider) -> str:
    return root.host or root.name
