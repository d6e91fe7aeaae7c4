"""Requests the moves by which instances leave hosts, and tracks each until it has a result.

A move is stored under an id derived from its window or evacuation, the instance and the number of the
attempt. It is stored before it is requested. If no cell and no scheduler has a record of it, the request is
published again with the same id. So an instance is not moved twice if a controller is killed at any moment.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from bus.clock import Clock
from bus.protocol import Ask
from bus.queries import PRESENT, FindInstances, Instance
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.vocabulary import Id, portions
from features.maintenance import store as stored
from features.maintenance.messages import MaintenanceMove
from features.maintenance.store import StoredMove
from features.moves.messages import FindMoves, MoveKind, MovePlan, MoveRequested, MovesFound, MoveStands
from scheduler_worker.extension import CellQueries, PlacementQueries

# seconds after which a move of which no cell or scheduler has a record is requested again
AGAIN_SECONDS = 15.0
RETRY_SECONDS = 60.0  # seconds between two attempts to move an instance
LONGEST_RESULT = 1000
DONE = "done"


@dataclass(frozen=True)
class HostDeparture:
    """The instances that are still on a host, why moves of some of them failed, and how many moves from the
    host are in progress: a moving instance may return to the host.
    """

    instances: Sequence[Instance] = ()
    memory_mb: Sequence[int] = ()
    failed: dict[str, str] = field(default_factory=dict)  # instance → why its last move failed
    in_progress: int = 0


@dataclass(frozen=True)
class Departures:
    """Moves instances away from hosts, in steps that may be repeated."""

    database: Database
    placement: PlacementQueries
    cells: CellQueries
    find_moves: Ask[FindMoves, MovesFound]
    clock: Clock

    async def step(
        self, subject: Id, kind: MoveKind, most: int, hosts: Iterable[tuple[str, Id]]
    ) -> tuple[dict[Id, HostDeparture], list[MoveRequested]]:
        """Store the results of moves, and begin moves until `most` of a window or evacuation (`subject`) are
        in progress.

        `hosts` are pairs of cell and root. Return the state of each host by root, and the requests to
        publish.
        """
        there = {root: await self.instances(cell, root) for cell, root in hosts}
        async with self.database.read() as tx:
            moves = await stored.moves(tx, subjects=(subject,))
        on_hosts = {instance.build: instance for found in there.values() for instance in found}
        ended, again = await self._results([move for move in moves if not move.row.ended], on_hosts)
        results = {move: (at, result) for move, at, result in ended}
        # Instance → its moves: (time of the end, or 0.0 in progress; result).
        for_builds: dict[str, list[tuple[float, str]]] = {}
        in_progress = Counter[Id]()  # number of moves in progress by root of the host
        for move in moves:
            end = results.get(move.row.move, (move.row.ended, move.row.result))
            for_builds.setdefault(move.row.build, []).append(end)
            in_progress[move.row.root] += not end[0]
        memory = await self.memory(on_hosts)
        new = self._new(subject, kind, most - in_progress.total(), on_hosts, for_builds, memory)
        async with self.database.write() as tx:
            await stored.end_moves(tx, ended)
            await stored.add_moves(tx, new)
        states = {}
        for root, instances in there.items():
            builds = [instance.build for instance in instances]
            last = {build: for_builds[build][-1] for build in builds if build in for_builds}
            failed = {build: result for build, (at, result) in last.items() if at and result != DONE}
            amounts = [memory.get(build, 0) for build in builds]
            states[root] = HostDeparture(instances, amounts, failed, in_progress[root])
        return states, [*again, *(_request(move) for move in new)]

    def _new(
        self,
        subject: Id,
        kind: MoveKind,
        most: int,
        on_hosts: dict[str, Instance],
        for_builds: dict[str, list[tuple[float, str]]],
        memory: dict[str, int],
    ) -> list[StoredMove]:
        new: list[StoredMove] = []
        now = self.clock.now()
        for build, instance in sorted(on_hosts.items()):
            earlier = for_builds.get(build, [])
            waits = any(not at or (end != DONE and now - at < RETRY_SECONDS) for at, end in earlier)
            if len(new) >= most or instance.status != "active" or waits:
                continue
            move = str(uuid5(UUID(subject), f"{build} {len(earlier)}"))
            row = MaintenanceMove(move=move, build=build, subject=subject, root=instance.root, at=now)
            new.append(StoredMove(row, instance.cell, kind, memory.get(build, 0)))
        return new

    async def _results(
        self, moves: Sequence[StoredMove], on_hosts: dict[str, Instance]
    ) -> tuple[list[tuple[str, float, str]], list[MoveRequested]]:
        """Return (move, time, result) for each move that has ended, and the requests that must be published
        again.
        """
        ended: list[tuple[str, float, str]] = []
        again: list[MoveRequested] = []
        now = self.clock.now()
        known: dict[str, MoveStands] = {}
        for cell in sorted({move.cell for move in moves}):
            ids = [move.row.move for move in moves if move.cell == cell]
            for some in portions(ids, 500):
                answer = await self.find_moves(FindMoves(cell=cell, moves=some, limit=len(some)))
                known |= {found.move: found for found in answer.moves}
        async with self.database.read() as tx:
            refused = await stored.refusals(tx, [m.row.move for m in moves if m.row.move not in known])
        for move in moves:
            id_, found = move.row.move, known.get(move.row.move)
            if found is not None:
                if found.ended:
                    result = DONE if found.phase == DONE else f"{found.phase}: {found.reason}"
                    ended.append((id_, found.ended, result[:LONGEST_RESULT]))
            elif id_ in refused:
                ended.append((id_, now, f"refused: {refused[id_]}"[:LONGEST_RESULT]))
            elif move.row.build not in on_hosts:
                ended.append((id_, now, "gone"))
            elif now - move.row.at > AGAIN_SECONDS:
                again.append(_request(move))
        return ended, again

    async def instances(self, cell: str, root: Id) -> list[Instance]:
        """Return the instances that are being built, active, being moved or being deleted on a host."""
        found: list[Instance] = []
        question, more = FindInstances(cell=cell, host=root, statuses=PRESENT), True
        while more:
            page = await self.cells.instances(question)
            found += [instance for instance in page.instances if instance.root == root]
            more = page.more
            question = FindInstances(cell=cell, host=root, statuses=PRESENT, after=page.last)
        return found

    async def memory(self, builds: Iterable[str]) -> dict[str, int]:
        """Return the memory of instances in MB, by id."""
        memory: dict[str, int] = {}
        for some in portions(sorted(builds), 500):
            for consumer in (await self.placement.allocations(FindAllocations(consumers=some))).consumers:
                amounts = consumer.allocations.values()
                memory[consumer.id] = sum(each.get("MEMORY_MB", 0) for each in amounts)
        return memory


def _request(move: StoredMove) -> MoveRequested:
    plan: MovePlan = "evacuation" if move.kind == "evacuate" else "maintenance"
    return MoveRequested(move=move.row.move, build=move.row.build, kind=move.kind, cell=move.cell, plan=plan)
