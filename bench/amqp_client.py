"""Compares aio-pika's classes, its underlay channel, and berth's own AMQP frames: messages per second and
processor time.

All publish the same persistent messages with confirms, with the same number in flight as the bus, and
consume them with the same prefetch and one acknowledgement each, alternating in one run.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import uvloop
from aio_pika import Connection, DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage
from aiormq import Channel

from bench.own_servers import broker_at
from bus.rabbit.connection import dial
from bus.rabbit.underlay import BulkChannel
from bus.rabbit.wire import Arrived, Post

AT_ONCE = 256  # unconfirmed, and unacknowledged

Turn = Callable[[Connection, str, int], Awaitable[None]]


def a_message() -> Message:
    return Message(
        b'{"n":1}',
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=os.urandom(16).hex(),
        type="T",
        headers={"sent_at": "1700000000.0"},
    )


async def publish_above(connection: Connection, queue: str, count: int) -> None:
    channel = await connection.channel(on_return_raises=True)
    exchange = channel.default_exchange

    async def some() -> None:
        for _ in range(count // AT_ONCE):
            await exchange.publish(a_message(), queue)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await channel.close()


async def publish_below(connection: Connection, queue: str, count: int) -> None:
    channel = await connection.channel(on_return_raises=True)
    under = await channel.get_underlay_channel()
    assert isinstance(under, Channel)  # `wait` is defined there

    async def some() -> None:
        for _ in range(count // AT_ONCE):
            message = a_message()
            await under.basic_publish(
                message.body, routing_key=queue, properties=message.properties, mandatory=True, wait=False
            )

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await channel.close()


async def read_above(connection: Connection, queue: str, count: int) -> None:
    channel = await connection.channel(publisher_confirms=False)
    await channel.set_qos(AT_ONCE)
    left, over = count, asyncio.Event()

    async def handle(message: AbstractIncomingMessage) -> None:
        nonlocal left
        await message.ack()
        left -= 1
        if not left:
            over.set()

    await (await channel.get_queue(queue, ensure=False)).consume(handle)
    await over.wait()
    await channel.close()


async def read_below(connection: Connection, queue: str, count: int) -> None:
    channel = await connection.channel(publisher_confirms=False)
    await channel.set_qos(AT_ONCE)
    under = await channel.get_underlay_channel()
    left, last, over, heard = count, 0, asyncio.Event(), asyncio.Event()

    async def handle(tag: int) -> None:
        nonlocal left, last
        left, last = left - 1, tag
        heard.set()
        if not left:
            over.set()

    await under.basic_consume(queue, lambda message: handle(message.delivery_tag or 0))
    while not over.is_set():
        await heard.wait()
        heard.clear()
        await under.basic_ack(last, multiple=True, wait=False)
    await channel.close()


async def publish_frames(connection: Connection, queue: str, count: int) -> None:
    channel = await BulkChannel().open(connection, confirms=True)

    async def some() -> None:
        for _ in range(count // AT_ONCE):
            message = a_message()
            await channel.publish(Post("", queue, message.body, message.properties, mandatory=True))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await channel.close()


async def read_frames(connection: Connection, queue: str, count: int) -> None:
    channel = await BulkChannel().open(connection, confirms=False)
    left, last, over, heard = count, 0, asyncio.Event(), asyncio.Event()

    def handle(message: Arrived) -> None:
        nonlocal left, last
        left, last = left - 1, message.tag
        heard.set()
        if not left:
            over.set()

    await channel.consume(queue, AT_ONCE, handle)
    while not over.is_set():
        await heard.wait()
        heard.clear()
        await channel.ack(last, multiple=True)
    await channel.close()


async def measure(url: str, count: int, turns: int) -> None:
    queue = f"bench{os.getpid()}"
    connection = await dial(url)
    await (await connection.channel()).declare_queue(queue, durable=True)
    ways: dict[str, tuple[Turn, Turn]] = {
        "aio-pika's classes": (publish_above, read_above),
        "underlay channel": (publish_below, read_below),
        "our own frames": (publish_frames, read_frames),
    }
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(turns):
        for name, (publish, read) in ways.items():
            for what, turn in (("publish", publish), ("read", read)):
                began, spent = time.perf_counter(), time.process_time()
                await turn(connection, queue, count)
                figures.setdefault((what, name), []).append(
                    (count / (time.perf_counter() - began), (time.process_time() - spent) / count * 1e6)
                )
    print(f"{'':8} {'':20} {'messages/s':>11} {'CPU µs each':>12}")
    for (what, name), found in sorted(figures.items()):
        speeds, costs = zip(*found, strict=True)
        print(f"{what:8} {name:20} {statistics.median(speeds):11.0f} {statistics.median(costs):12.0f}")
    await (await connection.channel()).queue_delete(queue)
    await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--amqp-url", help="a running RabbitMQ; by default a private one is started")
    parser.add_argument("--messages", type=int, default=10_240)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    with broker_at(arguments.amqp_url) as url:
        uvloop.run(measure(url, arguments.messages, arguments.turns))


if __name__ == "__main__":
    main()
