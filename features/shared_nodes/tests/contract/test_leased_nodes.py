"""The bare-metal agent before a simulated Ironic: orders under a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import NoAnswer
from bus.messages import BuildOrdered, DestroyOrdered
from features.shared_nodes.lease import NodeLease
from features.shared_nodes.messages import LeaseAnswered, LeaseAsked, NodeLent
from tests.support.conductor_builders import CELL
from tests.support.metal_agent_world import AGENT, QUIET, MetalWorld, metal_world
from tests.support.virtual_time import in_virtual_time

SECONDS = 2.0


class Lender:
    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.version = 0
        self.away = False
        self.questions: list[LeaseAsked] = []

    def lend(self, root: str, epoch: int) -> None:
        self.nodes[root] = epoch
        self.version += 1

    async def answer(self, asked: LeaseAsked) -> LeaseAnswered:
        self.questions.append(asked)
        if self.away:
            await asyncio.sleep(1.0)
            raise NoAnswer("no conductor is there")
        nodes = tuple(NodeLent(root, epoch) for root, epoch in self.nodes.items())
        return LeaseAnswered(epoch=1, seconds=SECONDS, version=self.version, nodes=nodes)


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[MetalWorld, Lender]]:
    lender = Lender()
    time = asyncio.get_running_loop().time
    lease = NodeLease(AGENT, "pool", CELL, lender.answer, Clock(now=time, monotonic=time))
    async with metal_world(right=lease, pool="pool", progress_every=1e6) as world:
        yield world, lender


def under(epoch: int, order: BuildOrdered | DestroyOrdered) -> BuildOrdered | DestroyOrdered:
    return replace(order, epoch=epoch)


@pytest.mark.parametrize("epoch", [0, 3], ids=["of another agent", "leased again"])
@in_virtual_time
async def test_orders_for_a_node_that_is_not_leased_under_their_epoch_are_dropped(epoch: int) -> None:
    async with shared() as (world, lender):
        lender.lend(world.nodes[0].uuid, epoch)
        await world.bus.publish(under(2, world.build()), under(2, world.destroy()))
        assert await world.silence()
        assert (world.calls(), world.waiting()) == ([], 0)


@in_virtual_time
async def test_orders_wait_while_the_lease_is_lost() -> None:
    async with shared() as (world, lender):
        lender.lend(world.nodes[0].uuid, 1)
        await asyncio.sleep(1.0)
        lender.away = True
        await asyncio.sleep(SECONDS)
        await world.bus.publish(under(1, world.build()))
        await asyncio.sleep(60.0)
        assert world.calls() == []
        lender.away = False
        assert await world.next_report() == ("built", "")


@in_virtual_time
async def test_a_node_leased_again_is_read_from_ironic() -> None:
    async with shared() as (world, lender):
        lender.lend(world.nodes[0].uuid, 1)
        await world.bus.publish(under(1, world.build()))
        assert await world.next_report() == ("built", "")
        lender.lend(world.nodes[0].uuid, 3)
        world.ironic.conductor.change(world.nodes[0], provision_state="available", instance_uuid=None)
        await world.bus.publish(under(3, world.build()))
        async with asyncio.timeout(QUIET):
            message = await world.reports.get()
        assert (message.outcome, message.epoch) == ("failed", 3)


@in_virtual_time
async def test_the_loss_of_a_node_is_confirmed_after_the_last_write() -> None:
    async with shared() as (world, lender):
        root = world.nodes[0].uuid
        lender.lend(root, 1)
        world.line.slow = 1.2
        await world.bus.publish(under(1, world.build()))
        await world.until(lambda: "PATCH" in world.line.sent)
        lender.lend(root, 0)
        lost_at = lender.version
        await asyncio.sleep(0.7)
        assert world.calls() == [] and lender.questions[-1].seen < lost_at
        await asyncio.sleep(2.0)
        assert lender.questions[-1].seen == lost_at
        assert world.calls() == [f"PATCH /v1/nodes/{root}"]
        assert await world.silence()
