"""Guarantees of a transport for the bus, the same for every transport."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from bus.clock import monotonic
from bus.errors import NoSuchLetter, Undecodable, Unroutable
from bus.local import LocalBroker, LocalTransport
from bus.local.transport import SocketServer, SocketTransport
from bus.protocol import MAX_IN_HAND_BYTES, BusDepths, DeadLetter, QueueDepth, QueueSpec, Transport
from bus.rabbit import RabbitTransport
from tests.support.envelopes import a_letter, an_envelope, number_in, numbers, publish, take
from tests.support.waiting import patience, until

Connect = Callable[[], Awaitable[Transport]]


@pytest.fixture(params=["local", "socket", pytest.param("rabbit", marks=pytest.mark.services)])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Yield a function that opens a further connection to one broker."""
    make: Callable[[], Transport]
    if request.param == "socket":
        with TemporaryDirectory() as directory:
            server = SocketServer(LocalBroker(), Path(directory) / "bus.sock")
            await server.open()
            async for connect in _connections(lambda: SocketTransport(server.path)):
                yield connect
            await server.close()
        return
    if request.param == "local":
        broker = LocalBroker()

        def make() -> Transport:
            return LocalTransport(broker)
    else:
        url, name = request.getfixturevalue("amqp_url"), request.getfixturevalue("bus_name")

        def make() -> Transport:
            return RabbitTransport(url, exchange=name)

    async for connect in _connections(make):
        yield connect


async def _connections(make: Callable[[], Transport]) -> AsyncIterator[Connect]:
    opened: list[Transport] = []

    async def connect() -> Transport:
        opened.append(make())
        await opened[-1].open()
        return opened[-1]

    yield connect
    for transport in opened:
        await transport.close()


@pytest.fixture
async def transport(connect: Connect) -> Transport:
    return await connect()


@pytest.mark.parametrize(
    ("pattern", "key", "events"),
    [
        ("build.requested", "build.requested", True),
        ("build.placed.*", "build.placed.cell1", True),
        ("*.placed.*", "build.placed.cell1", True),
        ("build.#", "build", True),
        ("#", "anything.at.all", True),
        ("#.ended", "ended", True),
        ("#.ended", "build.ended.late", False),
        ("a.#.z", "a.z", True),
        ("a.#.*", "a", False),
        ("", "", True),
    ],
)
async def test_keys_match_like_in_amqp(transport: Transport, pattern: str, key: str, events: bool) -> None:
    await transport.declare(QueueSpec("q", (pattern,)))
    if events:
        await publish(transport, an_envelope(key=key))
    else:
        with pytest.raises(Unroutable):
            await publish(transport, an_envelope(key=key))


async def test_an_unroutable_message_raises_only_if_a_consumer_was_expected(transport: Transport) -> None:
    inbox = await transport.consume(QueueSpec("q", ("heard",)), 10)
    await publish(transport, an_envelope(key="unroutable"), expected=False)
    with pytest.raises(Unroutable, match=r"no queue is bound to unroutable"):
        await transport.publish(
            [an_envelope(1, "heard"), an_envelope(key="unroutable")], expected=[False, True]
        )
    assert await numbers(inbox, 1) == [1]


async def test_messages_with_the_same_id_are_routed_by_their_own_keys(transport: Transport) -> None:
    await transport.declare(QueueSpec("q", ("heard",)))
    outcomes = await asyncio.gather(
        *(
            publish(transport, an_envelope(key=key, id="the same"))
            for key in ("unroutable", "heard", "unroutable")
        ),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Unroutable, type(None), Unroutable]


async def test_a_message_to_a_deleted_queue_is_refused(transport: Transport) -> None:
    with pytest.raises(Unroutable):
        await transport.delay("reply:gone", an_envelope(), 0.0)


async def test_all_fields_of_an_envelope_arrive(transport: Transport) -> None:
    inbox = await transport.consume(QueueSpec("q", ("#",)), 10)
    full = an_envelope(
        correlation="story",
        causation="cause",
        attempt=3,
        faults=2,
        unroutable=3,
        sent_at=1_700_000_000.123456,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        reply_to="reply:1",
        error="no, because \N{SNOWMAN}",
        again=True,
        first_died=1_699_999_999.5,
    )
    bare = an_envelope()
    await publish(transport, full)
    await publish(transport, bare)
    await publish(transport, full, bare)  # several messages may be in one frame
    for sent in (full, bare, full, bare):
        delivery = await take(inbox)
        assert delivery.envelope == sent
        assert delivery.problem == ""
        assert delivery.crashes == 0


# Acknowledgements


async def test_at_most_the_prefetch_count_is_delivered(transport: Transport) -> None:
    inbox = await transport.consume(QueueSpec("q", ("build.requested",)), 2)
    await publish(transport, *(an_envelope(number) for number in range(5)))
    first, second = await take(inbox), await take(inbox)
    assert inbox.get_nowait() is None
    third = asyncio.create_task(inbox.get())
    await publish(transport, an_envelope(5))  # long enough for a third message to arrive
    assert not third.done()
    second.done()
    async with patience():
        assert number_in(await third) == 2
    first.done()
    (await third).done()
    assert await numbers(inbox, 3) == [3, 4, 5]


async def test_the_bytes_in_hand_of_a_reader_are_limited(transport: Transport) -> None:
    """A thousand messages of a megabyte, each several times as large once decoded, would be gigabytes."""
    mib = 1024 * 1024
    body = b'"%s"' % (b"x" * (mib - 2))
    inbox = await transport.consume(QueueSpec("q", ("build.requested",)), 1000)
    for _ in range(24):
        await publish(transport, an_envelope(body=msgspec.Raw(body)))
    held = [await take(inbox) for _ in range(MAX_IN_HAND_BYTES // mib)]
    await publish(transport, an_envelope(1))  # long enough for another message to arrive
    assert inbox.get_nowait() is None
    held.pop().done()
    held.pop().requeue()
    held += [await take(inbox), await take(inbox)]
    assert inbox.get_nowait() is None
    for delivery in held:
        delivery.done()
    rest = [await take(inbox) for _ in range(24 + 1 - 1 - len(held))]
    assert [len(delivery.envelope.body) for delivery in rest].count(mib) == len(rest) - 1
    for delivery in rest:
        delivery.done()


async def test_a_requeued_message_comes_again(connect: Connect) -> None:
    one, other = await connect(), await connect()
    queue = QueueSpec("q", ("build.requested",))
    inbox = await one.consume(queue, 10)
    await publish(one, an_envelope(1))
    (await take(inbox)).requeue()
    again = await take(inbox)
    assert number_in(again) == 1
    again.requeue()
    await inbox.stop()
    assert await numbers(await other.consume(queue, 10), 1) == [1]


async def test_one_message_of_a_frame_is_requeued_alone(connect: Connect) -> None:
    queue = QueueSpec("q", ("build.requested",))
    first = await connect()
    inbox = await first.consume(queue, 10)
    await publish(first, *(an_envelope(number) for number in range(4)))
    held = [await take(inbox) for _ in range(4)]
    held[1].requeue()
    again = await take(inbox)  # although other messages of its frame are not settled
    assert again.envelope == held[1].envelope
    for delivery in (held[0], held[2], held[3], again):
        delivery.done()
    await first.close()
    second = await connect()
    inbox = await second.consume(queue, 10)
    await publish(second, an_envelope(9))
    assert await numbers(inbox, 1) == [9]


async def test_the_first_settlement_of_a_message_counts(transport: Transport) -> None:
    inbox = await transport.consume(QueueSpec("q", ("build.requested",)), 10)
    await publish(transport, an_envelope(1))
    delivery = await take(inbox)
    delivery.done()
    delivery.requeue()
    delivery.done()
    await publish(transport, an_envelope(2))
    assert await numbers(inbox, 1) == [2]


async def test_messages_of_a_lost_consumer_come_again_with_a_crash_count(connect: Connect) -> None:
    queue = QueueSpec("q", ("build.requested",))
    publisher = await connect()
    await publisher.declare(queue)
    await publish(publisher, an_envelope(1))
    for crashes in range(3):
        reader = await connect()
        delivery = await take(await reader.consume(queue, 10))
        assert (number_in(delivery), delivery.crashes) == (1, crashes)
        await reader.close()
        delivery.done()  # too late: of no effect
        delivery.requeue()


async def test_messages_returned_by_a_stopping_reader_do_not_count_as_crashed(connect: Connect) -> None:
    """Redelivered messages are handled one at a time, so a count would delay what a stopped worker held."""
    queue = QueueSpec("q", ("build.requested",))
    one, other = await connect(), await connect()
    leaving = await one.consume(queue, 100)
    await publish(one, *(an_envelope(number) for number in range(6)))  # some share a frame
    for number in (6, 7, 8):
        await publish(one, an_envelope(number))
    in_hand = [await take(leaving), await take(leaving)]
    await leaving.stop()
    in_hand[1].requeue()  # like a handler that does not end in time
    staying = await other.consume(queue, 100)
    returned = [await take(staying) for _ in range(8)]
    assert sorted(map(number_in, returned)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [delivery.crashes for delivery in returned] == [0] * 8
    for delivery in (in_hand[0], *returned):
        delivery.done()


# Delays


async def test_a_delayed_message_is_delivered_unchanged_after_its_delay(transport: Transport) -> None:
    queue = QueueSpec("scheduler:build.*", ("build.*",))
    inbox = await transport.consume(queue, 10)
    await transport.declare(QueueSpec("scheduler:build.placed", ("nothing",)))
    late, soon = an_envelope(1, attempt=2, faults=1), an_envelope(2)
    started = monotonic()
    await transport.delay(queue.name, late, 0.5)
    await transport.delay(queue.name, soon, 0.05)
    await publish(transport, an_envelope(3))
    assert await numbers(inbox, 2) == [3, 2]
    delivery = await take(inbox)
    assert monotonic() - started >= 0.5
    assert delivery.envelope == late


async def depths_are(
    transport: Transport, names: list[str], *, queues: dict[str, tuple[int, int]], dead: int, delayed: int
) -> None:
    """Wait until the transport reports these numbers; a broker counts with a delay."""
    expected = BusDepths({name: QueueDepth(*one) for name, one in queues.items()}, dead, delayed)

    async def they_are() -> bool:
        return await transport.depths(names) == expected

    await until(they_are)


async def test_queue_depths_count_messages_and_consumers(connect: Connect) -> None:
    transport, other = await connect(), await connect()
    names = ["q", "read", "nobody made it"]
    await depths_are(transport, names, queues={}, dead=0, delayed=0)
    await other.declare(QueueSpec("q", ("build.requested",)))
    await other.consume(QueueSpec("read", ("nothing",)), 10)
    for number in range(3):
        await publish(other, an_envelope(number))
    await other.delay("q", an_envelope(9), 300)
    await transport.store_dead_letter(a_letter(1))
    await depths_are(transport, names, queues={"q": (3, 0), "read": (0, 1)}, dead=1, delayed=1)
    reading = await transport.consume(QueueSpec("q", ("build.requested",)), 10)
    assert await numbers(reading, 3) == [0, 1, 2]  # counting removes no message
    await depths_are(transport, ["q"], queues={"q": (0, 1)}, dead=1, delayed=1)
    await reading.stop()
    await transport.remove_dead_letters(None)
    await depths_are(transport, ["q"], queues={"q": (0, 0)}, dead=0, delayed=1)


# Dead letters


async def test_dead_letters_are_listed_oldest_first_and_stay(connect: Connect) -> None:
    burying, looking = await connect(), await connect()
    letters = [a_letter(number) for number in range(5)]
    for letter in letters:
        await burying.store_dead_letter(letter)
    for _ in range(25):  # more often than a broker may by default hand out the same message
        assert await looking.dead_letters() == letters
    assert await looking.dead_letters(limit=2) == letters[:2]


async def test_dead_letters_are_read_one_by_one(transport: Transport) -> None:
    for number in range(50):
        await transport.store_dead_letter(a_letter(number))
    async with aclosing(transport.each_dead_letter(after="letter-9", beginning="letter-1")) as letters:
        ids = [letter.id async for letter in letters]
    assert ids == [f"letter-{number}" for number in range(10, 20)]
    async with aclosing(transport.each_dead_letter()) as letters:
        async for letter in letters:
            if letter.id == "letter-5":
                break
    assert len(await transport.dead_letters()) == 50
    with pytest.raises(NoSuchLetter):
        await anext(transport.each_dead_letter(after="x"))


async def test_all_dead_letters_can_be_removed_together(transport: Transport) -> None:
    for number in range(70):
        await transport.store_dead_letter(a_letter(number))
    rescued: list[str] = []

    async def rescue(letter: DeadLetter) -> bool:
        rescued.append(letter.id)
        if letter.id == "letter-7":
            await transport.store_dead_letter(a_letter(7, died=letter.died + 1, reason="again"))
        return True

    assert await transport.remove_dead_letters(None, rescue) == 70
    assert rescued == [f"letter-{number}" for number in range(70)]
    assert [letter.reason for letter in await transport.dead_letters()] == ["again"]
    assert await transport.remove_dead_letters(None) == 1
    assert await transport.dead_letters() == []


async def test_a_letter_whose_replay_fails_stays(transport: Transport) -> None:
    for number in range(3):
        await transport.store_dead_letter(a_letter(number))

    async def rescue(letter: DeadLetter) -> bool:
        if letter.id == "letter-1":
            raise Unroutable("no queue is bound to it")
        return True

    with pytest.raises(Unroutable):
        await transport.remove_dead_letters(["letter-0", "letter-1"], rescue)
    assert [letter.id for letter in await transport.dead_letters()] == ["letter-1", "letter-2"]


async def test_a_letter_that_cannot_be_replayed_does_not_block_later_letters(transport: Transport) -> None:
    for number in range(70):
        await transport.store_dead_letter(a_letter(number))

    async def rescue(letter: DeadLetter) -> bool:
        return letter.id not in ("letter-0", "letter-40")

    assert await transport.remove_dead_letters(None, rescue) == 68
    assert {letter.id for letter in await transport.dead_letters()} == {"letter-0", "letter-40"}


async def test_a_body_that_is_not_json_does_not_close_the_connection(transport: Transport) -> None:
    inbox = await transport.consume(QueueSpec("hears", ("some.thing",)), 10)
    with suppress(Undecodable):
        bad = msgspec.structs.replace(an_envelope(1), body=msgspec.Raw(b"\x00bad"))
        await transport.delay("hears", bad, 0.0)
        assert bytes((await take(inbox)).envelope.body) == b"\x00bad"
    await transport.delay("hears", an_envelope(2), 0.0)
    assert number_in(await take(inbox)) == 2
