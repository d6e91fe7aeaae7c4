"""Objects that an operator deletes on RabbitMQ under load are declared again, and no message is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aio_pika import connect
from aio_pika.abc import AbstractChannel

from bus import topics
from bus.errors import Unroutable
from bus.protocol import DeadLetter, Inbox, QueueSpec
from bus.rabbit import RabbitTransport, reconnecting
from tests.support.envelopes import an_envelope, number_in, numbers, publish, take
from tests.support.waiting import patience, until

pytestmark = pytest.mark.services

QUEUE = QueueSpec("q", ("build.requested",))
LOOK = 0.6

Connected = Callable[[], Awaitable[RabbitTransport]]


@pytest.fixture
async def connected(amqp_url: str, bus_name: str) -> AsyncIterator[Connected]:
    opened: list[RabbitTransport] = []

    async def one_more() -> RabbitTransport:
        opened.append(RabbitTransport(amqp_url, exchange=bus_name, poll_seconds=LOOK))
        await opened[-1].open()
        return opened[-1]

    yield one_more
    for transport in opened:
        await transport.close()


@pytest.fixture
async def operator(amqp_url: str) -> AsyncIterator[AbstractChannel]:
    connection = await connect(amqp_url)
    yield await connection.channel()
    await connection.close()


async def read_all(inbox: Inbox, wanted: set[int]) -> None:
    missing = set(wanted)
    async with patience():
        while missing:
            delivery = await inbox.get()
            missing.discard(number_in(delivery))
            delivery.done()


async def test_under_traffic_nothing_is_lost_however_often_the_exchange_is_deleted(
    connected: Connected, operator: AbstractChannel, bus_name: str
) -> None:
    publisher, reader = await connected(), await connected()
    inbox = await reader.consume(QUEUE, 1000)
    published: set[int] = set()
    enough = asyncio.Event()

    async def go_on(first: int) -> None:
        number = first
        while not enough.is_set():
            try:
                await publish(publisher, an_envelope(number))
            except Unroutable:  # published during the deletion: the bus retries later
                await asyncio.sleep(LOOK)
                continue
            published.add(number)
            number += 10

    async with asyncio.TaskGroup() as group:
        for first in range(10):
            group.create_task(go_on(first))
        for _ in range(3):
            seen = len(published)
            await until(lambda seen=seen: len(published) > seen + 50)  # type: ignore[misc]
            await operator.exchange_delete(bus_name)
        seen = len(published)
        await until(lambda: len(published) > seen + 50)
        enough.set()
    await read_all(inbox, published)
    assert await reader.dead_letters() == []


@pytest.mark.parametrize("gone", ["", ".queues", ".delay", ".dead"])
async def test_whichever_exchange_is_deleted_all_of_them_work_again(
    connected: Connected, operator: AbstractChannel, bus_name: str, gone: str
) -> None:
    transport = await connected()
    inbox = await transport.consume(QUEUE, 10)
    letter = DeadLetter("1", "q", "k", "T", "why", 1.0, 1.0, 1, "", b"")
    await transport.delay("q", an_envelope(0), 0.1)
    await transport.store_dead_letter(letter)
    assert await numbers(inbox, 1) == [0]
    await operator.exchange_delete(bus_name + gone)

    async def all_of_it() -> bool:
        try:
            await transport.delay("q", an_envelope(2), 0.0)
            await transport.delay("q", an_envelope(3), 0.1)
            await publish(transport, an_envelope(1))
            await transport.store_dead_letter(letter)
        except Unroutable:  # not bound again yet
            return False
        return True

    await until(all_of_it)
    await read_all(inbox, {1, 2, 3})
    assert {dead.id for dead in await transport.dead_letters()} >= {"1"}


async def test_a_deleted_exchange_of_clients_is_declared_again(
    connected: Connected, operator: AbstractChannel, bus_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "CLIENT_KEYS", ["outsider.*"])
    transport = await connected()
    inbox = await transport.consume(QueueSpec("q", ("outsider.*",)), 10)
    await operator.exchange_delete(f"{bus_name}.clients")

    async def events() -> bool:
        try:
            await publish(transport, an_envelope(1, key="outsider.shop"))
        except Unroutable:  # not bound again yet
            return False
        return True

    await until(events)
    assert number_in(await take(inbox)) == 1


async def test_a_binding_that_is_deleted_is_made_again(
    connected: Connected, operator: AbstractChannel, bus_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "_CHECKS_A_ROUND", 2)
    transport = await connected()
    inbox = await transport.consume(QUEUE, 10)
    await (await operator.get_queue(f"{bus_name}:q")).unbind(bus_name, "build.requested")
    with pytest.raises(Unroutable):
        await publish(transport, an_envelope(0))

    async def events() -> bool:
        try:
            await publish(transport, an_envelope(1))
        except Unroutable:
            return False
        return True

    await until(events)
    assert number_in(await take(inbox)) == 1


async def test_a_queue_deleted_between_two_publishes_loses_nothing(
    connected: Connected, operator: AbstractChannel, bus_name: str
) -> None:
    publisher, reader = await connected(), await connected()
    inbox = await reader.consume(QUEUE, 1000)
    count, deletions = 600, (100, 300, 450)

    async def say(number: int) -> None:
        while True:
            try:
                return await publish(publisher, an_envelope(number, framed=number % 2 == 0))
            except Unroutable:
                await asyncio.sleep(LOOK)

    async def go_on() -> None:
        for first in range(0, count, 10):
            await asyncio.gather(*(say(number) for number in range(first, first + 10)))
            if first in deletions:
                await operator.queue_delete(f"{bus_name}:q")

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        await read_all(inbox, set(range(count)))


async def test_an_unacknowledged_message_of_a_deleted_queue_can_be_requeued(
    connected: Connected, operator: AbstractChannel, bus_name: str
) -> None:
    transport = await connected()
    inbox = await transport.consume(QUEUE, 1000)
    await publish(transport, *(an_envelope(number, framed=False) for number in range(4)))
    held = [await take(inbox), await take(inbox)]
    await operator.queue_delete(f"{bus_name}:q")

    async def there_again() -> bool:
        try:
            await publish(transport, an_envelope(4))
        except Unroutable:
            return False
        return True

    await until(there_again)
    held[0].done()
    held[1].requeue()
    assert sorted(await numbers(inbox, 4)) == [1, 2, 3, 4]
