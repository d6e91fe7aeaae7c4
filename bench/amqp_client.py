"""Compares berth's own AMQP channels (`bus/rabbit/fast_channels`) with aio-pika's channels.

    python -m bench.amqp_client [--messages N] [--rounds N] [--bytes N]

Both clients publish the same persistent messages to the same quorum queue and wait for the confirms, with at
most 256 messages unconfirmed. Both then consume these messages with a prefetch count of 256, and acknowledge
64 messages at a time. The clients alternate within one run. Processor time is that of this process, without
the broker.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import aio_pika
import uvloop
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage

from bench.own_servers import broker_at
from bus.rabbit.connection import broker_url, dial, hang_up
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import PERSISTENT, Arrived, Post, Properties

QUEUE = "bench.amqp_client"
UNCONFIRMED = 256
PREFETCH = 256
ACKNOWLEDGED_AT_ONCE = 64


class AmqpClient(Protocol):
    async def open(self, url: str) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, id_: str, body: bytes) -> None:
        """Publish a persistent message to the queue, and wait for its confirm."""

    async def consume(self, messages: int) -> None:
        """Consume and acknowledge this number of messages."""


class OwnChannels:
    """Publishes and consumes on berth's own channels."""

    async def open(self, url: str) -> None:
        self._connection = await dial(url)
        self._publisher = await BulkChannel().open(self._connection, confirms=True)
        self._reader = await BulkChannel().open(self._connection, confirms=False)

    async def close(self) -> None:
        await hang_up(self._connection)

    async def publish(self, id_: str, body: bytes) -> None:
        properties = Properties(
            content_type="application/json", delivery_mode=PERSISTENT, message_id=id_, message_type="frame"
        )
        await self._publisher.publish(Post("", QUEUE, body, properties, mandatory=True))

    async def consume(self, messages: int) -> None:
        received, all_received = 0, asyncio.Event()

        def on_message(message: Arrived) -> None:
            nonlocal received
            received += 1
            if received % ACKNOWLEDGED_AT_ONCE == 0 or received == messages:
                self._reader.acknowledge_all([message.tag], ())
            if received == messages:
                all_received.set()

        consumer = await self._reader.consume(QUEUE, PREFETCH, on_message)
        await all_received.wait()
        await self._reader.cancel(consumer)


class AioPikaChannels:
    """Publishes and consumes on aio-pika's channels."""

    _connection: AbstractConnection
    _reader: AbstractChannel
    _exchange: AbstractExchange

    async def open(self, url: str) -> None:
        self._connection = await aio_pika.connect(url)
        publisher = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchange = publisher.default_exchange
        self._reader = await self._connection.channel(publisher_confirms=False)

    async def close(self) -> None:
        await self._connection.close()

    async def publish(self, id_: str, body: bytes) -> None:
        message = aio_pika.Message(
            body,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=id_,
            type="frame",
        )
        await self._exchange.publish(message, QUEUE, mandatory=True)

    async def consume(self, messages: int) -> None:
        received, all_received = 0, asyncio.Event()

        async def on_message(message: AbstractIncomingMessage) -> None:
            nonlocal received
            received += 1
            if received % ACKNOWLEDGED_AT_ONCE == 0 or received == messages:
                await message.ack(multiple=True)
            if received == messages:
                all_received.set()

        await self._reader.set_qos(PREFETCH)
        queue = await self._reader.get_queue(QUEUE, ensure=False)
        consumer = await queue.consume(on_message)
        await all_received.wait()
        await queue.cancel(consumer)


@dataclass(frozen=True)
class Rates:
    """The messages per second of a step, and its processor time per message in microseconds."""

    per_second: float
    microseconds: float


async def _measured(work: Awaitable[Any], messages: int) -> Rates:
    began, used = time.perf_counter(), time.process_time()
    await work
    used = time.process_time() - used
    return Rates(messages / (time.perf_counter() - began), 1e6 * used / messages)


async def _publish_all(client: AmqpClient, messages: int, body: bytes) -> None:
    for first in range(0, messages, UNCONFIRMED):
        last = min(first + UNCONFIRMED, messages)
        await asyncio.gather(*(client.publish(f"{first}-{number}", body) for number in range(first, last)))


async def measure(
    url: str, make: Callable[[], AmqpClient], messages: int, body: bytes
) -> tuple[Rates, Rates]:
    """Return the rates of publishing and of consuming with a new client."""
    client = make()
    await client.open(url)
    try:
        published = await _measured(_publish_all(client, messages, body), messages)
        consumed = await _measured(client.consume(messages), messages)
    finally:
        await client.close()
    return published, consumed


async def compare(url: str, messages: int, rounds: int, size: int) -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    body = b"x" * size
    found: dict[str, list[tuple[Rates, Rates]]] = {"own": [], "aio-pika": []}
    clients: dict[str, Callable[[], AmqpClient]] = {"own": OwnChannels, "aio-pika": AioPikaChannels}
    try:
        for _ in range(rounds):
            for name, make in clients.items():
                found[name].append(await measure(broker_url(url, "bench"), make, messages, body))
    finally:
        await queue.delete(if_unused=False, if_empty=False)
        await connection.close()
    _show(found)


def _show(found: dict[str, list[tuple[Rates, Rates]]]) -> None:
    print(f"{'':10} {'step':8} {'messages/s':>10} {'CPU µs/message':>15}  each round")
    for name, rounds in found.items():
        for number, step in enumerate(("publish", "consume")):
            rates: Sequence[Rates] = [both[number] for both in rounds]
            each = ", ".join(f"{rate.microseconds:.0f}" for rate in rates)
            print(
                f"{name:10} {step:8} {median(rate.per_second for rate in rates):10.0f}"
                f" {median(rate.microseconds for rate in rates):15.1f}  {each}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--amqp-url", help="a running RabbitMQ; by default a private one is started")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1000, help="size of the body of a message")
    given = parser.parse_args()
    with broker_at(given.amqp_url) as url:
        uvloop.run(compare(url, given.messages, given.rounds, given.bytes))


if __name__ == "__main__":
    main()
