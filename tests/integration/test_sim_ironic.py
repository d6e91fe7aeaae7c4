"""The simulated Ironic on a real RabbitMQ: what arrives is what arrived from a real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aio_pika
import httpx
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity

from bus.errors import Unavailable
from bus.http import listen
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.notify import IronicExchange
from compute_sim.ironic.simulation import Simulation
from deploy.servers import RabbitMQ
from tests.support.servers import url_of
from tests.support.simulated_ironic import INSTANCE, NOW
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.services

KEYS = "ironic_versioned_notifications.*"
PLAN = SimPlan(step_time=Durations("constant", (0.005,)))

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


@asynccontextmanager
async def a_channel(url: str) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel()


@asynccontextmanager
async def client_of_server(sim: Simulation) -> AsyncIterator[httpx.AsyncClient]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sim.run())
        headers = {"X-OpenStack-Ironic-API-Version": "1.82"}
        async with httpx.AsyncClient(base_url=sim.url, headers=headers) as client:
            yield client
        task.cancel()


Ear = asyncio.Queue[AbstractIncomingMessage]


async def an_ear(channel: AbstractChannel, exchange: str) -> Ear:
    subscription: Ear = asyncio.Queue()
    await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=False)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, KEYS)
    await queue.consume(subscription.put, no_ack=True)
    return subscription


async def events(subscription: Ear, count: int) -> list[dict[str, Any]]:
    """The messages inside the next so many envelopes."""
    async with asyncio.timeout(60):
        return [json.loads(json.loads((await subscription.get()).body)["oslo.message"]) for _ in range(count)]


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


@pytest.mark.parametrize("confirms", [True, False])
async def test_the_simulated_life_cycle_sends_ironics_notifications(
    amqp_url: str, bus_name: str, confirms: bool
) -> None:
    exchange = f"ironic-{bus_name}"
    sink = IronicExchange(amqp_url, exchange=exchange, confirms=confirms)
    sim = Simulation([], plan=PLAN, sink=sink, listener=listen("127.0.0.1:0"))
    async with a_channel(amqp_url) as channel:
        subscription = await an_ear(channel, exchange)
        async with client_of_server(sim) as client:
            await live(client)
            messages = await events(subscription, len(LIFE))
    assert [facts(message) for message in messages] == LIFE
    assert sorted(messages, key=lambda message: message["timestamp"]) == messages
    assert len({message["message_id"] for message in messages}) == len(LIFE)


async def test_exchange_and_messages_equal_those_of_oslo_messaging(amqp_url: str, bus_name: str) -> None:
    exchange = f"ironic-{bus_name}"
    sim = Simulation(enrolled(1, now=NOW), sink=IronicExchange(amqp_url, exchange=exchange))
    async with a_channel(amqp_url) as channel, asyncio.TaskGroup() as group:
        task = group.create_task(sim.run())
        node = next(iter(sim.conductor.nodes.values()))
        sim.conductor.notify("update", "end", node, "req-1")
        async with asyncio.timeout(60):
            while not await exists(amqp_url, exchange):
                await asyncio.sleep(0.01)
        subscription = await an_ear(channel, exchange)  # refused unless it is a topic exchange, not durable
        sim.conductor.notify("provision_set", "error", node, "req-2")
        async with asyncio.timeout(60):
            envelope = await subscription.get()
        task.cancel()
    assert envelope.routing_key == "ironic_versioned_notifications.error"
    assert (envelope.content_type, envelope.content_encoding) == ("application/json", "utf-8")
    assert (envelope.delivery_mode, envelope.priority) == (2, 0)
    assert not envelope.headers


async def exists(url: str, exchange: str) -> bool:
    async with a_channel(url) as channel:
        try:
            await channel.get_exchange(exchange, ensure=True)
        except ChannelNotFoundEntity:
            return False
        return True


@pytest.mark.slow
async def test_notifications_during_a_broker_outage_are_sent_later(
    restarted_rabbitmq: RabbitMQ, bus_name: str
) -> None:
    rabbitmq, amqp_url = restarted_rabbitmq, url_of(restarted_rabbitmq)
    exchange = f"ironic-{bus_name}"
    sim = Simulation(
        enrolled(50, now=NOW, state="manageable"), sink=IronicExchange(amqp_url, exchange=exchange)
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sim.run())
        await asyncio.to_thread(rabbitmq.stop)
        for node in sim.conductor.nodes.values():
            sim.works.begin(node, "provide", "req-1")
        await asyncio.to_thread(rabbitmq.start)
        async with a_channel(amqp_url) as channel:
            subscription = await an_ear(channel, exchange)
            sim.conductor.notify("update", "end", node, "req-2")
            messages = await events(subscription, 1)
            while facts(messages[-1])[0] != "node.update.end":
                messages += await events(subscription, 1)
        task.cancel()
    assert len(messages) <= 101


@in_virtual_time
async def test_a_churn_keeps_to_its_rate() -> None:
    sim = Simulation(enrolled(500, now=NOW), plan=replace(PLAN, churn=400.0))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sim.run())
        await asyncio.sleep(15.0)
        task.cancel()
    assert sim.sent == pytest.approx(6000, rel=0.05)


def test_the_simulation_reports_its_address_and_refuses_invalid_ones() -> None:
    with listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        assert Simulation([], listener=taken).url == f"http://127.0.0.1:{port}"
        with pytest.raises(Unavailable, match="in use"):
            listen(f"127.0.0.1:{port}")
    for address in ("nonsense", "127.0.0.1:", "127.0.0.1:70000", ":80"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            listen(address)
