"""The simulated Ironic on berth's own bus: the truth about each node, and nothing that was only asked for."""

import asyncio
from collections.abc import Sequence

from bus.clock import Clock
from bus.errors import Unroutable
from bus.ironic import NodeChanged
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import SimNode, enrolled
from tests.support.bus_notifier import BusNotifier
from tests.support.simulated_ironic import INSTANCE, NOW, OTHER, SimIronicPlayer, a_node
from tests.support.virtual_time import in_virtual_time


def whose(node: SimNode) -> tuple[str, str, str]:
    return "c1", f"{node.conductor_group or 'c1'}-agent1", "z1"


class AwayBus:
    def __init__(self, away: int) -> None:
        self.away = away
        self.messages: list[NodeChanged] = []

    async def publish(self, *messages: NodeChanged) -> None:
        if self.away:
            self.away -= 1
            raise Unroutable("no queue is bound to ironic.node.create")
        self.messages += messages


def facts(message: NodeChanged) -> tuple[str, str | None, bool, str | None]:
    return message.event, message.provision_state, message.maintenance, message.instance_uuid


async def published(*acts: str, away: int = 0, nodes: Sequence[SimNode] = ()) -> list[NodeChanged]:
    """Play acts on a node, and return what is published meanwhile; at first the bus may be away."""
    bus = AwayBus(away)
    voice = BusNotifier(bus.publish, whose, Clock(lambda: NOW))
    voice.introduce(nodes)
    bench = SimIronicPlayer(SimPlan(), a_node(), emit=voice)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(voice.run()), group.create_task(bench.conductor.run())]
        for words in (*acts, "wait 60"):
            await bench.attempt(words)
            await asyncio.sleep(60)
        for task in tasks:
            task.cancel()
    return bus.messages


@in_virtual_time
async def test_every_change_is_published_and_requests_are_not() -> None:
    sent = await published(
        "claim", f"claim {OTHER}", "fault delete step", "provision active", "provision deleted", "delete"
    )
    assert [facts(message) for message in sent] == [
        ("update", "available", False, INSTANCE),
        ("provision_set", "deploying", False, INSTANCE),
        ("provision_set", "active", False, INSTANCE),
        ("provision_set", "deleting", False, INSTANCE),
        ("provision_set", "error", False, INSTANCE),
        ("update", "error", False, None),
    ]
    assert [message.at for message in sent] == sorted({message.at for message in sent})
    assert {(message.cell, message.agent, message.zone) for message in sent} == {("c1", "c1-agent1", "z1")}


@in_virtual_time
async def test_a_deleted_node_is_published_as_deleted() -> None:
    [message] = await published("delete")
    assert message.deleted


@in_virtual_time
async def test_nodes_are_published_when_a_consumer_exists() -> None:
    sent = await published(away=3, nodes=enrolled(1000, now=NOW))
    assert len({message.node for message in sent}) == len(sent) == 1000
