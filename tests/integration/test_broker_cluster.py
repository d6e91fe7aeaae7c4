"""If one of three RabbitMQ nodes is killed or suspended, berth continues at the others and loses nothing."""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from bus.errors import Unavailable, Unconfirmed
from bus.protocol import QueueSpec
from bus.rabbit import RabbitTransport
from bus.rabbit.connection import address_of
from deploy.rabbitmq import RabbitMQ, RabbitMQCluster
from deploy.servers import find_rabbitmq
from tests.support.envelopes import an_envelope, number_in
from tests.support.servers import installed
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.soak]

SHARED = QueueSpec("shared", ("build.requested",))
PRIVATE = QueueSpec("private", ("build.requested",), durable=False)


@pytest.fixture(scope="module")
def cluster(_server_directory: Path) -> Iterator[RabbitMQCluster]:
    installed(find_rabbitmq)
    with RabbitMQCluster(_server_directory / "cluster") as nodes:
        yield nodes


class Traffic:
    """Publishes numbers steadily, and records which of them each queue has delivered."""

    def __init__(self, cluster: RabbitMQCluster, exchange: str) -> None:
        self._cluster = cluster
        self.publisher, self.reader = (RabbitTransport(cluster.url, exchange=exchange) for _ in range(2))
        self.published: set[int] = set()
        self.received: dict[str, set[int]] = {SHARED.name: set(), PRIVATE.name: set()}
        self._numbers = itertools.count()
        self.is_publishing = True
        self.refusals: list[str] = []  # why a publication failed

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.publisher.open()
        await self.reader.open()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._read(spec)) for spec in (SHARED, PRIVATE)]
                await until(lambda: len(self.reader._inboxes) == 2)
                publishing = [group.create_task(self._publish()) for _ in range(10)]
                yield
                await until(lambda: len(self.published) > 300)
                self.is_publishing = False
                await asyncio.wait(publishing)
                await until(lambda: self.published <= self.received[SHARED.name], picture=self._missing)
                for task in tasks:
                    task.cancel()
        finally:
            await self.publisher.close()
            await self.reader.close()

    async def _publish(self) -> None:
        while self.is_publishing:
            number = next(self._numbers)
            try:
                await self.publisher.publish([an_envelope(number)], expected=[True])
                self.published.add(number)
            except Unavailable as problem:  # else the group ends, and the test waits without traffic
                self.refusals.append(str(problem))
            await asyncio.sleep(0.2)

    async def _read(self, spec: QueueSpec) -> None:
        inbox = await self.reader.consume(spec, 50)
        while True:
            delivery = await inbox.get()
            self.received[spec.name].add(number_in(delivery))
            delivery.done()

    def _missing(self) -> str:
        return f"missing: {sorted(self.published - self.received[SHARED.name])}"

    def node_of_reader(self) -> RabbitMQ:
        session = self.reader._link._session
        assert session is not None
        [node] = [node for node in self._cluster.nodes if f":{node.port}" in address_of(session.connection)]
        return node

    async def gap_after(self, happens: Callable[[], Awaitable[object] | object]) -> dict[str, float]:
        """Return, for each queue, the seconds until a message that was published later is received."""
        began = time.monotonic()
        result = happens()
        if isinstance(result, Awaitable):
            await result
        first = next(self._numbers)
        gaps: dict[str, float] = {}

        def all_receive() -> bool:
            for name, numbers in self.received.items():
                if max(numbers, default=-1) > first:
                    gaps.setdefault(name, time.monotonic() - began)
            return len(gaps) == len(self.received)

        await until(all_receive, picture=lambda: (gaps, self.refusals[-1:]), seconds=120)
        return gaps


@pytest.fixture
async def traffic(cluster: RabbitMQCluster, bus_name: str) -> AsyncIterator[Traffic]:
    made = Traffic(cluster, bus_name)
    async with made.running():
        await until(lambda: all(len(numbers) > 20 for numbers in made.received.values()))
        yield made


async def test_after_the_kill_of_its_node_a_consumer_receives_at_another_within_15_seconds(
    cluster: RabbitMQCluster, traffic: Traffic
) -> None:
    node = traffic.node_of_reader()
    gaps = await traffic.gap_after(lambda: asyncio.to_thread(node.kill))
    print(f"receives again after the kill of its node: {gaps}")
    assert traffic.node_of_reader() is not node
    assert max(gaps.values()) < 15 and traffic.refusals == []
    late = QueueSpec("late", ("build.requested",))
    await traffic.reader.declare(late)  # while a node is away
    await asyncio.to_thread(cluster.start)

    async def is_whole() -> bool:
        return await online(cluster, traffic.reader, late) == 3

    await until(is_whole)


async def test_first_messages_during_the_election_of_a_leader_are_confirmed_within_15_seconds(
    cluster: RabbitMQCluster, bus_name: str
) -> None:
    """A channel of RabbitMQ 3.10 that publishes its first message then refuses all messages of that queue."""
    transport = RabbitTransport(cluster.url, exchange=bus_name)
    await transport.open()
    await transport.declare(SHARED)
    await transport.close()
    leader = (await leaders(cluster, bus_name))[0].partition("@")[0]
    [killed] = [node for node in cluster.nodes if node.directory.name == leader]
    urls = [node.url for node in cluster.nodes if node is not killed]
    async with AsyncExitStack() as stack:
        publishers = [RabbitTransport(url, exchange=bus_name) for url in urls * 10]
        for publisher in publishers:
            await publisher.open()
            stack.push_async_callback(publisher.close)
        await asyncio.to_thread(killed.kill)
        async with asyncio.timeout(15), asyncio.TaskGroup() as group:
            for number, publisher in enumerate(publishers):
                group.create_task(publisher.publish([an_envelope(number)], expected=[True]))
    await asyncio.to_thread(cluster.start)


async def test_ends_during_the_outage_of_a_node_are_in_a_quorum_queue_and_not_in_a_classic_queue_of_the_node(
    cluster: RabbitMQCluster, bus_name: str
) -> None:
    """RabbitMQ 3.10 confirms and drops messages for the classic queue; RabbitMQ 4 refuses them."""
    healthy, _, down = cluster.nodes
    transport = RabbitTransport(healthy.url, exchange=bus_name)
    await transport.open()
    async with await aio_pika.connect(down.url) as client:  # classic queues are on the node of their client
        channel = await client.channel()
        for kind in ("classic", "quorum"):
            arguments: dict[str, Any] = {"x-queue-type": kind}
            queue = await channel.declare_queue(f"{bus_name}:{kind}", durable=True, arguments=arguments)
            await queue.bind(bus_name, "build.ended.#")
    await asyncio.to_thread(down.kill)
    ends = [an_envelope(number, "build.ended.c1") for number in range(20)]
    outcomes = await asyncio.gather(
        *(transport.publish([end], expected=[True]) for end in ends), return_exceptions=True
    )
    await asyncio.to_thread(cluster.start)
    await transport.publish([an_envelope(20, "build.ended.c1")], expected=[True])
    await transport.close()
    is_3_10 = "rabbitmq_server-3.10" in str(find_rabbitmq().server.resolve())
    assert [type(outcome) for outcome in outcomes] == [type(None) if is_3_10 else Unconfirmed] * 20
    assert await held(healthy, f"{bus_name}:classic", last=20) == [20]
    assert await held(healthy, f"{bus_name}:quorum", last=20) == [*range(21)]


async def held(node: RabbitMQ, name: str, *, last: int) -> list[int]:
    """Return the numbers that a queue holds up to the last one."""
    numbers: set[int] = set()
    async with await aio_pika.connect(node.url) as client:
        queue = await (await client.channel()).get_queue(name)
        async with asyncio.timeout(20), queue.iterator(no_ack=True) as messages:
            async for message in messages:
                content = json.loads(message.body)
                frame = content if isinstance(content, list) else [{"body": content}]
                numbers |= {envelope["body"]["n"] for envelope in frame}
                if last in numbers:
                    break
    return sorted(numbers)


async def leaders(cluster: RabbitMQCluster, bus_name: str) -> list[str]:
    listed = await asyncio.to_thread(cluster.nodes[0].control, "list_queues", "name", "leader")
    return [line.split()[1] for line in listed.splitlines() if line.startswith(f"{bus_name}:")]


async def test_leaders_of_queues_are_spread_over_the_nodes(cluster: RabbitMQCluster, bus_name: str) -> None:
    transport = RabbitTransport(cluster.url, exchange=bus_name)
    await transport.open()
    await transport.declare(*(QueueSpec(f"q{number}", ("build.requested",)) for number in range(6)))
    await transport.close()
    nodes = await leaders(cluster, bus_name)
    assert len(nodes) == 6
    assert len(set(nodes)) > 1


async def online(cluster: RabbitMQCluster, transport: RabbitTransport, queue: QueueSpec) -> int:
    """Return the number of running members of a quorum queue."""
    listed = await asyncio.to_thread(cluster.nodes[0].control, "list_queues", "name", "online")
    [line] = [line for line in listed.splitlines() if transport._link.names.queue(queue.name) in line]
    return line.count("@")


async def test_a_suspended_node_is_noticed_within_seconds(traffic: Traffic) -> None:
    node = traffic.node_of_reader()
    pid = node.pid
    assert pid is not None
    try:
        gaps = await traffic.gap_after(lambda: os.kill(pid, signal.SIGSTOP))
        print(f"receives again after its node was suspended: {gaps}")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert max(gaps.values()) < 30
