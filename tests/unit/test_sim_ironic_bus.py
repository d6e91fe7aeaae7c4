"""The simulated Ironic on berth's own bus: the truth about each node, and nothing that was only asked for."""

import asyncio
from collections.abc import Awaitable

import pytest

from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.local import LocalBroker, LocalTransport
from bus.messages import NodeChanged
from bus.topics import IRONIC_NODE
from compute_sim.ironic import BusNotifier, Simulation, enrolled
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import SimNode
from tests.support.simulated_ironic import INSTANCE, NOW, OTHER, SimIronicPlayer, a_node
from tests.support.virtual_time import run


def whose(node: SimNode) -> tuple[str, str, str]:
    return "c1", f"{node.conductor_group or 'c1'}-agent1", "z1"


class Notification:
    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.messages: list[NodeChanged] = []

    async def publish(self, *messages: NodeChanged) -> None:
        if self.away:
            self.away -= 1
            raise Unroutable("no queue is bound to ironic.node.create")
        self.messages += messages


def facts(message: NodeChanged) -> tuple[str, str | None, bool, str | None]:
    return message.event, message.provision_state, message.maintenance, message.instance_uuid


async def spoken(
    bus: Notification, *stories: Awaitable[None], bench: SimIronicPlayer, voice: BusNotifier
) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(voice.run()), group.create_task(bench.conductor.run())]
        for story in stories:
            await story
            await asyncio.sleep(60)
        for task in tasks:
            task.cancel()


def test_every_change_is_published_and_requests_are_not() -> None:
    async def story() -> Notification:
        bus = Notification()
        voice = BusNotifier(bus.publish, whose, Clock(lambda: NOW))
        bench = SimIronicPlayer(SimPlan(), a_node(), emit=voice)
        acts = (
            "claim",
            f"claim {OTHER}",
            "fault delete step",
            "provision active",
            "provision deleted",
            "delete",
        )
        await spoken(bus, *(bench.attempt(words) for words in acts), bench=bench, voice=voice)
        return bus

    told = run(story()).messages
    assert [facts(message) for message in told] == [
        ("update", "available", False, INSTANCE),
        ("provision_set", "deploying", False, INSTANCE),
        ("provision_set", "active", False, INSTANCE),
        ("provision_set", "deleting", False, INSTANCE),
        ("provision_set", "error", False, INSTANCE),
        ("update", "error", False, None),
    ]
    assert [message.at for message in told] == sorted({message.at for message in told})
    assert {(message.cell, message.agent, message.zone) for message in told} == {("c1", "c1-agent1", "z1")}


def test_a_deleted_node_is_published_as_deleted() -> None:
    async def story() -> Notification:
        bus = Notification()
        voice = BusNotifier(bus.publish, whose, Clock(lambda: NOW))
        bench = SimIronicPlayer(SimPlan(), a_node(), emit=voice)
        await spoken(bus, bench.act("delete"), bench=bench, voice=voice)
        return bus

    [message] = run(story()).messages
    assert message.deleted


@pytest.mark.parametrize("away", [0, 3])
def test_nodes_are_published_when_a_consumer_exists(away: int) -> None:
    async def story() -> Notification:
        bus = Notification(away)
        voice = BusNotifier(bus.publish, whose, Clock(lambda: NOW))
        voice.introduce(enrolled(1000, now=NOW))
        await spoken(bus, asyncio.sleep(0), bench=SimIronicPlayer(SimPlan()), voice=voice)
        return bus

    told = run(story()).messages
    assert len({message.node for message in told}) == len(told) == 1000


async def test_the_simulated_ironic_can_run_as_a_worker() -> None:
    stopping = asyncio.Event()
    async with Bus(LocalTransport(LocalBroker())) as bus, asyncio.TaskGroup() as group:
        ear = await bus.listen(IRONIC_NODE.at())
        voice = BusNotifier(bus.publish, whose, bus.clock)
        sim = Simulation(enrolled(3, now=bus.clock.now()), voice=voice, clock=bus.clock)
        serving = group.create_task(bus.serve(sim.worker(), stopping))
        async with asyncio.timeout(5):
            assert {(await ear.get()).event for _ in range(3)} == {"create"}
            node = next(iter(sim.conductor.nodes.values()))
            sim.works.begin(node, "deploy", "req-1")
            assert [(await ear.get()).provision_state for _ in range(2)] == ["deploying", "active"]
            stopping.set()
            await serving
