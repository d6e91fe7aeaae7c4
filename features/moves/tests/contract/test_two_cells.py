"""Moves from one cell to another: each cell executes its half, and the scheduler's handover decides."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from berth.kit.testing import packages
from bus.claims import holder_consumer
from bus.clock import Clock
from bus.errors import Poison, Retry
from bus.host_health import FORCED_DOWN
from bus.messages import (
    AgentReported,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    DestroyOrdered,
    HostFailed,
    HostReported,
)
from bus.names import MakeName, NameEditRequested
from bus.parts import MoveParts
from bus.queries import BuildsFound, FindBuilds, FindInstances
from bus.reports import HostState
from bus.requests import Flavor, Hints
from bus.resources import EditRequested, FindAllocations, SetTraits
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.extension import AttemptLimits
from cell_conductor.testing import Builds
from features.moves.cell_moves import CellMoves
from features.moves.handovers import Handovers
from features.moves.messages import (
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
    MoveSteered,
    Steering,
)
from features.moves.tests.support.conductor_moves import a_move_report
from features.moves.tests.support.moves_of_schedulers import moves_of
from placement_worker.testing import Placement
from tests.support.conductor_builders import FEATURES, an_agent_report, deliver
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.request_parts import with_parts
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock

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
    fails: float = 0.0  # probability that an order fails
    hangs: float = 0.0


class PlainCell:
    """A cell: its conductor with a database, and its agents."""

    def __init__(self, name: str, database: Database, placement: Placement, clock: Clock) -> None:
        self.name = name
        claim = partial(placement.claims.claim_many, cell=name)
        release = partial(placement.claims.release_many, cell=name)
        self.builds = Builds(database, claim, release, limits=LIMITS, clock=clock, **FEATURES)
        self.moves = CellMoves(self.builds)


@dataclass
class PlainGuests:
    there: dict[tuple[str, str], dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    void: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    steps: dict[tuple[str, str], tuple[int, MoveReported | None]] = field(default_factory=dict)

    def running(self, build: str) -> list[str]:
        there = [(root, attempts) for (root, one), attempts in self.there.items() if one == build]
        return [root for root, attempts in there for state in attempts.values() if state == "running"]

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
        step, reply = self.steps.get(at, (0, None))
        if order.step < step:
            return None
        if order.step == step and reply is not None:
            return reply
        guests = self.there[at]
        if order.attempt in self.void[at]:
            return a_move_report(order, "failed", cause="it was destroyed on this host")
        missing = order.phase in ("send", "start") and order.attempt not in guests
        lost = order.phase == "resume" and not {order.attempt, order.was} & guests.keys()
        if fails or missing or lost:
            if order.phase in ("prepare", "start"):
                guests.pop(order.attempt, None)
            reply = a_move_report(order, "failed", cause="no luck" if fails else "there is no such guest")
        else:
            if order.phase == "resume":
                guests.pop(order.was, None)
            states = {"prepare": "arriving", "send": "stopped"}
            guests[order.attempt] = states.get(order.phase, "running")
            reply = a_move_report(order, "done")
        self.steps[at] = order.step, reply
        return reply


class CellsApart:
    """Two cells, placement and a scheduler, with the messages that are not delivered yet."""

    def __init__(
        self, placement: Placement, databases: dict[str, Database], time: TurnedClock, chance: random.Random
    ) -> None:
        self.placement, self.time, self.clock, self.chance = placement, time, time.clock, chance
        clock = time.clock
        self.cells = {name: PlainCell(name, databases[name], placement, clock) for name in ("c1", "c2")}
        self.guests = PlainGuests()
        self.unkind = Unkind()
        self.on_its_way: list[Message] = []
        self.reply: list[Message] = []
        self.failing = ""  # name of the phase that always fails
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

    # Deliveries

    async def comes_to(self, *messages: Message) -> None:
        self.on_its_way += messages
        await self.goes_on(MOST_STEPS)
        assert not self.on_its_way, [type(message).__name__ for message in self.on_its_way]

    async def goes_on(self, steps: int) -> None:
        """Deliver up to `steps` messages; let time pass when there is none; stop if nothing more happens."""
        quiet = 0
        for _ in range(steps):
            if self.on_its_way:
                quiet = 0 if not all(map(_is_chatter, self.on_its_way)) else quiet
                await self.step()
                continue
            quiet += 1
            if quiet > 6:
                return
            await self.time_passes()

    async def until(self, message: Message, kind: type[Message], cell: str = "") -> None:
        self.on_its_way.append(message)
        for _ in range(100):
            ways = [message for message in self.on_its_way if isinstance(message, kind)]
            if any(cell in ("", getattr(way, "cell", "")) for way in ways):
                return
            await self.step()
        raise AssertionError(f"no {kind.__name__} came")

    async def time_passes(self, seconds: float = STEP_SECONDS) -> None:
        self.time.now += seconds
        for cell in self.cells.values():
            self.on_its_way += [*await cell.builds.time_out(), *await cell.builds.resume()]
        self.on_its_way += await self.handovers.repeat_handovers()

    async def step(self, which: int | None = None) -> None:
        chance = self.chance
        message = self.on_its_way.pop(chance.randrange(len(self.on_its_way)) if which is None else which)
        if chance.random() < self.unkind.twice:
            self.on_its_way.append(message)
        outcome = await self._delivered(message)
        if isinstance(outcome, Retry) or chance.random() < self.unkind.dies:
            self.on_its_way.append(message)
            self.time.now += 0.2
        else:
            self.say(outcome)
        self.checked()

    def say(self, outcome: Outcome) -> None:
        assert not isinstance(outcome, Poison | Retry), outcome
        for message in (outcome,) if isinstance(outcome, Message) else outcome or ():
            (self.reply if isinstance(message, OUTSIDE) else self.on_its_way).append(message)

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

    # Invariants

    def checked(self) -> None:
        for build in {build for _, build in self.guests.there}:
            running = self.guests.running(build)
            assert len(running) <= 1, f"{build} runs on {running}"

    async def holds(self, build: str) -> dict[str, set[str]]:
        names = {build: "itself"} | {holder_consumer(build, n): f"keeper {n}" for n in range(1, 30)}
        found = await self.placement.lookups.allocations(FindAllocations(consumers=tuple(names)))
        return {names[consumer.id]: set(consumer.allocations) for consumer in found.consumers}

    async def listed(self, build: str) -> list[tuple[str, str, str]]:
        """Return the cell, status and host of each row that lists the build."""
        found = []
        for name, cell in self.cells.items():
            page = await cell.builds.find_instances(FindInstances(cell=name))
            found += [(name, one.status, one.host) for one in page.instances if one.build == build]
        return found

    async def moves_known(self) -> list[MoveStands]:
        found = [await cell.moves.find(FindMoves(cell=name)) for name, cell in self.cells.items()]
        return [move for page in found for move in page.moves]

    def ends(self) -> set[tuple[str, str]]:
        return {(message.move, message.end) for message in self.reply if isinstance(message, MoveEnded)}


def _is_chatter(message: Message) -> bool:
    match message:
        case MoveReported() | AgentReported():
            return message.outcome == "overdue"
        case HandoverReported():
            return message.outcome == "ready"
        case _:
            return isinstance(message, MovePlaced | HandoverProgress)


@asynccontextmanager
async def two_cells(seed: int) -> AsyncIterator[CellsApart]:
    time = TurnedClock(1_000_000.0)
    databases = {name: Database("sqlite+aiosqlite://", inline=True) for name in ("c1", "c2", "scheduler")}
    async with a_placement("sqlite+aiosqlite://", time.clock, inline=True) as placement:
        for name, database in databases.items():
            await migrate(database, *packages("scheduler" if name == "scheduler" else "conductor"))
        await placement.reports.report_many([a_report(number, cell=cell) for number, cell in HOSTS.items()])
        yield CellsApart(placement, databases, time, random.Random(seed))
    for database in databases.values():
        await database.close()


MOVE = uid(1, "e")
LARGE = Flavor(name="large", vcpus=4)


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[CellsApart]:
    async with two_cells(getattr(request, "param", 1)) as world:
        yield world


def a_move(build: str, kind: str = "migrate", number: int = 1, **fields: Any) -> MoveRequested:
    fields = {"to_cell": "c2", **fields}
    fields = with_parts(fields, MoveParts())
    return MoveRequested(move=uid(number, "e"), build=build, kind=kind, **fields)  # type: ignore[arg-type]


def steering(build: str, cell: str, to: Steering) -> MoveSteered:
    return MoveSteered(move=MOVE, build=build, cell=cell, to=to)


async def settled(world: CellsApart, build: str) -> tuple[str, str] | None:
    assert [move.phase for move in await world.moves_known() if not move.ended] == []
    assert len(world.ends()) == len({move for move, _ in world.ends()})
    holds, running = await world.holds(build), world.guests.running(build)
    listed = [one for one in await world.listed(build) if one[1] != "deleted"]
    if not listed:
        assert (holds, world.guests.roots(build)) == ({}, set())
        return None
    [(cell, status, host)] = listed
    if status == "active":
        there = root(int(host[-1]))
        expected = [[there], []] if _may_be_stopped(world) else [[there]]
        assert holds == {"itself": {there}} and running in expected
        assert world.guests.roots(build) == {there}
    else:
        assert (status, holds, world.guests.roots(build)) == ("shelved", {}, set())
    return cell, status


def _may_be_stopped(world: CellsApart) -> bool:
    """Return whether an agent did not report the state of the guest, or its host is dead."""
    ends = [message for message in world.reply if isinstance(message, MoveEnded)]
    return any(
        (end.kind == "evacuate" and end.end != "done")
        or "did not go on at" in end.reason
        or "did not say that it runs" in end.reason
        for end in ends
    )


async def reply(world: CellsApart, build: str) -> MoveEnded:
    ends = [message for message in world.reply if isinstance(message, MoveEnded) and message.move == MOVE]
    assert all(end == ends[0] for end in ends)
    return ends[0]


async def is_dead(world: CellsApart, build: str) -> None:
    made = NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN))
    await world.placement.classes_and_traits.edit(made)
    mark = SetTraits(provider=root(1), traits=(FORCED_DOWN,))
    await world.placement.providers.edit_many([EditRequested(edit=mark)])
    world.guests.there[root(1), build][1] = "stopped"


# Successful moves


async def test_a_moved_instance_belongs_to_the_new_cell_only(world: CellsApart) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build))
    assert await settled(world, build) == ("c2", "active")
    end = await reply(world, build)
    assert (end.cell, end.end, end.host in ("host-3", "host-4")) == ("c2", "done", True)
    assert [phase.phase for phase in end.phases] == ["prepare", "start"]


@pytest.mark.parametrize("forgotten", [False, True], ids=["", "the old cell has forgotten it"])
async def test_attempt_numbers_only_grow_in_moves_between_cells(world: CellsApart, forgotten: bool) -> None:
    """An agent ignores orders with older attempt numbers than it has recorded, so numbers must grow."""
    build = await world.boot()
    ways = [("c2", "c1", "host-3"), ("c1", "c2", "host-1"), ("c2", "c1", "host-3")]
    for number, (cell, other, host) in enumerate(ways, 1):
        await world.comes_to(a_move(build, number=number, to_cell=cell, wanted_host=host))
        assert await settled(world, build) == (cell, "active")
        assert (await world.cells[other].builds.find(FindBuilds(cell=other, builds=(build,)))).builds == ()
        if forgotten:
            async with world.databases[other].write() as tx:
                await tx.execute(text("DELETE FROM builds"), {})
                await tx.execute(text("DELETE FROM placed_builds"), {})
    [attempt] = world.guests.there[next(iter(world.guests.roots(build))), build]
    assert attempt == 4
    await world.comes_to(BuildDeleteRequested(build=build, cell="c2"))
    assert await settled(world, build) is None


# Failures


@pytest.mark.parametrize("phase", ["send", "prepare", "start"])
async def test_a_failure_in_either_cell_reverts_the_move(world: CellsApart, phase: str) -> None:
    build = await world.boot()
    world.failing = phase
    await world.comes_to(a_move(build))
    assert await settled(world, build) == ("c1", "active")
    end = await reply(world, build)
    assert (end.cell, end.end, end.host, "no luck" in end.reason) == ("c1", "error", "host-1", True)


async def test_a_failed_unshelving_in_another_cell_is_shelved_again_in_the_source_cell(
    world: CellsApart,
) -> None:
    build = await world.boot()
    await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    world.failing = "build"
    await world.comes_to(a_move(build, "unshelve"))
    assert await settled(world, build) == ("c1", "shelved")
    world.failing = ""
    await world.comes_to(a_move(build, "unshelve", 2, to_cell=""))
    assert await settled(world, build) == ("c1", "active")


async def test_a_move_to_a_cell_without_a_conductor_is_reverted(world: CellsApart) -> None:
    build = await world.boot()
    await world.until(a_move(build), MovePlaced)
    [placed] = [message for message in world.on_its_way if isinstance(message, MovePlaced)]
    world.on_its_way.clear()
    world.scheduler.ending._undeliverable_for = 0.0
    await world.comes_to(*await world.handovers.on_unroutable(placed))
    assert await settled(world, build) == ("c1", "active")
    assert "no conductor" in (await reply(world, build)).reason


@pytest.mark.parametrize("cell", ["c1", "c2"])
async def test_a_move_between_cells_can_be_aborted_in_both_cells(world: CellsApart, cell: str) -> None:
    build = await world.boot()
    await world.until(a_move(build), MoveOrdered, cell)
    world.on_its_way.append(steering(build, cell, "abort"))
    await world.step(-1)
    await world.comes_to()
    assert await settled(world, build) == ("c1", "active")
    assert (await reply(world, build)).end == "aborted"


# Deletions during a move


@pytest.mark.parametrize("kind", ["migrate", "unshelve"])
@pytest.mark.parametrize("steps", [2, 5, 8])
async def test_a_delete_received_by_either_cell_ends_the_instance(
    world: CellsApart, kind: str, steps: int
) -> None:
    build = await world.boot()
    if kind == "unshelve":
        await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    world.on_its_way.append(a_move(build, kind))
    await world.goes_on(1 + steps)
    cell = "c1" if steps % 2 else next(iter(await world.listed(build)), ("c1", "", ""))[0]
    await world.comes_to(BuildDeleteRequested(build=build, cell=cell, reply_to="me"))
    assert await settled(world, build) is None
    assert [
        message for message in world.reply if isinstance(message, BuildDeleted) and message.reply_to == "me"
    ]


async def test_an_instance_deleted_before_its_arrival_never_runs(world: CellsApart) -> None:
    build = await world.boot()
    await world.until(a_move(build), MovePlaced)
    [placed] = [message for message in world.on_its_way if isinstance(message, MovePlaced)]
    world.on_its_way.remove(placed)
    await world.comes_to(BuildDeleteRequested(build=build, cell="c2", reply_to="me"))
    await world.comes_to(placed)
    assert await settled(world, build) is None
    assert (await reply(world, build)).end == "deleted"


async def test_a_redelivered_boot_builds_nothing_in_the_former_cell(world: CellsApart) -> None:
    build = await world.boot()
    [stands] = (await world.cells["c1"].builds.find(FindBuilds(cell="c1", builds=(build,)))).builds
    await world.comes_to(a_move(build))
    await world.comes_to(stands.placed)
    assert isinstance(stands.placed, BuildPlaced)
    assert await settled(world, build) == ("c2", "active")


async def test_a_claim_without_a_stored_handover_is_found_by_its_allocations(world: CellsApart) -> None:
    build = await world.boot()
    await world.hears_hosts()
    request = a_move(build)
    first = (await world.moves.place_many([request]))[0]
    async with world.databases["scheduler"].write() as tx:
        await tx.execute(text("DELETE FROM handovers"), {})
    again = (await world.moves.place_many([request]))[0]
    assert isinstance(first, tuple | list) and isinstance(again, tuple | list)
    assert isinstance(again[0], HandoverProgress) and again[0].host == first[0].host
    await world.comes_to(*again)
    assert await settled(world, build) == ("c2", "active")


STEERINGS: tuple[Steering, ...] = ("abort", "revert", "confirm", "force")


async def comes_through(world: CellsApart) -> None:
    """Execute one random move, within a cell or to the other, with lost and repeated messages and faults."""
    chance = world.chance
    kind = chance.choice(["migrate", "resize", "resize", "unshelve", "live", "evacuate", "rebuild", "shelve"])
    build = await world.boot()
    if kind == "unshelve":
        await world.comes_to(a_move(build, "shelve", 7, to_cell=""))
    if kind == "evacuate":
        await is_dead(world, build)
    fields: dict[str, Any] = {"verify": kind in ("migrate", "resize") and chance.random() < 0.7}
    if kind == "resize":
        fields["flavor"] = LARGE
    if kind in ("live", "rebuild", "shelve") or chance.random() < 0.6:
        fields["to_cell"] = ""
    fails, hangs = chance.choice([0.0, 0.2, 0.5]), chance.choice([0.0, 0.1])
    world.unkind = Unkind(twice=0.2, dies=0.15, fails=fails, hangs=hangs)
    world.on_its_way.append(a_move(build, kind, **fields))
    for _ in range(chance.randrange(3)):
        await world.goes_on(chance.randrange(1, 25))
        if chance.random() < 0.3:
            world.on_its_way.append(BuildDeleteRequested(build=build, cell="c1", reply_to="me"))
        else:
            world.on_its_way.append(steering(build, chance.choice(["c1", "c2"]), chance.choice(STEERINGS)))
    await world.comes_to()
    world.unkind = Unkind()
    to = chance.choice(STEERINGS[1:3])
    await world.comes_to(*(steering(build, cell, to) for cell in ("c1", "c2")))
    world.time.now += 500.0
    await world.comes_to()
    await settled(world, build)


SEEDS = [*range(40), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(40, 400))]


@pytest.mark.parametrize("world", SEEDS, indirect=True)
async def test_a_random_move_ends_once_with_one_running_guest(world: CellsApart) -> None:
    await comes_through(world)
