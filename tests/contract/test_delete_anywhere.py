"""A build can be deleted at any time by a client that does not know its cell."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.console import Console

from berth import wiring
from berth.commands.builds import delete
from berth.commands.terminal import Cli
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalTransport
from bus.messages import BuildCancelRequested, BuildDeleteRequested
from bus.moves import MoveRequested
from bus.requests import Flavor
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from cell_conductor import cell_conductor
from compute_sim import Durations, FaultPlan, Hardware, SimOptions, compute_sim, fleet
from tests.support.command_line import plainly
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

VM = Flavor(name="vm", vcpus=1, memory_mb=512, disk_gb=1)
BUILD = uid(1000, "b")


@asynccontextmanager
async def a_cloud(
    *schedulers: str, takes: float = 1.0
) -> AsyncIterator[tuple[WaitingWorld, Callable[[str], None]]]:
    loop = asyncio.get_running_loop()
    clock = Clock(lambda: 1_700_000_000.0 + loop.time(), random.Random(5), loop.time)
    placement, kept, builds = (Database("sqlite+aiosqlite://", inline=True) for _ in range(3))
    await migrate(builds, "cell_conductor")
    async with waiting_world(clock, placement, kept, *(schedulers or ("s1",))) as world:
        [agent] = fleet(("c1",), 1, hardware=Hardware(vcpus=8, memory_mb=8192, disk_gb=100, vcpu_ratio=1.0))
        plan = FaultPlan(seed=1, durations=Durations.parse(f"exponential:{takes}"))

        async def live(make: Any) -> None:
            async with Bus(LocalTransport(world.broker), clock) as bus:
                await bus.serve(make(bus), asyncio.Event())

        def start(name: str) -> None:
            world.lives[name] = world.group.create_task(live(makes[name]))

        makes: dict[str, Any] = {
            "conductor": lambda bus: cell_conductor(
                "c1",
                builds,
                bus.asker_of_many(topics.CELL_CLAIM),
                bus.asker_of_many(topics.CELL_RELEASE),
                clock=clock,
            ),
            "agent": lambda bus: compute_sim(agent, SimOptions(faults=plan), clock=clock),
        }
        for name in makes:
            start(name)
        await asyncio.sleep(1.0)
        yield world, start


async def anywhere(
    world: WaitingWorld, build: str = BUILD, *, fence: bool = True
) -> tuple[bool, bool, dict[str, str]]:
    """Return the scheduler's answer: whether it waited, whether it was known, and builds → cells."""
    before = len(world.cancelled)
    await world.say(BuildCancelRequested(build=build, anywhere=True, fence=fence))
    await world.until(before + 1, world.cancelled)
    said = world.cancelled[-1]
    return said.waited, said.known, said.passed_on


async def held(world: WaitingWorld, build: str = BUILD) -> int:
    found = await world.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=(build,)))
    return len(found.consumers)


async def nothing_held(world: WaitingWorld) -> None:
    for _ in range(1000):
        if not await held(world):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it holds something for ever")


@in_virtual_time
async def test_what_was_deleted_before_it_was_asked_for_never_gets_a_host_and_its_request_goes_on() -> None:
    async with a_cloud() as (world, _):
        assert await anywhere(world) == (False, False, {})
        assert await anywhere(world) == (False, True, {})  # the second time it is known to be unwanted
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM, instances=3))
        await world.until(1, world.unplaceable)
        assert {(await ended.get()).build for _ in range(2)} == {uid(1001, "b"), uid(1002, "b")}
        assert [
            (unplaceable.instances, unplaceable.reason, unplaceable.decision.code)
            for unplaceable in world.unplaceable
        ] == [((BUILD,), "deleted before it had a host", "cancelled")]
        assert not await held(world)


@in_virtual_time
async def test_unknown_id_that_is_not_fenced_stays_usable() -> None:
    async with a_cloud() as (world, _):
        assert await anywhere(world, fence=False) == (False, False, {})
        assert await anywhere(world, fence=False) == (False, False, {})
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM))
        assert (await ended.get()).status == "active"
        assert await anywhere(world, fence=False) == (False, True, {BUILD: "c1"})


@in_virtual_time
async def test_what_waits_ends_and_so_does_all_of_its_request_by_the_requests_id() -> None:
    async with a_cloud("s1", "s2") as (world, _):
        await world.ask(1, flavor=METAL)
        await world.ask(2, flavor=METAL, instances=2)
        await asyncio.sleep(1.0)
        assert (await world.waiting()).count == 2
        assert await anywhere(world) == (True, True, {})
        assert await anywhere(world, uid(2, "a")) == (True, True, {})
        assert sorted(len(unplaceable.instances) for unplaceable in world.unplaceable) == [1, 2]
        assert (await world.waiting()).count == 0


@in_virtual_time
async def test_who_is_shelved_holds_nothing_and_is_its_cells_to_take_down() -> None:
    async with a_cloud() as (world, _):
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        moved = await world.bus.listen(topics.MOVE_ENDED.at(cell="c1"))
        deleted = await world.bus.listen(topics.BUILD_DELETED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM))
        assert (await ended.get()).status == "active"
        await world.say(MoveRequested(move=uid(1, "e"), build=BUILD, kind="shelve"))
        assert (await moved.get()).end == "done"
        assert await anywhere(world) == (False, True, {BUILD: "c1"})
        assert (await deleted.get()).build == BUILD
        assert await anywhere(world) == (False, True, {})


@pytest.mark.parametrize("moment", [0.0, 0.003, 0.03, 0.5, 60.0])
@in_virtual_time
async def test_whenever_a_delete_comes_the_build_ends_once_and_nothing_is_held(moment: float) -> None:
    async with a_cloud(takes=5.0) as (world, _):
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM))
        await asyncio.sleep(moment)
        await anywhere(world)
        await nothing_held(world)
        await asyncio.sleep(60.0)
        ends = []
        while True:
            try:
                async with asyncio.timeout(0.1):
                    ends.append((await ended.get()).build)
            except TimeoutError:
                break
        ends += [build for unplaceable in world.unplaceable for build in unplaceable.instances]
        assert set(ends) == {BUILD}
        assert not await held(world)
        waited, known, cells = await anywhere(world)  # once more, long after
        assert (waited, known, cells) == (False, True, {})


@in_virtual_time
async def test_a_cell_that_has_not_heard_of_it_yet_is_told_and_ends_it_when_it_has() -> None:
    """Claimed, and its conductor is away: the deletion and the placing wait for it, in any order."""
    async with a_cloud() as (world, start):
        await world.kill("conductor")
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        told = await world.bus.listen(topics.BUILD_DELETE.at(cell="c1"))
        await world.say(a_request(1, flavor=VM))
        await world.until(1, world.placed)
        assert await anywhere(world) == (False, True, {BUILD: "c1"})
        assert (await told.get()) == BuildDeleteRequested(build=BUILD, cell="c1")
        assert await held(world) == 1
        start("conductor")
        said = await ended.get()
        assert (said.build, said.status) == (BUILD, "error")
        await nothing_held(world)


@pytest.mark.parametrize(
    ("asked", "wait", "says"),
    [
        pytest.param("vm", True, f"{BUILD} deleted\n", id="its cell has it"),
        pytest.param("vm", False, f"{BUILD} will be deleted\n", id="its cell will take it down"),
        pytest.param("metal", True, f"{BUILD}: cancelled while it waited for a host\n", id="it waits"),
        pytest.param("lost", True, f"{BUILD} deleted by cell c1\n", id="its cell has not heard of it"),
        pytest.param(
            "unknown", False, f"{BUILD}: no build or waiting request has this id. If its", id="unknown"
        ),
        pytest.param(
            "unknown", True, f"{BUILD}: no build or waiting request has this id. If its", id="unknown, --wait"
        ),
    ],
)
@in_virtual_time
async def test_the_command_needs_no_cell(
    monkeypatch: pytest.MonkeyPatch, asked: str, wait: bool, says: str
) -> None:
    told = io.StringIO()
    async with a_cloud() as (world, start):
        monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(world.broker))
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        if asked == "lost":
            await world.kill("conductor")
        if asked != "unknown":
            alternatives = {"flavor": METAL, "wait": "30m"} if asked == "metal" else {"flavor": VM}
            await world.say(a_request(1, **alternatives))
        if asked == "lost":
            await world.until(1, world.placed)
            await asyncio.sleep(1.0)
            world.group.create_task(_later(start))
        elif asked == "metal":
            await asyncio.sleep(1.0)
        elif asked != "unknown":
            await ended.get()
        try:
            code = await plainly(
                delete(Cli(Settings(), False, Console(file=told, width=200)), BUILD, "", wait, timeout=60.0)
            )
        except OperationRefused as problem:
            assert says in str(problem)
            return
    assert (code, told.getvalue()) == (0, says)


async def _later(start: Callable[[str], None]) -> None:
    await asyncio.sleep(20.0)
    start("conductor")
