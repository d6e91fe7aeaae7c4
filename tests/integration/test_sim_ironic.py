"""The simulated Ironic on a real RabbitMQ: what arrives is what arrived from a real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import httpx
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from bus.http import listen
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.notifications import IronicExchange
from compute_sim.ironic.simulation import Simulation
from ironic_sync.exchanges import ForeignPublisher
from tests.support.simulated_ironic import INSTANCE, NOW
from tests.support.virtual_time import in_virtual_time

# Recorded from a real one: create, manage, provide, claim, deploy, undeploy, delete.
LIFE = [
    ("node.create.start", "enroll", None),
    ("node.create.end", "enroll", None),
    ("node.provision_set.start", "verifying", None),
    ("node.provision_set.end", "manageable", "power off"),
    ("node.power_state_corrected.success", "manageable", "power off"),
    ("node.provision_set.start", "cleaning", "power off"),
    ("node.provision_set.end", "available", "power off"),
    ("node.update.start", "available", "power off"),
    ("node.update.end", "available", "power off"),
    ("node.provision_set.start", "deploying", "power off"),
    ("node.provision_set.end", "active", "power off"),
    ("node.provision_set.start", "deleting", "power off"),
    ("node.provision_set.success", "cleaning", "power off"),
    ("node.provision_set.end", "available", "power off"),
    ("node.delete.start", "available", "power off"),
    ("node.delete.end", "available", "power off"),
]

Subscription = asyncio.Queue[AbstractIncomingMessage]


@asynccontextmanager
async def a_channel(url: str) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel()


async def subscribed(channel: AbstractChannel, exchange: str) -> Subscription:
    subscription: Subscription = asyncio.Queue()
    # RabbitMQ refuses this where the exchange exists and is no topic exchange, or is durable.
    await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=False)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, "ironic_versioned_notifications.*")
    await queue.consume(subscription.put, no_ack=True)
    return subscription


def facts(message: dict[str, Any]) -> tuple[str, str, str | None]:
    data = message["payload"]["ironic_object.data"]
    return message["event_type"].removeprefix("baremetal."), data["provision_state"], data["power_state"]


async def in_state(client: httpx.AsyncClient, state: str) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/v1/nodes/new")).json()["provision_state"] != state:
            await asyncio.sleep(0.002)


async def live(client: httpx.AsyncClient) -> None:
    await client.post("/v1/nodes", json={"driver": "fake-hardware", "name": "new"})
    for target, state in (("manage", "manageable"), ("provide", "available")):
        await client.put("/v1/nodes/new/states/provision", json={"target": target})
        await in_state(client, state)
    claim = [{"op": "add", "path": "/instance_uuid", "value": INSTANCE}]
    await client.patch("/v1/nodes/new", json=claim)
    for target, state in (("active", "active"), ("deleted", "available")):
        await client.put("/v1/nodes/new/states/provision", json={"target": target})
        await in_state(client, state)
    (await client.delete("/v1/nodes/new")).raise_for_status()


@pytest.mark.services
async def test_the_simulated_life_cycle_sends_ironics_notifications(amqp_url: str, bus_name: str) -> None:
    exchange = f"ironic-{bus_name}"
    simulation = Simulation(
        [],
        sink=IronicExchange(ForeignPublisher(amqp_url, exchange, "simulated Ironic")),
        listener=listen("127.0.0.1:0"),
    )
    async with a_channel(amqp_url) as channel, asyncio.TaskGroup() as group:
        subscription = await subscribed(channel, exchange)
        running = group.create_task(simulation.run())
        async with httpx.AsyncClient(base_url=simulation.url) as client:
            await live(client)
        async with asyncio.timeout(60):
            received = [await subscription.get() for _ in LIFE]
        running.cancel()
    assert [facts(json.loads(json.loads(one.body)["oslo.message"])) for one in received] == LIFE
    assert {one.routing_key for one in received} == {"ironic_versioned_notifications.info"}
    for one in received:  # as oslo.messaging sends them
        assert (one.content_type, one.content_encoding) == ("application/json", "utf-8")
        assert (one.delivery_mode, one.priority, one.headers) == (2, 0, {})


@in_virtual_time
async def test_a_churn_keeps_to_its_rate() -> None:
    plan = SimPlan(step_time=Durations("constant", (0.005,)), churn=400.0)
    simulation = Simulation(enrolled(500, now=NOW), plan=plan)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(simulation.run())
        await asyncio.sleep(15.0)
        task.cancel()
    assert simulation.sent == pytest.approx(6000, rel=0.05)
