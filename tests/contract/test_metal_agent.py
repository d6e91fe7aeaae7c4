"""The bare-metal agent before a simulated Ironic: builds, tear-downs, and orders under a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import NoAnswer
from bus.leases import LeaseAnswered, LeaseAsked, NodeLent
from bus.messages import BuildOrdered, DestroyOrdered
from compute_sim.ironic.conductor import SimPlan
from ironic_sync.agent.core.node import SEEN
from ironic_sync.agent.core.steps import UNDONE
from ironic_sync.agent.lease import NodeLease
from tests.support.conductor_builders import CELL
from tests.support.metal_agent_world import AGENT, CALLS_BACK, QUIET, SLOW, US, MetalWorld, metal_world
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_build_ends_active_and_its_destroy_ends_with_a_free_node() -> None:
    async with metal_world() as world:
        assert await world.order(world.build()) == [("built", "")]
        assert world.state() == ("active", US)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))
        assert world.waiting() == 0


@in_virtual_time
async def test_a_destroy_ends_when_the_node_is_released_and_cleaning() -> None:
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert world.state() == ("cleaning", None)


@in_virtual_time
async def test_a_repeated_order_is_built_once() -> None:
    async with metal_world(SLOW) as world:
        await world.bus.publish(world.build(), world.build())
        assert await world.next_report() == ("built", "")
        assert await world.silence()
        assert await world.order(world.build()) == [("built", "")]
        assert sum(call.endswith("/states/provision") for call in world.line.calls) == 1
        assert world.waiting() == 0


@pytest.mark.parametrize(
    ("method", "status"), [("PUT", 500), ("PUT", 400), ("PUT", 403), ("PATCH", 400), ("PATCH", 403)]
)
@in_virtual_time
async def test_a_refusal_by_ironic_fails_the_attempt(method: str, status: int) -> None:
    """After the failure the node is available, and no instance is recorded on it."""
    async with metal_world() as world:
        world.line.refused = {method: status}
        assert await world.order(world.build()) == [("failed", f"Ironic refused ({status}): not here")]
        assert world.state() == ("available", None)


@in_virtual_time
async def test_an_agent_works_without_permission_to_store_its_record() -> None:
    async with metal_world(SLOW) as world:
        world.line.refused = {"PATCH": 403}
        assert await world.order(world.destroy()) == [("destroyed", "")]
        world.line.refused = {}
        world.ironic.conductor.plan_fault(world.nodes[0], "deploy", "step")
        await world.bus.publish(world.build(attempt=2))
        await world.until(lambda: world.state() == ("deploying", US))
        world.line.refused = {"PATCH": 403}
        outcome, cause = await world.next_report()
        assert (outcome, "the image could not be written" in cause) == ("failed", True)
        assert world.state()[1] is None


@in_virtual_time
async def test_a_failed_deploy_is_undone_before_it_is_reported() -> None:
    async with metal_world() as world:
        world.ironic.conductor.plan_fault(world.nodes[0], "deploy", "step")
        (reply,) = await world.order(world.build())
        why = "Deploy step deploy.deploy failed: the image could not be written"
        assert reply == ("failed", f"the node is deploy failed: {why}")
        assert world.state()[1] is None, "the next attempt may take the instance elsewhere at once"
        assert not world.leftover
        assert await world.order(world.build(node=1, attempt=2)) == [("built", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_failed_deploy_without_tear_down_is_reported_and_destroyed() -> None:
    async with metal_world() as world:
        for work in ("deploy", "delete"):
            world.ironic.conductor.plan_fault(world.nodes[0], work, "step")
        ((outcome, _),) = await world.order(world.build())
        assert (outcome, world.leftover, world.state()) == ("failed", True, ("error", None))
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_failing_tear_down_is_retried_with_pauses() -> None:
    async with metal_world(SimPlan(fail=1.0)) as world:
        seen = {SEEN: [{"build": US, "attempt": 1}]}
        world.ironic.conductor.change(world.nodes[0], provision_state="active", instance_uuid=US, extra=seen)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(QUIET)
        assert 5 < sum(call.endswith("/states/provision") for call in world.line.calls) < 50


@in_virtual_time
async def test_a_protected_instance_is_destroyed_when_its_protection_ends() -> None:
    async with metal_world() as world:
        await world.order(world.build())
        world.ironic.conductor.change(world.nodes[0], protected=True)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(60.0)
        assert world.state() == ("active", US)
        world.ironic.conductor.change(world.nodes[0], protected=False)
        assert await world.next_report() == ("destroyed", "")


@pytest.mark.parametrize("state", ["deploying", "wait call-back", "deploy hold"])
@in_virtual_time
async def test_a_destroy_ends_a_deploy_in_any_state(state: str) -> None:
    async with metal_world(CALLS_BACK) as world:
        await world.bus.publish(world.build())
        await world.until(
            lambda: world.state() == ("wait call-back" if state == "deploy hold" else state, US)
        )
        world.ironic.conductor.change(world.nodes[0], provision_state=state)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert world.state()[1] is None
        assert await world.silence(), "of the build nothing is heard any more"
        assert world.state() == ("available", None)
        assert world.waiting() == 0
        assert await world.order(world.build()) == [("destroyed", "")]


@in_virtual_time
async def test_a_destroy_before_its_build_prevents_the_build() -> None:
    async with metal_world() as world:
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.kill()
        world.start()
        assert await world.order(world.build()) == [("failed", UNDONE)]
        assert world.state() == ("available", None)
        assert await world.order(world.build(attempt=2)) == [("built", "")]


@in_virtual_time
async def test_the_next_attempt_waits_for_the_tear_down_of_the_previous_one() -> None:
    """Ironic permits an instance on one node only."""
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        await world.bus.publish(world.build(node=1, attempt=2), world.destroy())
        assert [await world.next_report(), await world.next_report()] == [("destroyed", ""), ("built", "")]
        assert (world.state(0)[1], world.state(1)) == (None, ("active", US))


# Shared nodes

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
    async with metal_world(lease=lease, progress_every=1e6) as world:
        yield world, lender


def under(epoch: int, order: BuildOrdered | DestroyOrdered) -> BuildOrdered | DestroyOrdered:
    return replace(order, epoch=epoch)


@in_virtual_time
async def test_orders_for_leased_nodes_are_done_under_their_epoch() -> None:
    async with shared() as (world, lender):
        lender.lend(world.nodes[0].uuid, 3)
        await world.bus.publish(under(3, world.build()))
        async with asyncio.timeout(QUIET):
            message = await world.reports.get()
        assert (message.outcome, message.epoch) == ("built", 3)


@pytest.mark.parametrize("epoch", [0, 3], ids=["of another agent", "leased again"])
@in_virtual_time
async def test_orders_for_a_node_that_is_not_leased_under_their_epoch_are_dropped(epoch: int) -> None:
    async with shared() as (world, lender):
        lender.lend(world.nodes[0].uuid, epoch)
        await world.bus.publish(under(2, world.build()), under(2, world.destroy()))
        assert await world.silence()
        assert (world.calls(), world.waiting()) == ([], 0)


@in_virtual_time
async def test_an_order_that_arrives_before_its_lease_is_done() -> None:
    async with shared() as (world, lender):
        await asyncio.sleep(0.6)
        lender.lend(world.nodes[0].uuid, 1)
        await world.bus.publish(under(1, world.build()))
        assert await world.next_report() == ("built", "")


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


@in_virtual_time
async def test_a_stopping_agent_releases_its_lease() -> None:
    lender = Lender()
    time = asyncio.get_running_loop().time
    lease = NodeLease(AGENT, "pool", CELL, lender.answer, Clock(now=time, monotonic=time))
    async with metal_world(lease=lease) as world:
        await world.kill()
        await lease.leave()
        assert lender.questions[-1].leaves
        assert not lease.good()
