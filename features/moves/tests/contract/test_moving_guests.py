"""A simulated agent executes phases of moves: in order, repeated, late, interrupted, in a power failure."""

import asyncio

import pytest
from msgspec.structs import replace

from bus.clock import Clock
from bus.requests import Image
from compute_sim.core.faults import Durations, FaultPlan, MoveFaults, SimOptions, draw
from compute_sim.machines import SimAgent
from compute_sim.reporting import HostReports
from features.moves.messages import MoveOrdered
from features.moves.tests.support.moving_agent import (
    BUILD,
    DESTINATION,
    SOURCE,
    MovingAgent,
    a_build,
    a_destroy,
    a_spec,
    an_order,
)
from tests.support.virtual_time import in_virtual_time

PREPARE, START = an_order("prepare", 1, 2, DESTINATION), an_order("start", 3, 2, DESTINATION)
SEND, LIVE = an_order("send", 2, 1), an_order("send", 2, 1, kind="live")
RESUME, REBUILD = an_order("resume", 4, 3, was=1), an_order("rebuild", 1, 2, was=1)
SLOW = FaultPlan(move_durations=Durations.parse("constant:60"))
LOST = "failed: the agent lost power meanwhile"


@in_virtual_time
async def test_a_guest_is_moved_phase_by_phase_and_never_runs_twice() -> None:
    agent = await MovingAgent().build()
    assert await agent.move(PREPARE) == ["done"]
    assert agent.guests() == {1: ("source", "running"), 2: ("destination", "arriving")}
    assert await agent.move(SEND) == ["done"]
    assert agent.guests() == {1: ("source", "stopped"), 2: ("destination", "arriving")}
    assert await agent.move(START) == ["done"]
    assert agent.guests() == {1: ("source", "stopped"), 2: ("destination", "running")}
    await agent.destroy(a_destroy(1))
    assert agent.guests() == {2: ("destination", "running")}
    assert await agent.move(PREPARE, SEND, START) == [
        "nothing", "failed: it was destroyed on this host", "done"
    ]  # fmt: skip
    assert agent.guests() == {2: ("destination", "running")}


@in_virtual_time
async def test_a_revert_gives_the_source_guest_a_new_attempt_and_a_late_destroy_spares_it() -> None:
    agent = await MovingAgent().build()
    await agent.move(PREPARE, SEND, START)
    await agent.destroy(a_destroy(2, DESTINATION, above=1))
    assert agent.guests() == {1: ("source", "stopped")}
    assert await agent.move(RESUME, RESUME) == ["done", "done"]
    assert agent.guests() == {3: ("source", "running")}
    late = [await agent.does.build(a_build(attempt)) for attempt in (1, 2)]
    assert [report.outcome for report in late if report] == ["destroyed", "destroyed"]
    assert await agent.move(SEND, PREPARE, START) == [
        "nothing", "nothing", "failed: it was destroyed on this host"
    ]  # fmt: skip
    assert agent.guests() == {3: ("source", "running")}
    assert agent.disk.devices.in_use(SOURCE) == {"VCPU": 1} and not agent.disk.devices.in_use(DESTINATION)
    again = await agent.does.build(a_build(3))
    assert again is not None and again.outcome == "built"
    await agent.destroy(a_destroy(3))
    assert agent.guests() == {}


@in_virtual_time
async def test_a_rebuild_replaces_the_guest_and_counts_once() -> None:
    agent = await MovingAgent().build(a_build(vcpus=4))
    assert await agent.move(replace(REBUILD, spec=a_spec(4, "debian")), REBUILD) == ["done", "done"]
    assert agent.guests() == {2: ("source", "running")}
    assert agent.disk.devices.in_use(SOURCE) == {"VCPU": 4}
    assert (agent.disk.hosted.there[BUILD][2].image, agent.disk.hosted.on[SOURCE].instances) == ("debian", 1)


@in_virtual_time
async def test_a_failed_rebuild_keeps_the_guest() -> None:
    agent = await MovingAgent(faults=FaultPlan(moves=MoveFaults(rebuild=1.0))).build()
    assert await agent.move(REBUILD) == ["failed: the image could not be fetched"]
    assert agent.guests() == {1: ("source", "running")}


@pytest.mark.parametrize(("old", "new", "says"), [(1, 3, "done"), (2, 3, "failed: the host cannot hold it")])
@in_virtual_time
async def test_a_resize_on_the_same_host_needs_capacity_for_both_sizes(old: int, new: int, says: str) -> None:
    agent = await MovingAgent().build(a_build(vcpus=old))
    (reply,) = await agent.move(an_order("prepare", 1, 2, SOURCE, "resize", spec=a_spec(new)))
    assert reply.startswith(says)
    assert agent.disk.devices.in_use(SOURCE) == {"VCPU": old + (new if says == "done" else 0)}


@in_virtual_time
async def test_a_guest_that_cannot_start_is_reported_as_leftover() -> None:
    agent = await MovingAgent().build()
    await agent.move(PREPARE)
    reply = await agent.moves.move(START)
    assert reply is not None and (reply.outcome, reply.leftover) == ("failed", True)
    assert agent.guests() == {1: ("source", "running"), 2: ("destination", "arriving")}


@in_virtual_time
async def test_a_repeated_order_is_done_once_and_reported_for_the_last_delivery() -> None:
    agent = await MovingAgent(faults=SLOW).build()
    asked = [asyncio.create_task(agent.move(SEND)) for _ in range(3)]
    assert await asyncio.gather(*asked) == [["nothing"], ["nothing"], ["done"]]
    assert asyncio.get_running_loop().time() == 60.0


@pytest.mark.parametrize("kind", ["migrate", "live"])
@in_virtual_time
async def test_a_later_order_ends_a_copy_and_the_earlier_is_void(kind: str) -> None:
    agent = await MovingAgent(faults=FaultPlan(moves=MoveFaults(hang=1.0))).build()
    send = LIVE if kind == "live" else SEND
    sending = asyncio.create_task(agent.move(send))
    await asyncio.sleep(1.0)
    assert agent.guests() == {1: ("source", "running" if kind == "live" else "stopped")}
    agent.does.faults = FaultPlan()
    assert await agent.move(RESUME) == ["done"]
    assert await sending == ["nothing"]
    assert agent.guests() == {3: ("source", "running")}
    assert await agent.move(send) == ["nothing"]


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("faults", [SLOW, FaultPlan(moves=MoveFaults(hang=1.0))], ids=["slow", "hangs"])
@in_virtual_time
async def test_forcing_a_live_migration_ends_its_copying(step: int, faults: FaultPlan) -> None:
    agent = await MovingAgent(faults=faults).build()
    sending = asyncio.create_task(agent.move(LIVE))
    await asyncio.sleep(1.0)
    assert await agent.move(replace(LIVE, step=step, force=True)) == ["done"]
    assert (await sending, asyncio.get_running_loop().time()) == (["nothing"], 1.0)
    assert agent.guests() == {1: ("source", "stopped")}


@in_virtual_time
async def test_progress_is_reported_only_while_a_copy_advances() -> None:
    agent = await MovingAgent(faults=SLOW).build()
    sending = asyncio.create_task(agent.move(LIVE))
    seen = []
    for _ in range(3):
        await asyncio.sleep(15.0)
        seen += [(report.outcome, report.percent, report.step) for report in await agent.moves.progress()]
    assert seen == [("progress", 25, 2), ("progress", 50, 2), ("progress", 75, 2)]
    assert await sending == ["done"]
    assert await agent.moves.progress() == []
    agent.does.faults = FaultPlan(moves=MoveFaults(hang=1.0))
    hanging = asyncio.create_task(agent.move(RESUME))
    await asyncio.sleep(15.0)
    assert await agent.moves.progress() == []
    assert await hanging == ["failed: it hung"]


@pytest.mark.parametrize("late", ["prepare", "start"])
@in_virtual_time
async def test_a_destroy_ends_a_phase_and_voids_its_order(late: str) -> None:
    agent = await MovingAgent().build()
    await agent.move(PREPARE, SEND)
    agent.does.faults = SLOW
    starting = asyncio.create_task(agent.move(START))
    await asyncio.sleep(1.0)
    await agent.destroy(a_destroy(2, DESTINATION, above=1))
    assert await starting == ["nothing"]
    again = replace(START, step=5, phase=late)
    assert await agent.move(again) == ["failed: it was destroyed on this host"]
    assert agent.guests() == {1: ("source", "stopped")}


CUT: list[tuple[MoveOrdered, tuple[MoveOrdered, ...], str, dict[int, tuple[str, str]]]] = [
    (PREPARE, (), f"{LOST} (left over)", {1: ("source", "running"), 2: ("destination", "arriving")}),
    (SEND, (PREPARE,), LOST, {1: ("source", "stopped"), 2: ("destination", "arriving")}),
    (LIVE, (PREPARE,), LOST, {1: ("source", "running"), 2: ("destination", "arriving")}),
    (START, (PREPARE, SEND), f"{LOST} (left over)", {
        1: ("source", "stopped"), 2: ("destination", "arriving")}),
    (RESUME, (SEND,), LOST, {3: ("source", "stopped")}),
    (REBUILD, (), LOST, {1: ("source", "running")}),
]  # fmt: skip


@pytest.mark.parametrize(("order", "before", "reply", "then"), CUT, ids=[one[0].phase for one in CUT])
@in_virtual_time
async def test_a_power_failure_in_a_phase_leaves_the_guests_and_is_reported(
    order: MoveOrdered, before: tuple[MoveOrdered, ...], reply: str, then: dict[int, tuple[str, str]]
) -> None:
    agent = await MovingAgent(away=5.0).build()
    await agent.move(*before)
    agent.does.faults = SLOW
    moving = asyncio.create_task(agent.move(order))
    await asyncio.sleep(1.0)
    agent.does.power.fail()
    assert agent.disk.running() == [] and not agent.does.ready
    assert await moving == [reply]
    assert asyncio.get_running_loop().time() == 6.0
    assert agent.guests() == then
    assert await agent.move(order) == [reply]


@in_virtual_time
async def test_phases_count_as_orders_until_the_power_fails() -> None:
    third = 1 + int(4 * draw(1, "crash", "a1", 0))
    assert third == 3
    agent = await MovingAgent(faults=SLOW, seed=1, orders=2, away=1.0).build()
    assert await agent.move(PREPARE, SEND) == ["done", LOST]


@in_virtual_time
async def test_a_heartbeat_counts_guests_and_running_jobs() -> None:
    image = Image(name="debian", properties={"hw_disk_bus": "scsi"})
    agent = await MovingAgent().build(replace(a_build(), spec=replace(a_spec(), image=image)))
    hosts = list(agent.trees._hosts.values())
    news = HostReports(
        SimAgent("a1", "c1", tuple(hosts)), agent.does, agent.trees, SimOptions(period=1.0), Clock(), None
    )

    async def seen() -> list[tuple[int, int, tuple[str, ...]]]:
        ((beat),) = await news.beat()
        return [(host.instances, host.building, host.images) for host in beat.hosts]

    ((beat),) = await news.beat()
    state = beat.hosts[0]
    assert state.image_properties == {"hw_disk_bus=scsi": 1} and state.metrics["temperature"] >= 22
    assert (state.architecture, state.hypervisor, state.vm_modes) == ("x86_64", "QEMU", ("hvm",))
    assert (state.ip, state.hypervisor_version) == (hosts[0].ip, 8_002_000)
    assert state.capabilities == {"cpu_info:arch": "x86_64"}
    agent.does.faults = SLOW
    preparing = asyncio.create_task(agent.move(replace(PREPARE, spec=a_spec(1, "debian"))))
    await asyncio.sleep(1.0)
    assert await seen() == [(1, 0, ("debian",)), (1, 1, ("debian",))]
    await preparing
    assert await seen() == [(1, 0, ("debian",)), (1, 0, ("debian",))]
    await agent.destroy(a_destroy(2, DESTINATION, above=1))
    assert await seen() == [(1, 0, ("debian",)), (0, 0, ("debian",))]


# Adopted guests


ADOPTED = replace(a_build(vcpus=99), adopt=True)  # more than its host has: it runs all the same


@in_virtual_time
async def test_an_adopted_guest_runs_immediately_and_can_move() -> None:
    agent = MovingAgent(faults=FaultPlan(reschedule=1.0, moves=MoveFaults()))
    reply = await agent.does.build(ADOPTED)
    assert reply is not None and reply.outcome == "built"
    assert asyncio.get_running_loop().time() == 0.0
    assert await agent.does.build(ADOPTED) == reply
    assert agent.guests() == {1: ("source", "running")}
    assert await agent.move(PREPARE, SEND, START) == ["done", "done", "done"]
    assert (await agent.destroy(a_destroy(1))).outcome == "destroyed"
    assert agent.guests() == {2: ("destination", "running")}
