"""A returning agent first asks placement for the holders of its guests; guests that moved elsewhere never run
again.
"""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.guests import GuestsAsked
from bus.local import LocalBroker, LocalTransport
from bus.topics import AGENT_REPORT, HOST_REPORTED, INVENTORY_REPORTED
from compute_sim import (
    AgentDisk,
    Durations,
    FaultPlan,
    GuestFile,
    Hardware,
    SimAgent,
    SimOptions,
    compute_sim,
    fleet,
)
from compute_sim.recovery import GuestRecovery
from tests.support.ids import uid
from tests.support.moving_agent import (
    BUILD,
    DESTINATION,
    SOURCE,
    MovingAgent,
    SmallPlacement,
    a_build,
    a_destroy,
    an_order,
)
from tests.support.virtual_time import in_virtual_time

OLD_PROVIDER = uid(9, "d")  # which the source had when its guest came, and has not now


async def back_from_the_dead(
    placement: SmallPlacement, disk: AgentDisk | None = None
) -> tuple[MovingAgent, GuestRecovery]:
    if disk is None:
        disk = (await MovingAgent().build()).disk
    disk.lose_power()
    agent = MovingAgent(disk, ask=placement.allocations)
    loop = asyncio.get_running_loop()
    clock = Clock(monotonic=loop.time)
    return agent, GuestRecovery(agent.does, "c1", clock, placement.providers)


@pytest.mark.parametrize(
    ("build_on", "kept", "guests", "said"),
    [
        (SOURCE, "", {1: ("source", "running")}, []),
        (OLD_PROVIDER, "", {1: ("source", "running")}, []),
        (DESTINATION, "MIGRATION", {1: ("source", "(running)")}, []),
        (SOURCE, "MIGRATION", {1: ("source", "(running)")}, []),
        (DESTINATION, "CLEANUP", {}, [("destroyed", 1)]),
        (DESTINATION, "", {}, [("destroyed", 1)]),
        ("", "", {}, [("destroyed", 1)]),
        (uid(8, "d"), "", {}, [("destroyed", 1)]),
    ],
)
@in_virtual_time
async def test_a_returning_agent_destroys_guests_that_placement_has_elsewhere(
    build_on: str, kept: str, guests: dict[int, tuple[str, str]], said: list[tuple[str, int]]
) -> None:
    placement = SmallPlacement()
    if build_on:
        placement.build_on(build_on)
    if kept:
        placement.kept_on(SOURCE, 1, kept)
    agent, home = await back_from_the_dead(placement)
    assert agent.disk.running() == [] and not agent.does.ready
    assert [(report.outcome, report.attempt) for report in await home.check()] == said
    assert agent.guests() == guests
    assert agent.does.ready
    if said:  # a late order of it is void
        again = await agent.does.build(a_build())
        assert again is not None and again.outcome == "destroyed"


@pytest.mark.parametrize(
    ("build_on", "kept", "guests"),
    [
        ("", "", {1: ("source", "(running)")}),  # placement may be of an earlier day
        (DESTINATION, "", {1: ("source", "(running)")}),
        (DESTINATION, "CLEANUP", {}),  # that is certain
        (SOURCE, "", {1: ("source", "running")}),
    ],
)
@in_virtual_time
async def test_unknown_guests_can_be_kept_stopped_after_a_restore(
    build_on: str, kept: str, guests: dict[int, tuple[str, str]]
) -> None:
    placement = SmallPlacement()
    if build_on:
        placement.build_on(build_on)
    if kept:
        placement.kept_on(SOURCE, 1, kept)
    agent, _ = await back_from_the_dead(placement)
    clock = Clock(monotonic=asyncio.get_running_loop().time)
    home = GuestRecovery(agent.does, "c1", clock, placement.providers, spares=True)
    await home.check()
    assert agent.guests() == guests
    assert agent.does.ready


@in_virtual_time
async def test_an_agent_lists_its_guests_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compute_sim.agent.GUESTS_A_PAGE", 2)
    agent = await MovingAgent().build()
    [guest] = agent.disk.all_guests
    builds = [BUILD, *(uid(number, "f") for number in range(1, 5))]
    for build in builds[1:]:
        assert agent.disk.hosted.add(structs.replace(guest, build=build))
    heard: list[str] = []
    pages, more = 0, True
    while more:
        asked = GuestsAsked(cell="c1", agent="a1", builds=(), after=heard[-1] if heard else "")
        told = await agent.does.report_guests(asked)
        heard += [guest.build for guest in told.guests]
        pages, more = pages + 1, told.more
        assert (told.after, len(told.guests) <= 2) == (asked.after, True)
    assert (heard, pages) == (sorted(builds), 3)


@in_virtual_time
async def test_guests_and_orders_wait_for_placements_answer_except_destroys() -> None:
    placement = SmallPlacement()
    placement.build_on(SOURCE)
    placement.away = Unavailable("placement is away")
    agent, home = await back_from_the_dead(placement)
    building = asyncio.create_task(agent.does.build(a_build(build=uid(2, "b"))))
    for _ in range(30):
        assert await home.check() == []
        await asyncio.sleep(0.5)
    assert agent.disk.running() == [] and not building.done()
    assert 2 <= placement.asked <= 8  # ever less often
    placement.away = None
    while not agent.does.ready:
        assert await home.check() == []
        await asyncio.sleep(0.5)
    built = await building
    assert built is not None and built.outcome == "built"
    assert {record.build for record in agent.disk.running()} == {BUILD, uid(2, "b")}


@in_virtual_time
async def test_a_guest_whose_source_is_held_by_a_migration_waits() -> None:
    placement = SmallPlacement()
    placement.build_on(DESTINATION)
    placement.kept_on(SOURCE, 1, "MIGRATION")
    agent, home = await back_from_the_dead(placement)
    await home.check()
    assert agent.guests() == {1: ("source", "(running)")}
    assert await agent.move(an_order("resume", 4, 3, was=1)) == ["done"]
    assert agent.guests() == {3: ("source", "running")}
    agent.disk.lose_power()
    assert await agent.move(an_order("resume", 5, 3, was=3)) == ["done"]
    assert agent.guests() == {3: ("source", "running")}


@in_virtual_time
async def test_a_rebuilt_guest_in_a_move_waits() -> None:
    """Its room is kept by the number it had then."""
    placement = SmallPlacement()
    placement.build_on(DESTINATION)
    placement.kept_on(SOURCE, 1, "MIGRATION")
    disk = (await MovingAgent().build()).disk
    guest = disk.guest(BUILD, 1)
    assert guest is not None
    disk.rename(guest, 2)
    agent, home = await back_from_the_dead(placement, disk)
    assert await home.check() == []
    assert agent.guests() == {2: ("source", "(running)")}


@pytest.mark.parametrize(
    ("kept", "beside", "left"),
    [("MIGRATION", 0, [1]), ("CLEANUP", 0, []), ("MIGRATION", 2, [2]), ("MIGRATION", 3, [3])],
)
@in_virtual_time
async def test_a_guest_with_an_outdated_attempt_waits_during_a_move(
    kept: str, beside: int, left: list[int]
) -> None:
    placement = SmallPlacement()
    placement.build_on(DESTINATION)
    placement.kept_on(SOURCE, 3, kept)
    disk = (await MovingAgent().build()).disk
    if beside:
        guest = disk.guest(BUILD, 1)
        assert guest is not None
        disk.begin(a_build(attempt=beside))
    agent, home = await back_from_the_dead(placement, disk)
    said = await home.check()
    assert sorted(agent.guests()) == left
    assert [report.attempt for report in said] == [1] * (left != [1])


@in_virtual_time
async def test_a_guest_resumes_when_its_move_was_reverted() -> None:
    placement = SmallPlacement()
    placement.build_on(DESTINATION)
    placement.kept_on(SOURCE, 1, "MIGRATION")
    agent, home = await back_from_the_dead(placement)
    await home.check()
    placement.held.clear()
    placement.build_on(SOURCE)
    for _ in range(5):
        await home.check()
        await asyncio.sleep(1.0)
    assert agent.guests() == {1: ("source", "running")}


@in_virtual_time
async def test_a_destroy_does_not_wait_for_placements_answer() -> None:
    placement = SmallPlacement()
    placement.build_on(SOURCE)
    agent, home = await back_from_the_dead(placement)
    asked = placement.allocations

    async def while_it_is_destroyed(question: object) -> object:
        answer = await asked(question)  # type: ignore[arg-type]
        await agent.destroy(a_destroy(1))
        return answer

    agent.does.allocations = while_it_is_destroyed  # type: ignore[assignment]
    assert await home.check() == []
    assert agent.guests() == {} and agent.does.ready


@in_virtual_time
async def test_after_each_loss_of_power_it_asks_again() -> None:
    placement = SmallPlacement()
    placement.build_on(SOURCE)
    agent, home = await back_from_the_dead(placement)
    await home.check()
    assert agent.guests() == {1: ("source", "running")}
    agent.does.power.fail()
    placement.held.clear()
    await asyncio.sleep(6.0)
    assert agent.disk.running() == [] and not agent.does.ready
    assert [report.outcome for report in await home.check()] == ["destroyed"]
    assert agent.guests() == {}


async def test_a_returning_agent_reports_nothing_before_placements_answer(tmp_path: Path) -> None:
    """The whole worker, with a file: it was moved away while its agent was dead."""
    (who,) = fleet(("c1",), 2, hardware=Hardware(vcpus=4, vcpu_ratio=1.0))
    first = AgentDisk(file=GuestFile(tmp_path / "a1.guests"))
    await MovingAgent(first).build()
    first.close()
    placement = SmallPlacement()
    placement.build_on(DESTINATION)
    placement.away = Unavailable("placement is away")
    disk = AgentDisk(file=GuestFile(tmp_path / "a1.guests"))
    assert len(disk.all_guests) == 1 and disk.running() == []
    broker = LocalBroker()
    worker = compute_sim(
        SimAgent("a1", "c1", tuple(who.hosts)),
        SimOptions(period=0.02),
        disk=disk,
        providers=placement.providers,
        allocations=placement.allocations,
    )
    async with Bus(LocalTransport(broker)) as bus, Bus(LocalTransport(broker)) as its:
        reports = await bus.listen(AGENT_REPORT.at(cell="c1"))
        beats, trees = await bus.listen(HOST_REPORTED.at()), await bus.listen(INVENTORY_REPORTED.at())
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group, asyncio.timeout(20.0):
            group.create_task(its.serve(worker, stopping, drain=0.0))
            while placement.asked < 2:
                await asyncio.sleep(0.01)
            for listener in (beats, trees):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await listener.get()
            placement.away = None
            said = await reports.get()
            beat = await beats.get()
            await trees.get()
            stopping.set()
    assert (said.outcome, said.build, said.attempt) == ("destroyed", BUILD, 1)
    assert [host.instances for host in beat.hosts] == [0, 0]
    disk.close()


STOOD_STILL = 30.0


async def at_work(
    placement: SmallPlacement, faults: FaultPlan | None = None
) -> tuple[MovingAgent, GuestRecovery]:
    placement.build_on(SOURCE)
    agent = MovingAgent((await MovingAgent().build()).disk, faults, ask=placement.allocations)
    agent.does.absent_after = 5.0
    loop = asyncio.get_running_loop()
    home = GuestRecovery(agent.does, "c1", Clock(monotonic=loop.time), placement.providers)
    await home.check()
    assert agent.does.ready
    return agent, home


@pytest.mark.parametrize(
    ("build_on", "kept", "guests", "said"),
    [
        (SOURCE, "", {1: ("source", "running")}, []),
        (DESTINATION, "MIGRATION", {1: ("source", "(running)")}, []),
        (DESTINATION, "", {}, ["destroyed"]),
    ],
    ids=["its own", "being evacuated", "evacuated"],
)
@in_virtual_time
async def test_a_paused_agent_asks_placement_again_before_it_continues(
    build_on: str, kept: str, guests: dict[int, tuple[str, str]], said: list[str]
) -> None:
    placement = SmallPlacement()
    agent, home = await at_work(placement)
    for _ in range(10):
        await asyncio.sleep(4.0)
        assert agent.does.ready and agent.guests() == {1: ("source", "running")}
    placement.build_on(build_on)
    if kept:
        placement.kept_on(SOURCE, 1, kept)
    await asyncio.sleep(STOOD_STILL)
    assert not agent.does.ready and agent.disk.running() == []
    assert [report.outcome for report in await home.check()] == said
    assert agent.guests() == guests and agent.does.ready


@in_virtual_time
async def test_an_answer_from_before_the_pause_is_ignored() -> None:
    placement = SmallPlacement()
    agent, home = await at_work(placement)
    await asyncio.sleep(STOOD_STILL)
    asked = placement.allocations

    async def slowly(question: object) -> object:
        answer = await asked(question)  # type: ignore[arg-type]
        placement.build_on(DESTINATION)
        agent.does.allocations = asked
        await asyncio.sleep(STOOD_STILL)
        return answer

    agent.does.allocations = slowly  # type: ignore[assignment]
    assert await home.check() == []
    assert not agent.does.ready and agent.disk.running() == []
    await asyncio.sleep(1.0)
    assert [report.outcome for report in await home.check()] == ["destroyed"]


@in_virtual_time
async def test_a_paused_build_is_dropped_if_it_is_on_another_host() -> None:
    placement = SmallPlacement()
    agent, home = await at_work(placement, FaultPlan(durations=Durations("constant", (10.0,))))
    other = uid(2, "b")
    placement.build_on(SOURCE, other)
    building = asyncio.create_task(agent.does.build(a_build(build=other)))
    await asyncio.sleep(0.0)
    placement.build_on(DESTINATION, other)
    await asyncio.sleep(STOOD_STILL)
    assert not building.done()
    assert [(report.build, report.outcome) for report in await home.check()] == [(other, "destroyed")]
    assert await building is None
    assert {record.build for record in agent.disk.running()} == {BUILD}
