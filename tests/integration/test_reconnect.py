"""A broker that goes away and comes back, in the middle of everything."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from bus.protocol import QueueSpec
from bus.rabbit import RabbitTransport
from deploy.servers import RabbitMQ
from tests.support.envelopes import an_envelope, number_in
from tests.support.servers import crash
from tests.support.waiting import in_time

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEADLINE = 90.0
RETRY_SECONDS = 210.0
QUEUE = QueueSpec("q", ("build.requested",))


@pytest.fixture
def broker(restarted_rabbitmq: RabbitMQ) -> RabbitMQ:
    restarted_rabbitmq.start()
    return restarted_rabbitmq


@pytest.fixture
async def connect(broker: RabbitMQ, bus_name: str) -> AsyncIterator[Callable[[], RabbitTransport]]:
    made: list[RabbitTransport] = []

    def connect() -> RabbitTransport:
        made.append(RabbitTransport(broker.url, exchange=bus_name))
        return made[-1]

    yield connect
    for transport in made:
        await transport.close()


async def test_everything_published_arrives_although_the_broker_is_restarted_and_killed(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    publisher, reader = connect(), connect()
    await publisher.open()
    await reader.open()
    inbox = await reader.consume(QUEUE, 50)
    numbers = itertools.count()
    published: set[int] = set()
    events: set[int] = set()
    news = asyncio.Event()
    enough = False

    async def publish() -> None:
        while not enough:
            number = next(numbers)
            await publisher.publish([an_envelope(number)], expected=[True])
            published.add(number)
            await asyncio.sleep(0.02)

    async def read() -> None:
        while True:
            delivery = await inbox.get()
            events.add(number_in(delivery))
            news.set()
            await asyncio.sleep(0)  # so that some are in hand when the broker goes away
            delivery.done()

    async def heard_until(what: Callable[[], bool]) -> None:
        while not what():
            news.clear()
            await news.wait()

    async def heard_more(count: int) -> None:
        goal = len(events) + count
        await heard_until(lambda: len(events) >= goal)

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        publishers = [group.create_task(publish()) for _ in range(50)]
        await heard_more(700)
        await asyncio.to_thread(broker.restart)
        await heard_more(700)
        # the clean restart went first: a quorum queue is not safe from a kill in its very first second
        await asyncio.to_thread(crash, broker)
        await heard_more(700)
        enough = True
        await asyncio.wait(publishers)
        await heard_until(lambda: published <= events)
        reading.cancel()
    assert len(published) > 2000


@pytest.mark.soak
async def test_queues_and_messages_survive_a_broker_restart(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    transport = connect()
    await transport.open()
    shared = await transport.consume(QUEUE, 10)
    private = await transport.consume(QueueSpec("mine", ("host.*",), durable=False), 10)
    await transport.declare(QueueSpec("later", ("later",)))
    await transport.delay("q", an_envelope(1), 0.5)
    await transport.publish([an_envelope(2, "later")], expected=[True])
    held = await in_time((await transport.consume(QueueSpec("later", ("later",)), 10)).get(), DEADLINE)
    await asyncio.to_thread(broker.restart)
    async with asyncio.timeout(DEADLINE):
        await transport.publish(
            [an_envelope(3), an_envelope(4, "host.reported")], expected=[True, True]
        )  # waits until there is a connection
    held.done()
    held.requeue()
    assert {number_in(await in_time(shared.get(), RETRY_SECONDS)) for _ in range(2)} == {1, 3}
    assert number_in(await in_time(private.get(), DEADLINE)) == 4


async def test_a_message_held_beyond_the_consumer_timeout_is_redelivered(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    """RabbitMQ closes the channel of a reader that holds a message for 30 minutes: that counts as a crash."""
    checked = [
        f"application:set_env(rabbit, {name}, 500)" for name in ("consumer_timeout", "channel_tick_interval")
    ]
    usual = ["application:set_env(rabbit, consumer_timeout, 1800000)",
             "application:set_env(rabbit, channel_tick_interval, 60000)"]  # fmt: skip
    await asyncio.to_thread(broker.control, "eval", f"{', '.join(checked)}.")
    try:
        transport = connect()
        await transport.open()
        inbox = await transport.consume(QUEUE, 10)
        await transport.publish([an_envelope(1)], expected=[True])
        first = await in_time(inbox.get(), DEADLINE)
        again = await in_time(inbox.get(), DEADLINE)
        assert (first.crashes, number_in(again), again.crashes) == (0, 1, 1)
        again.done()
        await transport.publish([an_envelope(2)], expected=[True])
        while number_in(last := await in_time(inbox.get(), DEADLINE)) != 2:
            last.done()
        last.done()
        await transport.close()
    finally:
        await asyncio.to_thread(broker.control, "eval", f"{', '.join(usual)}.")
