"""Making room: hosts are closed for a plan and opened in time; failed moves are planned again or given up."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest

from berth.features import packages
from berth.operations.host_states import disabling, enabling, host_named, state_of
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.resources import AllocationsFound, FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Worker, answers
from features.moves.messages import MoveRequested
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.planning import making_room
from features.planning.host_holds import HostHolds
from features.planning.making_room import MakingRoom, RoomListener, RoomMade
from features.planning.messages import (
    HOLD_HOSTS,
    PLAN_ROOM,
    HoldHosts,
    HostsHeld,
    PlannedStep,
    PlanRoom,
    RoomPlanned,
)
from features.planning.planned_moves import PlannedMoves
from features.what_if.messages import PlacedThere
from placement_worker import IndexedSource
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

H1, H2 = uid(1, "a"), uid(2, "a")
P1, P2 = uid(1, "f"), uid(2, "f")
CLOSED, OPEN = "disabled, because of make_room", "open"


@dataclass
class ClosableHosts:
    """Hosts 1 and 2 in a real placement, and the holds of two schedulers with one database."""

    bus: Bus
    clock: TurnedClock
    holds: HostHolds
    other: HostHolds

    async def states(self) -> list[str]:
        return [state_of(await host_named(self.bus, f"host-{number}")) for number in (1, 2)]


@pytest.fixture
async def hosts(open_database: Callable[..., Database]) -> AsyncIterator[ClosableHosts]:
    database, broker, clock = open_database(), LocalBroker(), TurnedClock()
    await migrate(database, *packages("scheduler"))
    async with a_placement("sqlite+aiosqlite://") as placement:
        assert await report(placement, *(a_report(number) for number in (1, 2))) == ["", ""]
        async with serving(lambda: LocalTransport(broker), silent_placement(placement)) as bus:
            edit, edit_name = bus.asker(topics.EDIT), bus.asker(topics.EDIT_NAME)
            queries = replace(queries_of(placement), edit=edit, edit_name=edit_name)
            source = IndexedSource(placement.memory)
            holds = [HostHolds(database, queries, source, clock.clock) for _ in range(2)]
            yield ClosableHosts(bus, clock, *holds)


async def test_hosts_are_closed_for_a_plan_and_opened_at_its_end(hosts: ClosableHosts) -> None:
    assert await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1,))) == HostsHeld()
    assert await hosts.states() == [CLOSED, OPEN]
    await hosts.holds.hold(HoldHosts(plan=P1, seconds=0))
    assert await hosts.states() == [OPEN, OPEN]


async def test_hosts_are_opened_by_any_scheduler_when_the_time_has_passed(hosts: ClosableHosts) -> None:
    await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1, H2), seconds=60))
    hosts.clock.now += 40
    renewed = await hosts.other.hold(HoldHosts(plan=P1, roots=(H1, H2), seconds=60, renew=True))
    assert renewed == HostsHeld()
    hosts.clock.now += 40
    await hosts.other.open_expired()
    assert await hosts.states() == [CLOSED, CLOSED]
    hosts.clock.now += 40
    await hosts.other.open_expired()
    assert await hosts.states() == [OPEN, OPEN]
    late = await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1, H2), renew=True))
    assert late == HostsHeld(opened=(H1, H2))
    assert await hosts.states() == [OPEN, OPEN]


async def test_a_host_belongs_to_one_plan(hosts: ClosableHosts) -> None:
    await hosts.holds.hold(HoldHosts(plan=P1, roots=(H2,)))
    assert await hosts.other.hold(HoldHosts(plan=P2, roots=(H1, H2))) == HostsHeld(taken=(H2,))
    assert await hosts.states() == [OPEN, CLOSED]
    await hosts.holds.hold(HoldHosts(plan=P1, seconds=0))
    assert await hosts.other.hold(HoldHosts(plan=P2, roots=(H1, H2))) == HostsHeld()


async def test_other_causes_of_a_closed_host_stay(hosts: ClosableHosts) -> None:
    await disabling("upgrade")(hosts.bus, await host_named(hosts.bus, "host-1"))
    await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1,)))
    await hosts.holds.hold(HoldHosts(plan=P1, seconds=0))
    assert await hosts.states() == ["disabled, because of upgrade", OPEN]


async def test_an_operator_who_enables_a_host_ends_the_plan(hosts: ClosableHosts) -> None:
    await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1, H2)))
    await enabling("make_room")(hosts.bus, await host_named(hosts.bus, "host-1"))
    renewed = await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1, H2), renew=True))
    assert renewed == HostsHeld(opened=(H1,))


async def test_a_scheduler_that_stopped_while_it_opened_a_host_is_replaced(hosts: ClosableHosts) -> None:
    await hosts.holds.hold(HoldHosts(plan=P1, roots=(H1,), seconds=10))
    hosts.clock.now += 20

    async def stopped(root: str, *, closing: bool) -> None:
        raise ConnectionError

    hosts.holds._edit = stopped  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await hosts.holds.open_expired()
    assert await hosts.states() == [CLOSED, OPEN]
    await hosts.other.open_expired()
    assert await hosts.states() == [OPEN, OPEN]


# The operation


def a_step(build: int, source: int, destination: int, wave: int = 0) -> PlannedStep:
    return PlannedStep(
        build=uid(build), kind="live", cell="c1", source=uid(source, "a"), source_host=f"host-{source}",
        destination=uid(destination, "a"), destination_host=f"host-{destination}", wave=wave,
        holder=uid(build, "b"),
    )  # fmt: skip


TARGET = PlacedThere(root=H1, host="host-1", cell="c1")
FITS = RoomPlanned(targets=(TARGET,))


def a_plan(*steps: PlannedStep) -> RoomPlanned:
    return RoomPlanned(moves=steps, targets=(TARGET,))


@dataclass
class ScriptedPlanner:
    """A scheduler with scripted plans, which records its queries; and a placement that has no consumers."""

    plans: list[RoomPlanned]
    asked: list[PlanRoom] = field(default_factory=list)
    held: list[HoldHosts] = field(default_factory=list)
    answer: HostsHeld = field(default_factory=HostsHeld)
    making: MakingRoom | None = None

    def worker(self) -> Worker:
        return Worker(
            "planner",
            answers=[
                answers(PLAN_ROOM, self._plan),
                answers(HOLD_HOSTS, self._hold),
                answers(topics.ALLOCATIONS, self._allocations),
            ],
        )

    async def _plan(self, asked: PlanRoom) -> RoomPlanned:
        self.asked.append(asked)
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    async def _hold(self, asked: HoldHosts) -> HostsHeld:
        self.held.append(asked)
        return self.answer

    async def _allocations(self, asked: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})


async def made(
    planner: ScriptedPlanner, movers: FakeMovers, budget: int = 10, *, undo: bool = True
) -> RoomMade:
    broker = LocalBroker()
    movers.have(*(an_instance_there(number, 1) for number in (1, 2, 3)))
    async with serving(lambda: LocalTransport(broker), planner.worker(), movers.worker()) as bus:
        asked = PlanRoom(request=a_request(1), budget=budget)
        planner.making = MakingRoom(bus, asked, 4, RoomListener(), undo=undo)
        return await planner.making.run()


async def test_a_plan_is_carried_out_wave_by_wave_on_closed_hosts() -> None:
    plan = a_plan(a_step(1, 2, 3), a_step(2, 1, 2, wave=1))
    planner, movers = ScriptedPlanner([plan, plan, FITS]), FakeMovers()
    result = await made(planner, movers)
    assert (result.plan.code, len(result.done.moved)) == ("", 2)
    moves = [(asked.build, asked.kind, asked.wanted_host) for asked in movers.asked]
    assert moves == [(uid(1), "live", uid(3, "a")), (uid(2), "live", H2)]
    assert [hold.roots for hold in planner.held] == [(H1,), (H1,)]
    assert [hold.seconds > 0 for hold in planner.held] == [True, False]
    assert [asked.roots for asked in planner.asked] == [(), (H1,), (H1,)]


async def test_a_failed_move_is_planned_again_without_its_instance() -> None:
    first, second = a_plan(a_step(1, 1, 2)), a_plan(a_step(2, 1, 2))
    planner, movers = ScriptedPlanner([first, first, second, FITS]), FakeMovers()

    def doing(asked: MoveRequested) -> list[Message]:
        return [movers.refused(asked)] if asked.build == uid(1) else movers.well(asked)

    movers.doing = doing
    result = await made(planner, movers, budget=5)
    assert (result.plan.code, [step.build for step in result.done.moved]) == ("", [uid(2)])
    assert [asked.fixed for asked in planner.asked[2:]] == [(uid(1),), (uid(1),)]
    assert [asked.budget for asked in planner.asked] == [5, 5, 5, 4]


NONE = RoomPlanned(code="destinations", why="none fits")


def a_failing_plan() -> ScriptedPlanner:
    """Return a planner of two waves whose last move, of instance 3, is refused; then there is no plan."""
    plan = a_plan(a_step(1, 1, 2), a_step(2, 1, 3, wave=1), a_step(3, 1, 2, wave=2))
    return ScriptedPlanner([plan, plan, NONE])


def refusing(movers: FakeMovers, *wanted: tuple[int, int]) -> FakeMovers:
    """Refuse the moves of these instances to these hosts."""

    def doing(asked: MoveRequested) -> list[Message]:
        refused = [(uid(build), uid(host, "a")) for build, host in wanted]
        there = (asked.build, asked.wanted_host)
        return [movers.refused(asked)] if there in refused else movers.well(asked)

    movers.doing = doing
    return movers


async def test_the_moves_of_a_plan_that_is_given_up_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_room, "RETRY_SECONDS", 0.01)
    planner, movers = a_failing_plan(), refusing(FakeMovers(), (3, 2))
    opened_before = list[bool]()
    refused = movers.doing
    assert refused is not None

    def doing(asked: MoveRequested) -> list[Message]:
        opened_before.append(planner.held[-1].seconds == 0)
        return list(refused(asked))

    movers.doing = doing
    result = await made(planner, movers)
    assert (result.plan.code, result.done.moved, list(result.done.failed)) == ("destinations", [], [uid(3)])
    undone = [(asked.build, asked.wanted_host) for asked in movers.asked[3:]]
    assert undone == [(uid(2), H1), (uid(1), H1)]  # the last move is undone first
    assert opened_before == [False] * 3 + [True] * 2 and len(planner.held) == 2


async def test_an_instance_that_cannot_be_moved_back_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_room, "RETRY_SECONDS", 0.01)
    result = await made(a_failing_plan(), refusing(FakeMovers(), (3, 2), (2, 1)))
    assert [step.build for step in result.done.moved] == [uid(2)]
    assert [step.build for step in result.done.undone] == [uid(1)]
    assert result.done.failed[uid(2)].startswith("it could not be moved back: ")


async def test_without_undo_the_instances_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_room, "RETRY_SECONDS", 0.01)
    planner = a_failing_plan()
    result = await made(planner, refusing(FakeMovers(), (3, 2)), undo=False)
    assert [step.build for step in result.done.moved] == [uid(1), uid(2)]
    assert planner.held[-1].seconds == 0


async def test_an_instance_that_moved_twice_is_moved_back_to_its_first_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(making_room, "RETRY_SECONDS", 0.01)
    plans = [a_plan(a_step(1, 1, 2), a_step(3, 1, 2)), a_plan(a_step(1, 2, 3))]
    planner, movers = ScriptedPlanner([plans[0], *plans, NONE]), refusing(FakeMovers(), (3, 2))
    result = await made(planner, movers)
    assert (movers.asked[-1].build, movers.asked[-1].wanted_host) == (uid(1), H1)
    assert (len(movers.asked), result.done.moved, len(result.done.undone)) == (4, [], 1)


async def test_hosts_of_another_plan_are_left_alone() -> None:
    planner, movers = ScriptedPlanner([a_plan(a_step(1, 1, 2))], answer=HostsHeld(taken=(H1,))), FakeMovers()
    result = await made(planner, movers)
    assert (result.plan.code, movers.asked) == ("taken", [])
    assert "another plan has closed host-1" in result.plan.why


async def test_without_a_plan_nothing_is_closed() -> None:
    planner = ScriptedPlanner([RoomPlanned(code="budget", why="too many")])
    assert (await made(planner, FakeMovers())).plan.code == "budget"
    planner.plans = [FITS]
    assert (await made(planner, FakeMovers())).plan == FITS
    assert planner.held == []


async def test_a_plan_ends_when_its_hosts_were_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_room, "HOLD_SECONDS", 0.04)
    plan = a_plan(a_step(1, 2, 3), a_step(2, 1, 2, wave=1))
    planner, movers = ScriptedPlanner([plan, plan]), FakeMovers()
    opened = HostsHeld(opened=(H1,))

    def doing(asked: MoveRequested) -> list[Message]:
        planner.answer = opened
        return movers.well(asked)

    movers.doing = doing
    monkeypatch.setattr(PlannedMoves, "released", lambda self, steps: _renewed(planner))
    result = await made(planner, movers)
    assert (result.plan.code, len(movers.asked), len(result.done.undone)) == ("opened", 2, 1)


async def _renewed(planner: ScriptedPlanner) -> bool:
    await until(lambda: planner.making is not None and planner.making.must_stop)
    return True
