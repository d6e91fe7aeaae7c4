"""The ferry forwards every message between two brokers, in order and at least once, and never back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pika
import pytest

from berth import composition
from berth.ferry.crossings import crossings
from berth.ferry.passage import ferry
from bus import topics
from bus.clock import Clock
from bus.context import envelope_of
from bus.delivery import failed_messages
from bus.delivery.runner import Bus
from bus.errors import BrokerRefused, Unavailable, Unconfirmed
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildDeleteRequested
from bus.protocol import Envelope, Inbox, QueueSpec
from bus.queries import FindBuilds
from bus.rabbit import RabbitTransport
from tests.support.envelopes import an_envelope, buried, numbers, publish, take
from tests.support.ids import uid
from tests.support.waiting import in_time, until

PLACED, ENDED = "build.placed.c2", "build.ended.c2"
HERE = (
    PLACED,
    ENDED,
    "build.delete.c2",
    "host.failed.c2",
    "ask.cell.builds.c2",
    "ask.placement.providers.c2",
)
CROSSINGS = tuple(  # a selection: to declare all queues for each test takes long
    crossing
    for crossing in crossings("c2", composition.all_workers_without_a_bus("c2"))
    if crossing.name in HERE or crossing.of is None
)
Connection = LocalTransport | RabbitTransport
Interfere = Callable[[Sequence[Envelope]], Awaitable[None]]


@dataclass
class TwoBrokers:
    middle: Callable[[], Connection]
    own: Callable[[], Connection]
    opened: list[Connection] = field(default_factory=list)

    async def connected(self, connect: Callable[[], Connection]) -> Connection:
        self.opened.append(connect())
        await self.opened[-1].open()
        return self.opened[-1]

    async def hears(self, connect: Callable[[], Connection], *keys: str) -> Inbox:
        way = await self.connected(connect)
        return await way.consume(QueueSpec(f"spy:{keys[0]}", keys), 5000)

    @asynccontextmanager
    async def ferried(
        self, before: Interfere | None = None, after: Interfere | None = None, **how: Any
    ) -> AsyncIterator[None]:
        """Run a ferry; `before` and `after` are called around its publications at the cell's broker."""
        own, stopping = self.own(), asyncio.Event()
        publish = own.publish

        async def interfered(envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
            if before is not None:
                await before(envelopes)
            await publish(envelopes, expected=expected)
            if after is not None:
                await after(envelopes)

        own.publish = interfered  # type: ignore[method-assign]
        async with Bus(self.middle()) as bus, asyncio.TaskGroup() as group:
            worker = ferry(CROSSINGS, bus.transport, own, bus.clock, poll_seconds=0.05, **how)
            serving = group.create_task(bus.serve(worker, stopping))
            try:
                yield
            finally:
                stopping.set()
                await asyncio.wait([serving])  # it may still use the connection
                await own.close()

    async def know_the_ferry(self) -> None:
        """Declare the queues of the ferry, as after its first start."""
        for connect, way in ((self.middle, "in"), (self.own, "out")):
            side = await self.connected(connect)
            await side.declare(*(crossing.queue for crossing in CROSSINGS if crossing.way.value == way))


@pytest.fixture(params=["local", pytest.param("rabbit", marks=pytest.mark.services)])
async def brokers(request: pytest.FixtureRequest) -> AsyncIterator[TwoBrokers]:
    if request.param == "local":
        middle, own = LocalBroker(), LocalBroker()
        made = TwoBrokers(lambda: LocalTransport(middle), lambda: LocalTransport(own))
    else:
        url, name = request.getfixturevalue("amqp_url"), request.getfixturevalue("bus_name")
        made = TwoBrokers(  # two exchanges of one RabbitMQ stand for two brokers
            lambda: RabbitTransport(url, exchange=f"{name}m", quorum=False),
            lambda: RabbitTransport(url, exchange=f"{name}o", quorum=False),
        )
    await made.know_the_ferry()
    yield made
    for transport in made.opened:
        await transport.close()


def shown(number: int, key: str = PLACED) -> Envelope:
    return an_envelope(number, key)


@pytest.mark.parametrize("way", ["in", "out"])
async def test_the_ferry_forwards_a_message_unchanged(brokers: TwoBrokers, way: str) -> None:
    here, there = (brokers.middle, brokers.own) if way == "in" else (brokers.own, brokers.middle)
    key = PLACED if way == "in" else f"{ENDED}.me"
    whole = an_envelope(
        7, key, type="BuildPlaced", correlation="story", causation="cause", attempt=3, faults=1, unroutable=2,
        sent_at=1_700_000_000.25, traceparent=f"00-{1:032x}-{1:016x}-01", reply_to="reply.c2.a.b",
        first_died=1.5,
    )  # fmt: skip
    listener = await brokers.hears(there, key)
    async with brokers.ferried():
        await publish(await brokers.connected(here), whole)
        arrived = await take(listener)
    assert arrived.envelope == whole


async def test_a_ferry_killed_before_its_acknowledgement_forwards_again(brokers: TwoBrokers) -> None:
    middle = await brokers.connected(brokers.middle)
    listener = await brokers.hears(brokers.own, PLACED)
    killed = asyncio.Event()

    async def die(_: Sequence[Envelope]) -> None:
        killed.set()
        await asyncio.Event().wait()

    await publish(middle, *map(shown, range(10)))
    async with brokers.ferried(after=die):
        await in_time(killed.wait())
    async with brokers.ferried():
        found = [(await take(listener)).envelope for _ in range(10)]
        while len({envelope.id for envelope in found}) < 10 or len(found) < 11:
            found.append((await take(listener)).envelope)
    order = [msgspec.json.decode(envelope.body)["n"] for envelope in found]
    assert list(dict.fromkeys(order)) == list(range(10))  # the first delivery of each
    twice = {envelope.id for envelope in found if order.count(msgspec.json.decode(envelope.body)["n"]) > 1}
    assert (
        twice and len({envelope.id for envelope in found}) == 10
    )  # receivers recognize a repeated message by its id


async def test_messages_wait_in_order_while_the_cells_broker_is_unreachable(brokers: TwoBrokers) -> None:
    middle = await brokers.connected(brokers.middle)
    listener = await brokers.hears(brokers.own, PLACED)
    failures = iter([Unavailable("away"), Unavailable("still away")])
    tried: list[int] = []
    more = asyncio.Event()

    async def fail(envelopes: Sequence[Envelope]) -> None:
        if envelopes[0].key == PLACED:
            tried.append(len(envelopes))
            await more.wait()  # later messages have arrived when this message fails
            if (problem := next(failures, None)) is not None:
                raise problem

    other = await brokers.hears(brokers.own, "build.delete.c2")
    async with brokers.ferried(fail):
        await publish(middle, shown(0))
        await until(lambda: tried)
        await publish(middle, *map(shown, range(1, 20)), shown(100, "build.delete.c2"))
        assert await numbers(other, 1) == [100]
        more.set()
        assert await numbers(listener, 20) == list(range(20))


async def test_messages_without_a_consumer_become_dead_letters_at_their_origin(brokers: TwoBrokers) -> None:
    middle = await brokers.connected(brokers.middle)
    message = envelope_of(BuildDeleteRequested(build=uid(1), cell="c2"), Clock())
    async with brokers.ferried(undeliverable_seconds=0.0):
        await publish(middle, message)
        (letter,) = await buried(middle)
        assert (letter.queue, letter.key, letter.cell) == ("ferry.c2:build.delete.c2", message.key, "c2")
        assert "build.delete.c2" in letter.reason
        listener = await brokers.hears(brokers.own, message.key)
        again = msgspec.structs.replace(message, attempt=1)
        await middle.delay(letter.queue, again, 0.0)  # as `berth system dead replay` does
        arrived = (await take(listener)).envelope
    assert (arrived.id, arrived.key, bytes(arrived.body)) == (message.id, message.key, bytes(message.body))


@pytest.mark.parametrize("brokers", ["local"], indirect=True)
async def test_a_message_that_the_other_broker_refuses_does_not_delay_the_rest(brokers: TwoBrokers) -> None:
    middle = await brokers.connected(brokers.middle)
    listener = await brokers.hears(brokers.own, PLACED)

    async def refuse(envelopes: Sequence[Envelope]) -> None:
        if any(bytes(envelope.body) == b'{"n":1}' for envelope in envelopes):
            raise BrokerRefused("not this one")

    await publish(middle, *map(shown, range(4)))
    async with brokers.ferried(refuse):
        assert await numbers(listener, 3) == [0, 2, 3]
        (letter,) = await buried(middle)
    assert (letter.reason, letter.body) == ("not this one", b'{"n":1}')


@pytest.mark.parametrize("brokers", ["local"], indirect=True)
async def test_ends_for_a_client_that_confirms_none_are_forwarded_again_and_delay_no_others(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_messages, "REPEATED_SECONDS", 0.1)
    monkeypatch.setattr("berth.ferry.passage.CONFIRM_SECONDS", 0.05)
    stuck, is_late = asyncio.Event(), asyncio.Event()
    stuck.set()
    publish_at_all = LocalTransport.publish

    async def publish_but_stuck(
        transport: LocalTransport, envelopes: Sequence[Envelope], *, expected: Sequence[bool]
    ) -> None:
        late = [each for each in envelopes if each.key == f"{ENDED}.stuck" and stuck.is_set()]
        others = [each for each in envelopes if each not in late]
        await publish_at_all(transport, others, expected=[False] * len(others))
        if late:
            await is_late.wait()
            raise Unconfirmed([each.key for each in late], ids=[each.id for each in late])

    own = await brokers.connected(brokers.own)
    shop = await brokers.hears(brokers.middle, f"{ENDED}.shop")
    late = await brokers.hears(brokers.middle, f"{ENDED}.stuck")
    for number in range(3):
        await publish(own, shown(number, f"{ENDED}.stuck"), shown(number, f"{ENDED}.shop"))
    async with brokers.ferried():
        monkeypatch.setattr(LocalTransport, "publish", publish_but_stuck)
        assert await numbers(shop, 3) == [0, 1, 2]
        await publish(own, shown(3, f"{ENDED}.shop"))
        assert await numbers(shop, 1) == [3]
        stuck.clear()
        is_late.set()
        assert sorted(await numbers(late, 3)) == [0, 1, 2]


@pytest.mark.parametrize("brokers", ["local"], indirect=True)
async def test_a_message_that_fails_by_a_bug_is_retried_and_then_a_dead_letter(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.ferry.passage.FAULT_DELAYS", (0.1,))
    middle = await brokers.connected(brokers.middle)
    tried: list[int] = []

    async def fail(envelopes: Sequence[Envelope]) -> None:
        tried.append(len(envelopes))
        raise ZeroDivisionError("a bug")

    await publish(middle, shown(1))
    async with brokers.ferried(fail):
        (letter,) = await buried(middle)
    assert len(tried) == 2
    assert letter.reason == "ZeroDivisionError: a bug" and "Traceback" in letter.traceback


async def test_a_query_without_an_answerer_behind_the_ferry_fails(brokers: TwoBrokers) -> None:
    async with brokers.ferried(), Bus(brokers.middle()) as asking:
        with pytest.raises(Unavailable, match=r"ask\.cell\.builds\.c2.* on the other broker of cell c2"):
            await in_time(asking.asker(topics.FIND_BUILDS)(FindBuilds(cell="c2", builds=(uid(1),))))
        assert not await asking.transport.dead_letters()


FURTHER_KEY = pika.BasicProperties(headers={"CC": ["host.failed.c2"], "key": "host.failed.c2"})
FRAME = pika.BasicProperties(type="berth.frame")


@pytest.mark.services
@pytest.mark.parametrize("brokers", ["rabbit"], indirect=True)
@pytest.mark.parametrize(
    ("key", "body", "properties", "reason"),
    [
        ("agent.report.c2", b'{"n":1}', FURTHER_KEY, "it came by the key agent.report.c2"),
        ("build.requested", b'{"n":1}', FURTHER_KEY, "it came by the key build.requested"),
        (ENDED, b"no frame", FRAME, "not a frame"),
    ],
)
async def test_a_forbidden_or_invalid_message_becomes_a_dead_letter_at_its_origin(
    brokers: TwoBrokers,
    amqp_url: str,
    bus_name: str,
    key: str,
    body: bytes,
    properties: pika.BasicProperties,
    reason: str,
) -> None:
    own, listener = await brokers.connected(brokers.own), await brokers.hears(brokers.middle, "#")
    async with brokers.ferried():
        with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
            connection.channel().basic_publish(f"{bus_name}o", key, body, properties)
        (letter,) = await buried(own)
        await publish(own, shown(2, ENDED))
        assert await numbers(listener, 1) == [2]
    assert reason in letter.reason
