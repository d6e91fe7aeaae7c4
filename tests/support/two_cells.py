"""Two cells and a scheduler with a real placement; messages between them arrive late, twice or out of order,
by a seed.

Processes may stop before they publish.
"""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from bus.claims import holder_consumer
from bus.clock import Clock
from bus.errors import Poison, Retry
from bus.messages import (
    AgentReported,
    BuildDeleted,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    DestroyOrdered,
    HostFailed,
    HostReported,
)
from bus.moves import (
    FindMoves,
    HandoverProgress,
    HandoverReported,
    MoveEnded,
    MoveOrdered,
    MovePlaced,
    MoveProgress,
    MoveRefused,
    MoveReported,
    MoveRequested,
    MoveStands,
)
from bus.queries import BuildsFound, FindBuilds, FindInstances
from bus.reports import HostState
from bus.requests import Flavor, Hints
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from cell_conductor.moves import CellMoves
from placement_worker import Placement
from scheduler_worker.handovers import Handovers
from tests.support.conductor_builders import a_move_report, an_agent_report, deliver
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import moves_of, scheduler_of

HOSTS = {1: "c1", 2: "c1", 3: "c2", 4: "c2"}
LIMITS = AttemptLimits(3, 100.0, 50.0, 400.0)
STEP_SECONDS = 120.0
SMALL = Flavor(name="small", vcpus=2)
MOST_STEPS = 3000

OUTSIDE = (BuildEnded, BuildDeleted, MoveEnded, MoveRefused, MoveProgress, HostFailed)


def root(number: int) -> str:
    return uid(number, "a")


@dataclass
class Unkind:
    twice: float = 0.0
    dies: float = 0.0
    fails: float = 0.0  # an order
    hangs: float = 0.0


class PlainCell:
    """One cell: its conductor, in a database, and its agents."""

    def __init__(self, name: str, database: Database, placement: Placement, clock: Clock) -> None:
        self.name = name
        claim = partial(placement.claims.claim_many, cell=name)
        release = partial(placement.claims.release_many, cell=name)
        self.builds = Builds(database, claim, release, limits=LIMITS, clock=clock)
        self.moves = CellMoves(self.builds)

    async def timers(self) -> list[Message]:
        return [*await self.builds.time_out(), *await self.builds.resume()]


@dataclass
class PlainGuests:
    there: dict[tuple[str, str], dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    void: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    steps: dict[tuple[str, str], tuple[int, MoveReported | None]] = field(default_factory=dict)

    def running(self, build: str) -> list[str]:
        return [
            root
            for (root, one), attempts in self.there.items()
            for state in attempts.values()
            if one == build and state == "running"
        ]

    def roots(self, build: str) -> set[str]:
        return {root for (root, one), attempts in self.there.items() if one == build and attempts}

    def build(self, order: BuildOrdered, *, fails: bool) -> AgentReported:
        at = order.root, order.build
        if order.attempt in self.void[at]:
            return an_agent_report(order, "destroyed")
        if fails and order.attempt not in self.there[at]:
            self.void[at].add(order.attempt)
            return an_agent_report(order, "failed")
        self.there[at][order.attempt] = "running"
        return an_agent_report(order, "built")

    def destroy(self, order: DestroyOrdered) -> AgentReported:
        at = order.root, order.build
        for attempt in range(order.above + 1, order.attempt + 1):
            self.void[at].add(attempt)
            self.there[at].pop(attempt, None)
        return an_agent_report(order, "destroyed")

    def move(self, order: MoveOrdered, *, fails: bool) -> MoveReported | None:
        at = order.root, order.build
        step, said = self.steps.get(at, (0, None))
        if order.step < step:
            return None
        if order.step == step and said is not None:
            return said
        guests = self.there[at]
        if order.attempt in self.void[at]:
            return a_move_report(order, "failed", cause="it was destroyed on this host")
        missing = order.phase in ("send", "start") and order.attempt not in guests
        lost = order.phase == "resume" and not {order.attempt, order.was} & guests.keys()
        if fails or missing or lost:
            if order.phase in ("prepare", "start"):
                guests.pop(order.attempt, None)
            said = a_move_report(order, "failed", cause="no luck" if fails else "there is no such guest")
        else:
            if order.phase == "resume":
                guests.pop(order.was, None)
            states = {"prepare": "arriving", "send": "stopped"}
            guests[order.attempt] = states.get(order.phase, "running")
            said = a_move_report(order, "done")
        self.steps[at] = order.step, said
        return said


class CellsApart:
    """All of it, and what is on its way."""

    def __init__(
        self, placement: Placement, databases: dict[str, Database], clock: Clock, chance: random.Random
    ) -> None:
        self.placement, self.clock, self.chance = placement, clock, chance
        self.now = 1_000_000.0
        self.cells = {name: PlainCell(name, databases[name], placement, clock) for name in ("c1", "c2")}
        self.guests = PlainGuests()
        self.unkind = Unkind()
        self.on_its_way: list[Message] = []
        self.said: list[Message] = []
        self.failing = ""  # the phase that always does
        self.databases = databases
        self.scheduler = scheduler_of(placement, clock=clock, undeliverable_for=5000.0)
        self.handovers = Handovers(
            databases["scheduler"], self.scheduler.placement, self.scheduler.ending, clock
        )
        self.moves = moves_of(self.scheduler, self._find, self.handovers)

    async def _find(self, question: FindBuilds) -> BuildsFound:
        return await self.cells[question.cell].builds.find(question)

    async def hears_hosts(self) -> None:
        for number, cell in HOSTS.items():
            states = (HostState(root=root(number), host=f"host-{number}"),)
            await self.scheduler.handle(
                HostReported(cell=cell, agent=f"agent-{number}", sequence=int(self.clock.now()), hosts=states)
            )

    async def boot(self, on: int = 1) -> str:
        await self.hears_hosts()
        request = a_request(1, flavor=SMALL, forced_host=f"host-{on}", hints=Hints(), project="p1")
        [verdict] = await self.scheduler.place_many([request])
        assert not isinstance(verdict, Retry | Poison), verdict
        [placed] = verdict
        assert isinstance(placed, BuildPlaced), placed
        await self.comes_to(placed)
        return placed.build

    # How it goes on

    async def comes_to(self, *messages: Message) -> None:
        self.on_its_way += messages
        await self.goes_on(MOST_STEPS)
        assert not self.on_its_way, [type(message).__name__ for message in self.on_its_way]

    async def goes_on(self, steps: int) -> None:
        """So many deliveries; when there is nothing to deliver time passes."""
        quiet = 0
        for _ in range(steps):
            if not self.on_its_way:
                quiet += 1
                if quiet > 6:
                    return
                await self.time_passes()
                continue
            quiet = 0 if not all(map(_is_chatter, self.on_its_way)) else quiet
            await self.step()

    async def until(self, message: Message, kind: type[Message], cell: str = "") -> None:
        self.on_its_way.append(message)
        for _ in range(100):
            ways = [message for message in self.on_its_way if isinstance(message, kind)]
            if any(cell in ("", getattr(way, "cell", "")) for way in ways):
                return
            await self.step()
        raise AssertionError(f"no {kind.__name__} came")

    async def time_passes(self, seconds: float = STEP_SECONDS) -> None:
        self.now += seconds
        for cell in self.cells.values():
            self.on_its_way += await cell.timers()
        self.on_its_way += await self.handovers.repeat_handovers()

    async def step(self, which: int | None = None) -> None:
        chance = self.chance
        message = self.on_its_way.pop(chance.randrange(len(self.on_its_way)) if which is None else which)
        if chance.random() < self.unkind.twice:
            self.on_its_way.append(message)
        outcome = await self._delivered(message)
        if isinstance(outcome, Retry) or chance.random() < self.unkind.dies:
            self.on_its_way.append(message)
            self.now += 0.2
        else:
            self.say(outcome)
        self.checked()

    def say(self, outcome: Outcome) -> None:
        assert not isinstance(outcome, Poison | Retry), outcome
        for message in (outcome,) if isinstance(outcome, Message) else outcome or ():
            (self.said if isinstance(message, OUTSIDE) else self.on_its_way).append(message)

    async def _delivered(self, message: Message) -> Outcome:
        phase = message.phase if isinstance(message, MoveOrdered) else "build"
        fails = self.chance.random() < self.unkind.fails or phase == self.failing
        if isinstance(message, BuildOrdered | MoveOrdered) and self.chance.random() < self.unkind.hangs:
            return None
        match message:
            case BuildOrdered():
                return self.guests.build(message, fails=fails)
            case DestroyOrdered():
                return self.guests.destroy(message)
            case MoveOrdered():
                return self.guests.move(message, fails=fails)
            case MoveRequested():
                await self.hears_hosts()
                return (await self.moves.place_many([message]))[0]
            case HandoverReported():
                return (await self.handovers.handle_many([message]))[0]
            case _:
                return await deliver(self.cells[message.cell].builds, message)  # type: ignore[attr-defined]

    # What is promised

    def checked(self) -> None:
        for build in {build for _, build in self.guests.there}:
            running = self.guests.running(build)
            assert len(running) <= 1, f"{build} runs on {running}"

    async def holds(self, build: str) -> dict[str, set[str]]:
        names = {build: "itself"} | {holder_consumer(build, n): f"keeper {n}" for n in range(1, 30)}
        found = await self.placement.lookups.allocations(FindAllocations(consumers=tuple(names)))
        return {names[consumer.id]: set(consumer.allocations) for consumer in found.consumers}

    async def listed(self, build: str) -> list[tuple[str, str, str]]:
        """Cell, status and host, wherever it is listed."""
        found = []
        for name, cell in self.cells.items():
            page = await cell.builds.find_instances(FindInstances(cell=name))
            found += [
                (name, instance.status, instance.host)
                for instance in page.instances
                if instance.build == build
            ]
        return found

    async def moves_known(self) -> list[MoveStands]:
        found = [await cell.moves.find(FindMoves(cell=name)) for name, cell in self.cells.items()]
        return [move for page in found for move in page.moves]

    def ends(self) -> set[tuple[str, str]]:
        return {(message.move, message.end) for message in self.said if isinstance(message, MoveEnded)}


def _is_chatter(message: Message) -> bool:
    match message:
        case MoveReported() | AgentReported():
            return message.outcome == "overdue"
        case HandoverReported():
            return message.outcome == "ready"
        case _:
            return isinstance(message, MovePlaced | HandoverProgress)


@asynccontextmanager
async def two_cells(
    placement: Placement, seed: int, clock: Clock, wall: "SteppedTime"
) -> AsyncIterator[CellsApart]:
    databases = {name: Database("sqlite+aiosqlite://", inline=True) for name in ("c1", "c2", "scheduler")}
    try:
        for name, database in databases.items():
            await migrate(database, "scheduler_worker" if name == "scheduler" else "cell_conductor")
        await placement.reports.report_many([a_report(number, cell=cell) for number, cell in HOSTS.items()])
        world = CellsApart(placement, databases, clock, random.Random(seed))
        wall.world = world
        yield world
    finally:
        for database in databases.values():
            await database.close()


@dataclass
class SteppedTime:
    world: CellsApart | None = None

    def __call__(self) -> float:
        return self.world.now if self.world is not None else 1_000_000.0
