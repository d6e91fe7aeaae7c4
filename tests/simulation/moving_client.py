"""The client of a simulated world that requests moves and evacuations, and receives their ends."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from bus import topics
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable
from bus.host_health import FORCED_DOWN
from bus.resources import Edited, EditRequested, FindAllocations, SetTraits
from compute_sim.machines import SimAgent
from features.moves.messages import (
    MoveEnded,
    MoveKind,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MoveSteered,
    Steering,
)
from tests.simulation.invariants import Broken
from tests.simulation.random_requests import a_move, a_patient_move, is_metal

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

_STEERED: tuple[Steering, ...] = ("abort", "revert", "confirm", "force")
_UNKNOWN_OUTCOMES = (
    ("start", "timed out"),
    ("rebuild", "timed out"),
    ("resume", "timed out"),
    ("resume", "failed"),
)
_RETRY_SECONDS = 3.0


class MovingClient:
    def __init__(self, world: "SimulatedWorld") -> None:
        self.world = world
        self.chance = world.chance
        self.requested: dict[str, MoveRequested] = {}
        self.builds: set[str] = set()
        self.progress: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.codes: dict[str, str] = {}
        self.ended_badly: set[str] = set()
        self.shelved: set[str] = set()
        self.fenced: set[str] = set()  # roots that an evacuation has marked; no other edit may change them
        self.editing = asyncio.Lock()

    @property
    def open(self) -> list[str]:
        return [move for move in self.requested if move not in self.ends]

    @property
    def moving(self) -> list[str]:
        return sorted({self.requested[move].build for move in self.progress if move not in self.ends})

    async def request_one(self, bus: Bus) -> None:
        living = self.world.client.living()
        if not living or self.chance.random() > 0.6:
            return
        if self.chance.random() < 0.85:  # mostly builds that can be moved
            accepted = self.world.client.accepted
            ready = [b for b in living if b not in self.moving and not is_metal(accepted[b])]
            living = ready or living
        build = self.chance.choice(living)
        cell = self.world.client.cell_of[build]
        asked = a_move(
            self.chance,
            self.world.new_id(),
            build,
            cell if self.chance.random() < 0.5 else "",
            self.world.hosts(cell if self.chance.random() < 0.8 else ""),
            shelved=build in self.shelved,
        )
        asked = a_patient_move(asked, self.world.faults.waits)
        await self._request(bus, asked)
        if self.chance.random() < 0.2:
            await self.world.client.publish(bus, asked)  # an impatient client

    async def steer_one(self, bus: Bus) -> None:
        started = [move for move in self.progress if move not in self.ends]
        if started and self.chance.random() < 0.5:
            waiting = [move for move in started if self.progress[move] == "verify"]
            move = self.chance.choice(waiting if waiting and self.chance.random() < 0.6 else started)
            verifies = self.progress[move] == "verify" and self.chance.random() < 0.8
            await self._steer(bus, move, self.chance.choice(("confirm", "revert") if verifies else _STEERED))

    async def evacuate_one(self, bus: Bus) -> None:
        """Evacuate the hosts of one agent, which lost its power; later it starts again."""
        world, agent = self.world, self.chance.choice(self.world.fleet())
        roots = {host.root for host in agent.hosts}
        if self.fenced & roots or not await world.power_off(agent):
            return
        self.fenced |= roots
        world.note(f"evacuate {agent.agent}")
        async with self.editing:  # edits in progress are done
            marked = [root for root in sorted(roots) if await self._mark(bus, root, FORCED_DOWN)]
        moves = [await self._evacuate(bus, build) for build in await self._builds_on(bus, marked)]
        while not all(move in self.progress or move in self.ends for move in moves):
            await asyncio.sleep(0.25)
        await asyncio.sleep(self.chance.expovariate(0.2))
        await self._restore(bus, agent, marked)
        self.fenced -= roots

    async def finish(self, bus: Bus, patience: float) -> None:
        """Confirm or revert the moves that wait for it, until every move has ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while self.open:
            if loop.time() > deadline:
                raise Broken(f"some moves never ended: {self._open_moves()}")
            await self._verify_open(bus)
            await asyncio.sleep(_RETRY_SECONDS)

    async def repeat_one(self, bus: Bus) -> None:
        """Repeat a request long after it was sent."""
        if self.requested:
            await self.world.client.publish(bus, self.chance.choice(list(self.requested.values())))

    async def repeat_open(self, bus: Bus) -> None:
        for move in self.open:
            await self.world.client.publish(bus, self.requested[move])
        await self._verify_open(bus)

    async def _verify_open(self, bus: Bus) -> None:
        for move in self.open:
            if self.requested[move].verify and move in self.progress:
                await self._steer(bus, move, self.chance.choice(("confirm", "revert")))

    async def _request(self, bus: Bus, asked: MoveRequested) -> None:
        self.requested[asked.move] = asked
        self.builds.add(asked.build)
        await self.world.client.publish(bus, asked)
        self.world.note(f"request {asked.kind} {asked.move} of {asked.build}")

    async def _evacuate(self, bus: Bus, build: str) -> str:
        kind: MoveKind = "evacuate"
        asked = MoveRequested(move=self.world.new_id(), build=build, kind=kind)
        await self._request(bus, asked)
        return asked.move

    async def _steer(self, bus: Bus, move: str, to: Steering) -> None:
        build = self.requested[move].build
        self.world.note(f"{to} {move}")
        steered = MoveSteered(move=move, build=build, cell=self.world.client.cell_of[build], to=to)
        await self.world.client.publish(bus, steered)

    async def _restore(self, bus: Bus, agent: SimAgent, marked: list[str]) -> None:
        first = self.chance.random() < 0.5
        if first:
            self.world.power_on(agent)
        async with self.editing:
            for root in marked:
                await self._mark(bus, root)
        if not first:
            self.world.power_on(agent)

    async def _mark(self, bus: Bus, root: str, *traits: str) -> bool:
        """Set the traits of a host; return False if placement does not know the host."""
        while True:
            with suppress(Unavailable, AnswerRefused):
                edit = SetTraits(provider=root, traits=traits)
                return isinstance((await bus.asker(topics.EDIT)(EditRequested(edit=edit))).result, Edited)
            await asyncio.sleep(0.25)

    async def _builds_on(self, bus: Bus, roots: list[str]) -> list[str]:
        if not roots:
            return []
        while True:
            with suppress(Unavailable, AnswerRefused):
                answer = await bus.asker(topics.ALLOCATIONS)(FindAllocations(providers=tuple(roots)))
                return sorted(
                    consumer.id for consumer in answer.consumers if consumer.id in self.world.client.accepted
                )
            await asyncio.sleep(0.25)

    def on_progress(self, move_progress: MoveProgress) -> None:
        move = move_progress.move
        if move_progress.refused or move not in self.requested:
            return
        self.world.note(f"progress {move} {move_progress.phase}")
        self.progress[move] = move_progress.phase
        if self.ends.get(move, "").startswith("refused"):
            self._contradict(f"the move {move} was refused, and is under way: {move_progress}")

    def on_refused(self, move_refused: MoveRefused) -> None:
        move, code = move_refused.move, move_refused.code
        known = self.codes[move] = self.codes.get(move) or code  # a repeated refusal may have no code
        if code not in (known, ""):
            self._contradict(f"the move {move} was refused for {known}, and then for {code}")
        self._end(move, f"refused: {move_refused.reason}")
        if move in self.progress:
            self._contradict(f"the move {move} was under way, and is refused: {move_refused.reason}")

    def _contradict(self, why: str) -> None:
        """Stop the world, because of contradicting messages; after lost commits they are expected."""
        if not self.world.commits_lost:
            self.world.stop(Broken(why))

    def on_ended(self, move_ended: MoveEnded) -> None:
        if any((phase.phase, phase.outcome) in _UNKNOWN_OUTCOMES for phase in move_ended.phases):
            self.ended_badly.add(move_ended.build)
        if move_ended.end == "done" and move_ended.kind == "shelve":
            self.shelved.add(move_ended.build)
        elif move_ended.end == "done" and move_ended.kind == "unshelve":
            self.shelved.discard(move_ended.build)
        self._end(
            move_ended.move, f"{move_ended.end} on {move_ended.root}: {move_ended.reason} {move_ended.phases}"
        )

    def _end(self, move: str, how: str) -> None:
        self.world.note(f"end of {move}: {how}")
        known = self.ends.setdefault(move, how)
        if known != how:
            self._contradict(f"the move {move} ended as {known}, and then as {how}")

    def _open_moves(self) -> list[tuple[str, str, str]]:
        return [
            (move, self.requested[move].kind, self.progress.get(move, "not started")) for move in self.open
        ]
