"""The frames that every message takes, read and written as bytes."""

import asyncio
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from bus.rabbit.wire import Arrived, FramesOfChannel, NoQueueBound, NotTaken, Post, Properties, Wire

CHANNEL, OTHER = 3, 4
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
DELIVER, GET_OK, RETURN, ACK, NACK, CLOSE = (60, 60), (60, 71), (60, 50), (60, 80), (60, 120), (20, 40)


class Sink:
    """The writing end of a connection."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        pass


class OneChannel:
    """A connection with one channel of ours, and what came of it."""

    def __init__(self, *, confirms: bool = True, frame_max: int = 131_072) -> None:
        self.wire = Wire(asyncio.get_running_loop())
        self.sink = Sink()
        self.channel = FramesOfChannel(
            self.wire,
            self.sink,  # type: ignore[arg-type]
            CHANNEL,
            frame_max,
            confirms=confirms,
        )
        self.heard: list[Arrived] = []
        self.channel.heard["me"] = self.heard.append

    async def others(self) -> bytes:
        self.wire.feed_eof()
        return await self.wire.read()

    async def published(self, id_: str, *, mandatory: bool = True) -> "asyncio.Task[None]":
        post = Post("ex", "key", b"{}", Properties(message_id=id_), mandatory)
        task = asyncio.ensure_future(self.channel.publish(post))
        await asyncio.sleep(0)
        return task


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(what: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(METHOD, struct.pack(">HH", *what) + arguments, channel)


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def content(body: bytes, properties: Any, channel: int = CHANNEL, *, at_once: int = 1000) -> bytes:
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties.marshal()
    pieces = [body[at : at + at_once] for at in range(0, len(body), at_once)]
    return frame(HEADER, header, channel) + b"".join(frame(BODY, piece, channel) for piece in pieces)


def delivered(body: bytes, tag: int = 7, consumer: str = "me", *, at_once: int = 1000, **said: Any) -> bytes:
    arguments = short(consumer) + struct.pack(">QB", tag, 1) + short("ex") + short("a.key")
    return method(DELIVER, arguments) + content(body, Properties(**said), at_once=at_once)


def came_back(id_: str) -> bytes:
    arguments = struct.pack(">H", 312) + short("NO_ROUTE") + short("ex") + short("key")
    return method(RETURN, arguments) + content(b"{}", Properties(message_id=id_))


def settled(what: tuple[int, int], tag: int, how: int = 0) -> bytes:
    return method(what, struct.pack(">QB", tag, how))


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
async def test_a_delivery_is_heard_however_it_is_cut(size: int) -> None:
    world = OneChannel()
    when = datetime(2026, 11, 22, tzinfo=UTC)
    coming = delivered(
        b"x" * 2500,
        message_id="i",
        message_type="T",
        correlation_id="c",
        reply_to="r",
        timestamp=when,
        headers={"a": 1},
    ) + delivered(b"", tag=8)
    for at in range(0, len(coming), size):
        world.wire.feed_data(coming[at : at + size])
    assert world.heard == [
        Arrived(7, "ex", "a.key", True, b"x" * 2500, "i", "T", "c", "r", when, {"a": 1}),
        Arrived(8, "ex", "a.key", True, b"", None, None, None, None, None, {}),
    ]
    assert await world.others() == b""


@pytest.mark.parametrize(
    ("what", "others"),
    [
        ("of a channel that is none of ours", method(DELIVER, channel=OTHER)),
        ("a question's answer", method(GET_OK) + content(b"abc", Properties(message_id="i"))),
        ("a heartbeat", frame(HEARTBEAT, b"", 0)),
        ("the end of the channel", method(CLOSE)),
    ],
    ids=["another channel", "an answer", "a heartbeat", "the end"],
)
async def test_all_other_frames_are_left_as_they_are(what: str, others: bytes) -> None:
    world = OneChannel()
    world.wire.feed_data(delivered(b"before") + others)
    assert await world.others() == others, what
    assert [message.body for message in world.heard] == [b"before"]


async def test_properties_that_cannot_be_read_are_none() -> None:
    """A stranger's odd timestamp would end the connection, again at every redelivery."""
    odd = struct.pack(">HHQHQ", 60, 0, 1, 0x0040, 2**63)
    more = struct.pack(">HHQH", 60, 0, 1, 0x0001)
    for header in (odd, more):
        world = OneChannel()
        arguments = short("me") + struct.pack(">QB", 7, 0) + short("ex") + short("key")
        world.wire.feed_data(method(DELIVER, arguments) + frame(HEADER, header) + frame(BODY, b"1"))
        assert world.heard == [Arrived(7, "ex", "key", False, b"1", None, None, None, None, None, {})]
        blank = header[:12] + b"\0\0" + header[14:]
        world.wire.feed_data(method(GET_OK) + frame(HEADER, header) + frame(BODY, b"1"))
        assert await world.others() == method(GET_OK) + frame(HEADER, blank) + frame(BODY, b"1")


async def test_a_key_that_is_no_text_is_heard_nevertheless() -> None:
    world = OneChannel()
    arguments = short("me") + struct.pack(">QB", 7, 0) + short("ex") + b"\x01\xff"
    world.wire.feed_data(method(DELIVER, arguments) + content(b"1", Properties()))
    assert [message.key for message in world.heard] == ["\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("answer", "fates"),
    [
        (settled(ACK, 1) + settled(ACK, 2) + settled(ACK, 3), [None, None, None]),
        (settled(ACK, 3, 1), [None, None, None]),
        (settled(NACK, 2) + settled(ACK, 3, 1), [None, NotTaken, None]),
        (came_back("two") + settled(ACK, 2) + settled(ACK, 3, 1), [None, NoQueueBound, None]),
        (came_back("nobody's") + settled(ACK, 3, 1), [None, None, None]),
    ],
    ids=["each", "all at once", "one is not taken", "one comes back", "a stranger comes back"],
)
async def test_each_publisher_gets_its_own_confirmation(
    answer: bytes, fates: list[type[Exception] | None]
) -> None:
    world = OneChannel()
    tasks = [await world.published(id_) for id_ in ("one", "two", "three")]
    assert not any(task.done() for task in tasks)
    world.wire.feed_data(answer)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [None if end is None else type(end) for end in ends] == fates
    assert await world.others() == b""


async def test_unconfirmed_messages_fail_with_their_channel() -> None:
    world = OneChannel()
    first = await world.published("one")
    world.wire.feed_data(method(CLOSE))
    written = world.sink.written
    second = await world.published("two")
    world.channel.ack(5, multiple=False)
    assert world.sink.written == written, "nothing may follow the end of a channel"
    world.channel.end(ConnectionError("it is over"))
    ends = await asyncio.gather(first, second, return_exceptions=True)
    assert [str(end) for end in ends] == ["it is over"] * 2


async def test_the_number_of_a_channel_that_ended_is_another_s() -> None:
    world = OneChannel()
    world.wire.feed_data(method(CLOSE) + settled(ACK, 1))
    assert await world.others() == method(CLOSE) + settled(ACK, 1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (lambda channel: channel.ack(9, multiple=True), settled(ACK, 9, 1)),
        (lambda channel: channel.nack(9, multiple=False), settled(NACK, 9, 2)),
    ],
    ids=["done", "put back"],
)
async def test_acknowledgements_are_sent(how: Callable[[FramesOfChannel], None], expected: bytes) -> None:
    world = OneChannel()
    how(world.channel)
    assert world.sink.written == expected


@pytest.mark.parametrize("body", [b"", b"{}", b"y" * 100, b"z" * 250])
async def test_a_published_message_is_a_method_a_header_and_body_frames(body: bytes) -> None:
    world = OneChannel(confirms=False, frame_max=108)
    said = Properties(message_id="i", content_type="application/json")
    await world.channel.publish(Post("ex", "key", body, said, mandatory=True))
    publish = method((60, 40), b"\0\0" + short("ex") + short("key") + b"\1")
    assert world.sink.written == publish + content(body, said, at_once=100)


@pytest.mark.parametrize("field", ["exchange", "key"])
async def test_a_name_longer_than_amqp_carries_is_refused_before_anything_is_written(field: str) -> None:
    world = OneChannel()
    names = {"exchange": "ex", "key": "key", field: "k" * 256}
    with pytest.raises(ValueError, match="256"):
        await world.channel.publish(Post(**names, body=b"", properties=Properties(), mandatory=False))
    assert world.sink.written == b""


async def test_aio_pika_knows_that_the_broker_lives_while_it_sends_only_our_frames() -> None:
    world = OneChannel()
    now = asyncio.get_running_loop().time()
    world.wire._clock = lambda: now
    for _ in range(20):
        now += 1.0
        world.wire.feed_data(delivered(b"1"))
    others = await world.others()
    assert others == frame(HEARTBEAT, b"", 0) * (len(others) // 8)
    assert 3 <= len(others) // 8 <= 4


async def test_invalid_frames_are_left_to_aio_pika() -> None:
    world = OneChannel()
    world.wire.feed_data(b"HTTP/1.1 400 Bad Request")
    world.wire.feed_data(b"\r\n")
    assert await world.others() == b"HTTP/1.1 400 Bad Request\r\n"
