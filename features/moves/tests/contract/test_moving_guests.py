"""A simulated agent executes phases of moves."""

import asyncio

import pytest
from msgspec.structs import replace

from compute_sim.testing import Durations, FaultPlan, MoveFaults
from features.moves.tests.support.moving_agent import (
    DESTINATION,
    SOURCE,
    MovingAgent,
    a_build,
    a_spec,
    an_order,
)
from tests.support.virtual_time import in_virtual_time

PREPARE, START = an_order("prepare", 1, 2, DESTINATION), an_order("start", 3, 2, DESTINATION)
SEND, LIVE = an_order("send", 2, 1), an_order("send", 2, 1, kind="live")
RESUME, REBUILD = an_order("resume", 4, 3, was=1), an_order("rebuild", 1, 2, was=1)
SLOW = FaultPlan(move_durations=Durations.parse("constant:60"))


@pytest.mark.parametrize(("old", "new", "says"), [(1, 3, "done"), (2, 3, "failed: the host cannot hold it")])
@in_virtual_time
async def test_a_resize_on_the_same_host_needs_capacity_for_both_sizes(old: int, new: int, says: str) -> None:
    agent = await MovingAgent().build(a_build(vcpus=old))
    (reply,) = await agent.move(an_order("prepare", 1, 2, SOURCE, "resize", spec=a_spec(new)))
    assert reply.startswith(says)
    assert agent.disk.devices.in_use(SOURCE) == {"VCPU": old + (new if says == "done" else 0)}


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
