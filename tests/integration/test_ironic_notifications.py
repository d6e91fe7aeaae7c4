"""Hearing an Ironic on a real RabbitMQ, with an exchange that comes and goes as Ironic's does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aio_pika import Connection, ExchangeType, Message, connect
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, PublishError

from bus.clock import monotonic
from deploy.servers import RabbitMQ
from ironic_sync.notifications import Notifications
from tests.support.belief_world import RecordedMessage, recorded
from tests.support.servers import url_of
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

TOPIC = "ironic_versioned_notifications"
SAID = [message for step in recorded() for message in step.messages]
BODIES = [message.body.encode() for message in SAID]


class InsistentIronic:
    def __init__(self, url: str, exchange: str, *, durable: bool = False) -> None:
        self._url = url
        self._exchange = exchange
        self._durable = durable
        self._connection: Connection | None = None
        self._gone = False

    async def say(self, *messages: RecordedMessage) -> None:
        for message in messages:
            await self._say(message.key, message.body.encode())

    async def delete_exchange(self) -> None:
        channel = await (await self._connected()).channel()
        await channel.exchange_delete(self._exchange)

    async def delivers(self, key: str) -> bool:
        """Does a message under this key reach any queue?"""
        try:
            await self._publish(key, b"?")
        except PublishError:
            return False
        return True

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _say(self, key: str, body: bytes) -> None:
        deadline = monotonic() + 30
        while True:
            try:
                await self._publish(key, body)
                return
            except (AMQPError, OSError, RuntimeError) as problem:
                assert monotonic() < deadline, f"nobody hears: {problem!r}"
                await asyncio.sleep(0.02)

    async def _publish(self, key: str, body: bytes) -> None:
        async with asyncio.timeout(10):
            channel = await (await self._connected()).channel(on_return_raises=True)
            try:
                exchange = await channel.declare_exchange(
                    self._exchange, ExchangeType.TOPIC, durable=self._durable
                )
                message = Message(body, content_type="application/json", delivery_mode=2, priority=0)
                message.content_encoding = "utf-8"
                await exchange.publish(message, key)
            finally:
                if not channel.is_closed:
                    await channel.close()

    async def _connected(self) -> Connection:
        if self._connection is None or self._gone:
            self._connection = await connect(self._url)
            self._gone = False
            self._connection.close_callbacks.add(self._lost)
        return self._connection

    def _lost(self, *_: object) -> None:
        self._gone = True


class Ear:
    def __init__(self, url: str, name: str, **more: object) -> None:
        more = {"poll_seconds": 0.1, "exchange": f"{name}.ironic", "queue": f"{name}.ours"} | more
        self.notifications = Notifications(url, **more)  # type: ignore[arg-type]
        self._bind = self.notifications._bind
        self.notifications._bind = self._look  # type: ignore[method-assign]
        self.bodies: list[bytes] = []
        self.gaps = 0
        self.searches = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def handle(self, bodies: Sequence[bytes]) -> None:
        await self.may_go_on.wait()
        self.bodies += bodies

    async def _look(self, connection: AbstractConnection) -> bool:
        self.searches += 1
        return await self._bind(connection)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.notifications.run(self.handle, self.gap))
            yield
            task.cancel()

    def gap(self) -> None:
        self.gaps += 1

    async def has_heard(self, *bodies: bytes) -> None:
        await until(lambda: set(bodies) <= set(self.bodies), f"{len(bodies)} messages are heard")


@asynccontextmanager
async def an_ironic(url: str, name: str, *, durable: bool = False) -> AsyncIterator[InsistentIronic]:
    ironic = InsistentIronic(url, f"{name}.ironic", durable=durable)
    try:
        yield ironic
    finally:
        await ironic.close()


async def test_the_first_notification_of_a_new_ironic_is_received(
    amqp_url: str, bus_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Ear(amqp_url, bus_name)
    async with listener.listening(), an_ironic(amqp_url, bus_name) as ironic:
        await until(lambda: listener.searches > 3, "it looks for the exchange")
        assert listener.gaps == 0
        await ironic.say(*SAID)
        await listener.has_heard(*BODIES)
    assert listener.bodies == BODIES, "each once, in their order"
    assert listener.gaps == 1, "whatever was said before we could hear"
    assert caplog.text.count("has no exchange") == 1


async def test_only_notifications_are_received(amqp_url: str, bus_name: str) -> None:
    listener = Ear(amqp_url, bus_name, topics=(TOPIC, "another_topic"))
    async with listener.listening(), an_ironic(amqp_url, bus_name) as ironic:
        await ironic.say(SAID[0])
        assert await ironic.delivers(f"{TOPIC}.error")
        assert await ironic.delivers("another_topic.info")
        for key in ("ironic.conductor_manager", TOPIC, f"{TOPIC}.info.more", "fanout"):
            assert not await ironic.delivers(key)


async def test_notifications_wait_for_a_reader(amqp_url: str, bus_name: str) -> None:
    listener = Ear(amqp_url, bus_name, quorum=True)
    async with an_ironic(amqp_url, bus_name) as ironic:
        async with listener.listening():
            await ironic.say(SAID[0])
            await listener.has_heard(BODIES[0])
        await ironic.say(*SAID[1:50])
        again = Ear(amqp_url, bus_name, quorum=False)  # a queue that is there serves as it is
        async with again.listening():
            await again.has_heard(*BODIES[1:50])
        assert again.bodies == BODIES[1:50], "and what was heard before is not heard again"


async def test_unacknowledged_notifications_are_redelivered(amqp_url: str, bus_name: str) -> None:
    listener = Ear(amqp_url, bus_name)
    async with an_ironic(amqp_url, bus_name) as ironic:
        async with listener.listening():
            await ironic.say(SAID[0])
            await listener.has_heard(BODIES[0])
            listener.may_go_on.clear()
            await ironic.say(*SAID[1:4])
        assert listener.bodies == BODIES[:1]
        again = Ear(amqp_url, bus_name)
        async with again.listening():
            await again.has_heard(*BODIES[1:4])
        assert again.bodies == BODIES[1:4]


async def test_only_one_of_two_replicas_receives_notifications(amqp_url: str, bus_name: str) -> None:
    one, other = Ear(amqp_url, bus_name), Ear(amqp_url, bus_name)
    async with an_ironic(amqp_url, bus_name) as ironic:
        async with one.listening():
            await ironic.say(SAID[0])
            await one.has_heard(BODIES[0])
            async with other.listening():
                await until(lambda: other.gaps == 1, "the other stands by")
                await ironic.say(*SAID[1:50])
                await one.has_heard(*BODIES[:50])
        assert other.bodies == []
        async with other.listening():
            await ironic.say(*SAID[50:60])
            await other.has_heard(*BODIES[50:60])


async def test_a_recreated_exchange_is_bound_again(
    amqp_url: str, bus_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Ear(amqp_url, bus_name)
    async with listener.listening():
        async with an_ironic(amqp_url, bus_name, durable=False) as ironic:
            await ironic.say(*SAID[:10])
            await listener.has_heard(*BODIES[:10])
            caplog.clear()
            await ironic.delete_exchange()
            await until(lambda: "has no exchange" in caplog.text, "it is missed")
            assert not listener.notifications.subscribed
            assert listener.gaps == 1
        async with an_ironic(amqp_url, bus_name, durable=True) as ironic:
            await ironic.say(*SAID[10:20])
            await listener.has_heard(*BODIES[:20])
            assert listener.notifications.subscribed
    assert listener.bodies == BODIES[:20]
    assert listener.gaps == 2


async def test_a_broker_restart_loses_no_confirmed_notification(
    restarted_rabbitmq: RabbitMQ, bus_name: str
) -> None:
    rabbitmq, amqp_url = restarted_rabbitmq, url_of(restarted_rabbitmq)
    listener = Ear(amqp_url, bus_name)
    async with listener.listening(), an_ironic(amqp_url, bus_name) as ironic:
        await ironic.say(*SAID[:10])
        await listener.has_heard(*BODIES[:10])
        listener.may_go_on.clear()
        await ironic.say(*SAID[10:100])
        await asyncio.to_thread(rabbitmq.restart)
        listener.may_go_on.set()
        await ironic.say(*SAID[100:120])
        await listener.has_heard(*BODIES[:120])
        await until(lambda: listener.gaps >= 2, "there may have been a gap")
    first = {body: place for place, body in reversed(list(enumerate(listener.bodies)))}
    assert sorted(first, key=first.__getitem__) == BODIES[:120], "some twice, but none late"
