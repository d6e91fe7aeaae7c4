"""Dead hosts are fenced by the hook before their instances are evacuated; many lost hosts are left alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from berth.kit import forcing_down, host_named
from berth.kit.testing import packages, state_of
from bus import topics
from bus.delivery.runner import Bus
from bus.guests import GuestsAsked, GuestsReported, ProbeResult
from bus.local import LocalBroker, LocalTransport
from bus.messages import HostReported
from bus.queries import BuildsFound, FindBuilds, FindInstances, Instance, InstancesFound
from bus.reports import HostState, Inventory
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.maintenance import controller
from features.maintenance.controller import LEAD_SECONDS, MaintenanceController, MaintenanceNeeds
from features.maintenance.messages import (
    AddWindow,
    FindMaintenance,
    HostEvacuation,
    MaintenanceEditRequested,
    MaintenanceFound,
    MaintenanceWindow,
    ReleaseEvacuations,
    every_maintenance,
)
from features.maintenance.settings import MaintenanceSettings
from features.moves.emptying import HostEmptying
from features.moves.messages import FindMoves, MoveRequested, MovesFound, MoveStands
from features.moves.plans import MovePlans
from placement_worker.testing import IndexedSource, Placement
from scheduler_worker.extension import CellQueries, HostBook
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

HOSTS = range(1, 11)
SETTINGS = MaintenanceSettings(hook=("fence",), after=60.0, most=2)


def cell_of(number: int) -> str:
    return "c1" if number in HOSTS else f"c{number}"


@dataclass
class FakeCell:
    """A cell with one instance on each host, which records a move only when a test lets it."""

    instances: dict[str, Instance] = field(default_factory=dict)
    moves: dict[str, MoveStands] = field(default_factory=dict)

    async def find_builds(self, asked: FindBuilds) -> BuildsFound:
        return BuildsFound(builds=())

    async def find_instances(self, asked: FindInstances) -> InstancesFound:
        return InstancesFound(instances=tuple(i for i in self.instances.values() if i.root == asked.host))

    async def find_moves(self, asked: FindMoves) -> MovesFound:
        return MovesFound(moves=tuple(self.moves[move] for move in asked.moves if move in self.moves))

    def carry_out(self, asked: MoveRequested, ended: float, phase: str = "done", host: int = 10) -> None:
        instance = self.instances[asked.build]
        self.instances[asked.build] = structs.replace(instance, root=uid(host, "a"), host=f"host-{host}")
        self.moves[asked.move] = MoveStands(
            move=asked.move, build=asked.build, kind=asked.kind, cell="c1", phase=phase, ended=ended
        )


@dataclass
class ScriptedHook:
    """A hook that ends when the test sets its result."""

    calls: list[str] = field(default_factory=list)
    result: "asyncio.Future[tuple[bool, str]]" = field(default_factory=asyncio.Future)

    async def __call__(self, dead: HostEvacuation) -> tuple[bool, str]:
        self.calls.append(dead.host)
        return await asyncio.shield(self.result)


@dataclass
class DeadHostsWorld:
    """Ten hosts, of which the test stops some, and two schedulers with one database."""

    placement: Placement
    bus: Bus
    clock: TurnedClock
    cell: FakeCell
    hook: ScriptedHook
    books: list[HostBook]
    schedulers: list[MaintenanceController]
    plans: list[MovePlans]  # of the schedulers
    requested: list[MoveRequested]
    sequence: int = 0

    async def passes(self, seconds: float, *silent: int, scheduler: int = 0) -> list[MoveRequested]:
        """Let time pass with heartbeats of all hosts except `silent`; return the moves of the last step."""
        for _ in range(int(seconds / 5)):
            self.clock.now += 5
            self.sequence += 1
            for number in HOSTS:
                if number not in silent:
                    self.heartbeat(number)
            self.requested.clear()
            await self.schedulers[scheduler].step()
            await self.plans[scheduler].step()
            for _ in range(10):  # long enough for a due call of the hook
                await asyncio.sleep(0)
        return [*self.requested]

    def heartbeat(self, number: int) -> None:
        state = HostState(root=uid(number, "a"), host=f"host-{number}")
        message = HostReported(
            cell=cell_of(number), agent=f"agent-{number}", sequence=self.sequence, period=5.0, hosts=(state,)
        )
        for book in self.books:
            book.handle(message, self.clock.now)

    async def found(self, subject: str = "") -> MaintenanceFound:
        return await self.schedulers[0].find(FindMaintenance(ended=True, subject=subject))

    async def states(self) -> dict[str, str]:
        return {dead.host: dead.state for dead in (await self.found()).evacuations}

    async def hook_called(self, times: int) -> None:
        await until(lambda: len(self.hook.calls) == times)

    async def hook_ends(self, is_off: bool) -> None:
        self.hook.result.set_result((is_off, "exit code 0"))
        await until(lambda: not any(each.dead_hosts._confirming for each in self.schedulers))
        self.hook.result = asyncio.get_running_loop().create_future()


@pytest.fixture
async def world(open_database: Callable[..., Database]) -> AsyncIterator[DeadHostsWorld]:
    database, broker, clock = open_database(), LocalBroker(), TurnedClock()
    await migrate(database, *packages("scheduler"))
    cell, hook, books = FakeCell(), ScriptedHook(), [HostBook(clock.now) for _ in range(2)]
    for number in HOSTS:
        cell.instances[uid(number)] = Instance(
            build=uid(number), status="active", cell="c1", host=f"host-{number}", root=uid(number, "a"),
            project="p", flavor="small",
        )  # fmt: skip
    async with a_placement("sqlite+aiosqlite://") as placement:
        await report(placement, *(a_report(number) for number in HOSTS))
        async with serving(lambda: LocalTransport(broker), silent_placement(placement)) as bus:
            edit, edit_name = bus.asker(topics.EDIT), bus.asker(topics.EDIT_NAME)
            queries = replace(queries_of(placement), edit=edit, edit_name=edit_name)
            cells = CellQueries(builds=cell.find_builds, instances=cell.find_instances)
            source = IndexedSource(placement.memory)
            requested: list[MoveRequested] = []

            async def publish(*requests: MoveRequested) -> None:
                requested.extend(requests)

            plans = [MovePlans(database, cell.find_moves, source, clock.clock, publish) for _ in books]
            for each in plans:
                each.add_kind(HostEmptying(queries, cells, source, clock.clock))
            schedulers = [
                MaintenanceController(
                    MaintenanceNeeds(
                        database=database,
                        placement=queries,
                        cells=cells,
                        plans=carrying_out,
                        source=source,
                        book=book,
                        clock=clock.clock,
                        publish=bus.publish,
                    ),
                    SETTINGS,
                )
                for book, carrying_out in zip(books, plans, strict=True)
            ]
            async with asyncio.TaskGroup() as group:
                for scheduler in schedulers:
                    scheduler.dead_hosts.confirm = hook
                running = [group.create_task(each.dead_hosts.run_fencing()) for each in schedulers]
                made = DeadHostsWorld(placement, bus, clock, cell, hook, books, schedulers, plans, requested)
                await made.passes(30)
                yield made
                for task in running:
                    task.cancel()


async def test_a_dead_host_is_fenced_then_forced_down_then_evacuated(world: DeadHostsWorld) -> None:
    assert await world.passes(55, 1) == [] and await world.states() == {}
    await world.passes(10, 1)
    await world.hook_called(1)
    assert await world.states() == {"host-1": "fencing"}
    assert state_of(await host_named(world.bus, "host-1")) == "open"
    assert await world.passes(20, 1) == [] and world.hook.calls == ["host-1"]
    await world.hook_ends(is_off=True)
    await world.passes(5, 1)
    assert state_of(await host_named(world.bus, "host-1")) == "forced down"
    [asked] = await world.passes(5, 1)
    assert (asked.build, asked.kind, asked.cell, asked.plan) == (uid(1), "evacuate", "c1", "evacuation")
    world.cell.carry_out(asked, world.clock.now)
    assert await world.passes(10, 1) == [] and await world.states() == {"host-1": "done"}
    [dead] = (await world.found()).evacuations
    found = await world.found(dead.id)
    events = [event.event for event in found.events]
    assert events == ["fencing", "confirmed off", "evacuating", "done"]
    assert [move.result for move in found.moves] == ["done"]
    assert await world.passes(1000, 1) == [] and world.hook.calls == ["host-1"]


async def test_a_window_is_planned_without_storing_it_and_its_moves_name_the_controller(
    world: DeadHostsWorld,
) -> None:
    now, scheduler = world.clock.now, world.schedulers[0]
    roots = tuple(uid(number, "a") for number in (1, 2))
    window = MaintenanceWindow(
        id=uid(1), roots=roots, begins=now + 1000, ends=now + 2000, budget=1, level="cell"
    )
    plan = (await scheduler.find(FindMaintenance(plan=window))).planned
    assert plan is not None and not plan.refused
    assert [(each.host, each.phase, each.instances) for each in plan.hosts] == [
        ("host-1", "closing", 1),
        ("host-2", "planned", 1),
    ]
    assert (plan.drain_seconds, plan.drain_begins) == (60.0, window.begins - 600.0)
    assert await world.passes(500) == [] and (await world.found()).windows == ()
    await scheduler.edit(MaintenanceEditRequested(edit=AddWindow(window=window)))
    [asked] = await world.passes(10)
    assert (asked.build, asked.kind, asked.plan) == (uid(1), "live", "maintenance")
    again = structs.replace(window, id=uid(2))
    plan = (await scheduler.find(FindMaintenance(plan=again))).planned
    assert plan is not None and "is in window" in plan.refused


async def test_an_instance_that_returns_to_a_dead_host_is_evacuated_again(world: DeadHostsWorld) -> None:
    await world.passes(65, 1)
    await world.hook_ends(is_off=True)
    [asked] = await world.passes(10, 1)
    world.cell.carry_out(asked, 0.0, "build")  # its cell already records the new host
    assert await world.passes(20, 1) == [] and await world.states() == {"host-1": "evacuating"}
    world.cell.carry_out(asked, world.clock.now, "error", host=1)
    assert await world.passes(55, 1) == [] and await world.states() == {"host-1": "evacuating"}
    [again] = await world.passes(5, 1)
    assert again.build == asked.build and again.move != asked.move
    world.cell.carry_out(again, world.clock.now)
    await world.passes(10, 1)
    assert await world.states() == {"host-1": "done"}


async def test_agents_confirm_that_a_host_is_off_only_if_none_reaches_it_for_the_whole_time(
    world: DeadHostsWorld,
) -> None:
    reaching: set[str] = set()
    asked: list[GuestsAsked] = []

    async def publish(question: GuestsAsked) -> None:
        asked.append(question)
        assert question.probe is not None
        dead, control = (host.root for host in question.probe.hosts)
        reached, unreached = ((dead, control), ()) if question.agent in reaching else ((control,), (dead,))
        result = ProbeResult(id=question.probe.id, reached=reached, unreached=unreached)
        report = GuestsReported(cell="c1", agent=question.agent, builds=(), probed=result)
        await quorum.handle(report)

    scheduler = world.schedulers[0]
    quorum = scheduler.quorum
    quorum.votes, quorum.seconds, quorum.pause, quorum.publish = 3, 120.0, 0.01, publish
    scheduler.dead_hosts.confirm = quorum.confirm
    await world.passes(30, 1)
    assert asked == []
    await world.passes(70, 1)
    assert await world.states() == {"host-1": "fencing"}
    await until(lambda: len({question.agent for question in asked}) == 5)
    agents = {question.agent for question in asked}
    assert "agent-1" not in agents
    reaching.add(min(agents))
    await world.passes(5, 1)
    await until(lambda: not scheduler.dead_hosts._confirming)
    assert await world.states() == {"host-1": "unfenced"}
    reaching.clear()
    await world.passes(100, 1)
    assert await world.states() == {"host-1": "fencing"}
    asked.clear()
    await until(lambda: asked)  # agents are asked from now at the latest
    await world.passes(120, 1)
    await until(lambda: not scheduler.dead_hosts._confirming)
    await world.passes(5, 1)
    assert await world.states() == {"host-1": "evacuating"}
    [dead] = (await world.found()).evacuations
    assert "5 of 5 agents cannot reach it, and none reaches it, for 1" in dead.why


async def test_a_request_without_a_record_is_repeated_with_the_same_id(world: DeadHostsWorld) -> None:
    await world.passes(65, 1)
    await world.hook_ends(is_off=True)
    await world.passes(5, 1)
    [asked] = await world.passes(5, 1)
    world.clock.now += LEAD_SECONDS + 10  # the first scheduler is killed before it publishes
    assert await world.passes(5, 1, scheduler=1) == [asked]


async def test_only_one_scheduler_leads(world: DeadHostsWorld) -> None:
    await world.passes(65, 1)
    await world.hook_called(1)
    await world.passes(5, 1, scheduler=1)
    assert world.hook.calls == ["host-1"]
    world.clock.now += LEAD_SECONDS + 1
    await world.passes(5, 1, scheduler=1)
    await world.hook_called(2)  # the leader was killed, and its hook with it
    await world.hook_ends(is_off=True)
    assert await world.states() == {"host-1": "fenced"}


async def test_a_host_that_returns_while_its_hook_runs_is_not_evacuated(world: DeadHostsWorld) -> None:
    await world.passes(65, 1)
    assert await world.passes(5) == [] and await world.states() == {"host-1": "returned"}
    await world.hook_ends(is_off=True)
    assert await world.states() == {"host-1": "returned"}
    assert await world.passes(30) == [] and await world.states() == {"host-1": "returned"}
    assert state_of(await host_named(world.bus, "host-1")) == "open"


async def test_a_host_whose_hook_fails_is_not_evacuated_and_the_hook_is_called_again(
    world: DeadHostsWorld,
) -> None:
    await world.passes(65, 1)
    await world.hook_ends(is_off=False)
    assert await world.passes(50, 1) == [] and await world.states() == {"host-1": "unfenced"}
    assert state_of(await host_named(world.bus, "host-1")) == "open"
    await world.passes(15, 1)
    await world.hook_called(2)


async def test_many_hosts_lost_at_once_are_held_until_an_operator_releases_them(
    world: DeadHostsWorld,
) -> None:
    await world.passes(3000, 1, 2, 3)
    assert await world.states() == {f"host-{number}": "held" for number in (1, 2, 3)}
    assert world.hook.calls == []
    release = ReleaseEvacuations(roots=(uid(2, "a"),))
    edited = await world.schedulers[1].edit(MaintenanceEditRequested(edit=release))
    assert edited.changed == 1
    await world.passes(10, 1, 2, 3)
    await world.hook_called(1)
    assert world.hook.calls == ["host-2"]
    await world.passes(5)
    assert await world.states() == {f"host-{number}": "returned" for number in (1, 2, 3)}


async def test_the_hook_is_never_called_for_a_bare_metal_node(world: DeadHostsWorld) -> None:
    metal = {"CUSTOM_BAREMETAL": Inventory(total=1)}
    nodes = [a_report(number, inventories=metal) for number in (11, 12, 13)]
    assert await report(world.placement, *nodes) == [""] * 3
    await world.passes(100, 1)  # no node has an agent that sends heartbeats
    await world.hook_called(1)
    assert await world.states() == {"host-1": "fencing"}


async def test_an_operator_who_removes_the_mark_ends_the_evacuation(world: DeadHostsWorld) -> None:
    await world.passes(65, 1)
    await world.hook_ends(is_off=True)
    await world.passes(10, 1)
    await forcing_down(False)(world.bus, await host_named(world.bus, "host-1"))
    await world.passes(1000, 1)
    assert await world.states() == {"host-1": "undone"} and world.hook.calls == ["host-1"]
    await world.passes(30)
    await world.passes(65, 1)
    await world.hook_called(2)  # it is lost again


async def test_a_host_that_an_operator_forced_down_is_left_to_the_operator(world: DeadHostsWorld) -> None:
    await world.passes(30, 1)
    await forcing_down(True)(world.bus, await host_named(world.bus, "host-1"))
    await world.passes(100, 1)
    assert await world.states() == {} and world.hook.calls == []


async def test_the_number_of_windows_that_are_not_over_is_limited(world: DeadHostsWorld) -> None:
    now, scheduler = world.clock.now, world.schedulers[0]
    scheduler.most_windows = 1
    window = MaintenanceWindow(id=uid(1), roots=(uid(1, "a"),), begins=now + 1000, ends=now + 2000)
    other = structs.replace(window, id=uid(2), roots=(uid(2, "a"),))
    edits = [MaintenanceEditRequested(edit=AddWindow(window=each)) for each in (window, other, window)]
    refused = [(await scheduler.edit(edit)).refused for edit in edits]
    limit = "there may be at most 1 maintenance windows that are not over (setting max_windows)"
    assert refused == ["", limit, ""]


async def test_windows_are_answered_in_pages_that_fit_into_messages(
    world: DeadHostsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "PAGE_BYTES", 1000)
    now, scheduler = world.clock.now, world.schedulers[0]
    ids = [uid(number) for number in range(1, 8)]
    for number, id_ in enumerate(ids):
        begins = now + 1000 * (number + 1)
        window = MaintenanceWindow(id=id_, roots=(uid(1, "a"),), begins=begins, ends=begins + 500)
        await scheduler.edit(MaintenanceEditRequested(edit=AddWindow(window=window)))
    page = await scheduler.find(FindMaintenance())
    assert 0 < len(page.windows) < len(ids) and page.last
    found = await every_maintenance(scheduler.find, FindMaintenance())
    assert [each.window.id for each in found.windows] == ids and not found.last
