"""Measures calls of Nova's scheduler RPC per second, as Nova's conductors send them.

The hosts are rows in tables of Nova (deploy/nova_tables.py), without a Nova. RabbitMQ, PostgreSQL, placement,
one scheduler and the bridge are processes. Each call is for one new instance of one of 20 flavors; it is
answered when the instance has its claim.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

import asyncpg
import uvloop
from sqlalchemy.engine import make_url

from bench.figures import Figure
from bench.loading import NotClean, a_worker
from bench.own_servers import broker_and_database, of_berth, own_directory
from bench.placement_http import FlatHost, MeasuredPlacement
from bench.processes import in_all, processor_time, share_of
from berth.loadtest import percentile
from bus.clock import Clock, monotonic
from bus.errors import BrokerRefused, Unavailable
from deploy.nova_tables import CELL0, add_cell, add_host, nova_tables
from deploy.servers import free_port
from features.nova.core.objects import versioned
from features.nova.oslo.client import RpcClient
from features.nova.oslo.server import RpcAddress, RpcCall, RpcFailure

AT_ONCE = 32
FLAVORS = 20
ROOM = {"VCPU": 1024, "MEMORY_MB": 262_144, "DISK_GB": 4000}
_DATABASES = ("nova_api", "nova_cell0", "nova_cell1")
_VERSION = 72  # of the compute services: newer ones set a trait on their providers
_PATIENCE = 120.0
_CALL_SECONDS = 60.0
_CLOCK = Clock(chance=random.Random(1))


class Calls:
    """Sends calls of select_destinations, and stores their latencies in seconds."""

    def __init__(self, amqp_url: str) -> None:
        self.client = RpcClient(RpcAddress(url=amqp_url, exchange="nova", topic="scheduler"), name="bench")
        self.latencies: list[float] = []
        self._made = 0

    async def is_answered(self) -> bool:
        """Return whether a call gets a host: the bridge runs, and the scheduler has received the hosts."""
        try:
            await self.one()
        except (Unavailable, BrokerRefused, RpcFailure):
            return False
        return True

    async def many(self, calls: int, at_once: int) -> float:
        """Send this number of calls, `at_once` of them concurrently; return how many were answered per
        second.
        """
        left = iter(range(calls))
        self.latencies.clear()

        async def some() -> None:
            for _ in left:
                await self.one()

        began = monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(some())
        return calls / (monotonic() - began)

    async def one(self) -> None:
        self._made += 1
        instance = _CLOCK.uuid()
        args = {
            "spec_obj": request_spec(instance, self._made % FLAVORS),
            "instance_uuids": [instance],
            "return_objects": True,
            "return_alternates": True,
        }
        context = {"request_id": f"req-{instance}"}
        began = monotonic()
        found = await self.client.forward(
            RpcCall("select_destinations", "4.5", "", args, context), _CALL_SECONDS
        )
        self.latencies.append(monotonic() - began)
        if not (isinstance(found, list) and found and found[0]):
            raise NotClean(f"a call was answered without a host: {found}")


def request_spec(instance: str, flavor: int) -> dict[str, object]:
    """Return a RequestSpec for an instance of one of several flavors, as Nova's conductor encodes it."""
    size = {"vcpus": 1 + flavor % 8, "memory_mb": 512 * (1 + flavor % 16), "root_gb": 1 + flavor}
    fields = {
        "instance_uuid": instance,
        "num_instances": 1,
        "project_id": "p1",
        "user_id": "u1",
        "is_bfv": False,
        "image": None,
        "flavor": versioned(
            "Flavor", "1.2",
            {"name": f"flavor-{flavor}", "ephemeral_gb": 0, "swap": 0, "extra_specs": {}, **size},
        ),
    }  # fmt: skip
    return versioned("RequestSpec", "1.15", fields)


async def add_hosts(stack: AsyncExitStack, database_url: str, hosts: Sequence[FlatHost]) -> str:
    """Create databases with Nova's tables and the given hosts; return the URL of the API database."""
    server = make_url(database_url)
    connection = await asyncpg.connect(server.set(drivername="postgresql").render_as_string(False))
    for name in _DATABASES:
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    api, cell0, cell = [
        await stack.enter_async_context(
            nova_tables(server.set(database=name).render_as_string(False), is_api=name == "nova_api")
        )
        for name in _DATABASES
    ]
    await add_cell(api, cell0, CELL0)
    cell_id = await add_cell(api, cell, _CLOCK.uuid())
    for host in hosts:
        await add_host(api, cell, host.name, host.id, cell_id=cell_id, version=_VERSION)
    return api.url


async def measured(amqp_url: str, database_url: str, hosts: int, calls: int) -> list[Figure]:
    fleet = [FlatHost(f"host-{number}", ROOM, _CLOCK.uuid()) for number in range(hosts)]
    address = f"127.0.0.1:{free_port()}"
    async with AsyncExitStack() as stack:
        url = await add_hosts(stack, database_url, fleet)
        conf = stack.enter_context(own_directory()) / "nova.conf"
        conf.write_text("[DEFAULT]\nservice_down_time = 86400\n")
        environment = of_berth(
            amqp_url, database_url, 1, 1, nova_amqp_url=amqp_url, nova_database_url=url, nova_conf=conf
        )  # fmt: skip
        stack.enter_context(a_worker(environment, "placement", "--http", address))
        placement = MeasuredPlacement(f"http://{address}")
        await _until_ready(placement)
        await placement.load(fleet)
        placement.client.close()
        for name in ("scheduler", "nova"):
            stack.enter_context(a_worker(environment, name))
        calls_ = Calls(amqp_url)
        stack.push_async_callback(calls_.client.close)
        until = monotonic() + _PATIENCE
        while not await calls_.is_answered():
            if monotonic() > until:
                raise NotClean("no call of the scheduler's RPC gets a host")
            await asyncio.sleep(0.5)
        await calls_.many(200, AT_ONCE)  # warm-up
        await calls_.many(max(calls // 10, 50), 1)
        alone = percentile(calls_.latencies, 0.5)
        before = processor_time()
        rate = await calls_.many(calls, AT_ONCE)
        cost = share_of(before, processor_time(), calls)
        p99 = percentile(calls_.latencies, 0.99)
    return [
        Figure("calls/s", rate, "/s", "up"),
        Figure("processor a call", in_all(cost), "ms", "down", "processor"),
        Figure("processor of nova", cost["nova"], "ms", "down", "processor"),
        Figure(f"{AT_ONCE} at once: p99", p99 * 1000, "ms", "down"),
        Figure("one at a time: p50", alone * 1000, "ms", "down"),
    ]


async def _until_ready(placement: MeasuredPlacement) -> None:
    until = monotonic() + _PATIENCE
    while True:
        try:
            await placement.client.must("GET", "/")
        except (OSError, SystemExit):
            if monotonic() > until:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def measure(hosts: int, calls: int) -> tuple[Figure, ...]:
    with broker_and_database() as (amqp_url, database_url):
        return tuple(uvloop.run(measured(amqp_url, database_url, hosts, calls)))
