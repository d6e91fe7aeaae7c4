"""Measures claims per second over the bus (on many hosts, and on one) and over HTTP.

The servers are RabbitMQ, PostgreSQL and one placement worker as a process. Over the bus, 100 claims are sent
in one message, as by schedulers; over HTTP each client sends one request after the other.
"""

import asyncio
from collections.abc import Sequence

import uvloop

from bench.figures import Figure
from bench.loading import NotClean, a_worker, placement_answers
from bench.own_servers import broker_and_database, of_berth
from bench.placement_http import CLIENTS, FlatHost, MeasuredPlacement
from berth import composition
from berth.settings import Settings
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.clock import monotonic
from bus.delivery.runner import Bus
from deploy.servers import free_port

AT_ONCE = 100
ASKERS = 4
ASKED = {"VCPU": 1, "MEMORY_MB": 512}
ROOM = {"VCPU": 2**31 - 1, "MEMORY_MB": 2**31 - 1, "DISK_GB": 2**31 - 1}


async def measured(amqp_url: str, database_url: str, port: int, hosts: int, seconds: float) -> list[Figure]:
    settings = Settings().having(amqp_url=amqp_url, database_url=database_url)
    placement = MeasuredPlacement(f"http://127.0.0.1:{port}")
    fleet = [FlatHost(f"host-{number}", ROOM) for number in range(hosts)]
    async with Bus(composition.transport(settings, "bench")) as bus:
        await placement_answers(bus)
        await placement.load(fleet)
        await claims(bus, fleet, min(seconds, 1.0))  # warm-up
        by_bus = await claims(bus, fleet, seconds)
        hot = await claims(bus, fleet[:1], seconds)
    by_http = await placement.puts(fleet, seconds)
    placement.client.close()
    return [
        Figure("claims over the bus", by_bus, "/s", "up"),
        Figure("claims over the bus, all on one host", hot, "/s", "up"),
        Figure(f"PUT allocations over HTTP, {CLIENTS} clients", by_http, "/s", "up"),
    ]


async def claims(bus: Bus, fleet: Sequence[FlatHost], seconds: float) -> float:
    """Return the claims per second over the bus; each claim is by a new consumer on the next host."""
    ask = bus.asker_of_many(topics.CLAIM, timeout=60.0)
    made = 0
    began = monotonic()

    async def some(first: int) -> None:
        nonlocal made
        turn = first
        while monotonic() - began < seconds:
            orders = []
            for _ in range(AT_ONCE):
                choice = Choice({fleet[turn % len(fleet)].id: ASKED})
                claim = ConsumerClaim(consumer=bus.clock.uuid(), generation=None, choices=(choice,))
                orders.append(ClaimRequested(claims=(claim,)))
                turn += ASKERS
            for answer in await ask(orders):
                (result,) = answer.results
                if not isinstance(result, Claimed):
                    raise NotClean(f"a claim was refused: {result}")
            made += AT_ONCE

    async with asyncio.TaskGroup() as group:
        for first in range(ASKERS):
            group.create_task(some(first))
    return made / (monotonic() - began)


def measure(hosts: int = 1000, seconds: float = 4.0) -> tuple[Figure, ...]:
    port = free_port()
    with broker_and_database() as (amqp_url, database_url):
        with a_worker(of_berth(amqp_url, database_url, 1, 1), "placement", "--http", f"127.0.0.1:{port}"):
            return tuple(uvloop.run(measured(amqp_url, database_url, port, hosts, seconds)))
