"""The queue of one of fifty clients confirms nothing: the results for all others go on, and none is lost."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from bus import topics
from bus.delivery import failed_messages
from bus.messages import BuildRequested, BuildUnplaceable
from bus.rabbit import RabbitTransport
from bus.requests import Flavor
from bus.worker import Outcome, Worker, on_many
from deploy.rabbitmq import RabbitMQ, RabbitMQCluster
from deploy.servers import find_rabbitmq
from tests.support.buses import serving
from tests.support.servers import installed
from tests.support.waiting import until

pytestmark = pytest.mark.services

CLIENTS = [f"c{number}" for number in range(50)]
STUCK = "c7"
OTHERS = frozenset(CLIENTS) - {STUCK}


@pytest.fixture(scope="module")
def broker(_server_directory: Path) -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    with RabbitMQ(_server_directory / "stuck") as node:
        yield node


async def refuse(requests: Sequence[BuildRequested]) -> Sequence[Outcome]:
    return [
        BuildUnplaceable(
            request=each.request, instances=each.instances, reason="full", reply_to=each.reply_to
        )
        for each in requests
    ]


def a_worker() -> Worker:
    row = on_many(topics.BUILD_REQUESTED, refuse, emits=[topics.BUILD_UNPLACEABLE], concurrency=1)
    return Worker("scheduler", consumes=[row])


def a_request(number: int, reply_to: str) -> BuildRequested:
    id_ = f"00000000-0000-0000-0000-{number:012d}"
    return BuildRequested(
        request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1), reply_to=reply_to
    )


class StuckClients:
    """Fifty clients, each with a durable quorum queue for its results."""

    def __init__(self, url: str, exchange: str) -> None:
        self.received: dict[str, set[int]] = defaultdict(set)
        self._url, self._exchange = url, exchange

    def queue(self, client: str) -> str:
        return f"{self._exchange}.client.{client}.1"

    @asynccontextmanager
    async def connected(self, clients: Iterable[str] = CLIENTS) -> AsyncIterator[None]:
        """Declare the queues of clients, and read all of them."""
        async with await aio_pika.connect_robust(self._url) as connection:
            channel = await connection.channel()
            for client in clients:
                queue = await channel.declare_queue(
                    self.queue(client), durable=True, arguments={"x-queue-type": "quorum"}
                )
                await queue.bind(self._exchange, f"build.unplaceable.{client}")
                await queue.consume(self._reader(client))
            yield

    async def declare_on_one_node(self, url: str, client: str) -> None:
        """Declare the queue of a client with its only member on this node."""
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            alone: dict[str, Any] = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
            queue = await channel.declare_queue(self.queue(client), durable=True, arguments=alone)
            await queue.bind(self._exchange, f"build.unplaceable.{client}")

    async def read(self, client: str) -> None:
        """Read all messages of a queue, until cancelled."""
        async with await aio_pika.connect(self._url) as connection:
            queue = await (await connection.channel()).get_queue(self.queue(client))
            await queue.consume(self._reader(client))
            await asyncio.Event().wait()

    def _reader(self, client: str) -> Callable[[aio_pika.abc.AbstractIncomingMessage], Awaitable[None]]:
        async def read(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            for content in re.findall(rb'"request":"[0-9a-f-]*-(\d{12})"', message.body):
                self.received[client].add(int(content))
            await message.ack()

        return read

    def have(self, numbers: range, *, clients: Sequence[str] | frozenset[str] = CLIENTS) -> bool:
        return all(self.received[client].issuperset(numbers) for client in clients)

    def missing(self, numbers: range) -> dict[str, list[int]]:
        lacks = {client: sorted({*numbers} - self.received[client]) for client in CLIENTS}
        return {client: some for client, some in lacks.items() if some}


async def process(node: RabbitMQ, queue: str, do: str) -> None:
    """Suspend or resume the process of a quorum queue on its only node."""
    await asyncio.to_thread(node.control, "eval", f"sys:{do}({{'%2F_{queue}', node()}}).")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_messages, "LONGEST_REPEAT", 5.0)


async def test_a_queue_that_confirms_nothing_delays_only_its_own_results(
    broker: RabbitMQ, bus_name: str
) -> None:
    clients = StuckClients(broker.url, bus_name)

    def connect() -> RabbitTransport:
        return RabbitTransport(broker.url, exchange=bus_name)

    async with serving(connect, a_worker()) as bus, clients.connected():

        async def request(numbers: range) -> None:
            await bus.publish(*(a_request(n, client) for n in numbers for client in CLIENTS))

        async def others_have(numbers: range, seconds: float) -> None:
            await until(
                lambda: clients.have(numbers, clients=OTHERS),
                picture=lambda: clients.missing(numbers),
                seconds=seconds,
            )

        await request(range(1))
        await until(lambda: clients.have(range(1)))
        await process(broker, clients.queue(STUCK), "suspend")
        for last in range(2, 6):
            await request(range(last - 1, last))
            await others_have(range(last), seconds=20)
        # The first message of a new connection for the queue blocks its channel for a minute.
        async with serving(connect, a_worker()):
            await request(range(5, 15))
            await others_have(range(15), seconds=30)
        assert clients.received[STUCK] == {0}
        await process(broker, clients.queue(STUCK), "resume")
        await until(lambda: clients.have(range(15)), picture=lambda: clients.missing(range(15)), seconds=60)


@pytest.mark.soak
async def test_while_a_node_of_a_cluster_restarts_only_the_queue_without_a_leader_waits(
    _server_directory: Path, bus_name: str
) -> None:
    installed(find_rabbitmq)
    with RabbitMQCluster(_server_directory / "stuck-cluster") as cluster:
        clients = StuckClients(cluster.nodes[0].url, bus_name)

        def connect() -> RabbitTransport:
            return RabbitTransport(cluster.url, exchange=bus_name)

        async with serving(connect, a_worker()) as bus, clients.connected(sorted(OTHERS)):

            async def others_have(numbers: range) -> None:
                await bus.publish(*(a_request(numbers[-1], client) for client in CLIENTS))
                await until(
                    lambda: clients.have(numbers, clients=OTHERS),
                    picture=lambda: clients.missing(numbers),
                    seconds=30,
                )

            down = cluster.nodes[2]
            await clients.declare_on_one_node(down.url, STUCK)
            await others_have(range(1))
            await asyncio.to_thread(down.kill)
            for last in range(2, 12):
                await others_have(range(last))
            await asyncio.to_thread(cluster.start)
            await others_have(range(12))
            reading = asyncio.create_task(clients.read(STUCK))
            await until(lambda: clients.have(range(12)), picture=lambda: clients.missing(range(12)))
            reading.cancel()
