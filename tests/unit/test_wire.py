"""The frames that every message takes, read and written as bytes."""

import asyncio
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from berth.cell_file import read_cell_file
from berth.configuration import read as read_settings
from berth.importing.bring_over_aggregates import NoAggregates
from berth.importing.bring_over_aggregates import read as read_aggregates
from berth.kit.boot_requests import flavor_instead
from berth.settings import BadSetting
from bus.errors import Undecodable
from bus.messages import BuildRequested
from bus.protocol import MAX_COUNT, MAX_TIME, DeadLetter, Envelope, decode, decode_frame
from bus.rabbit.amqp_messages import letter_in, open_message, properties_of, properties_of_letter
from bus.rabbit.fast_channels.frames import (
    KEPT_BYTES,
    Arrived,
    FramesOfChannel,
    NoQueueBound,
    NotTaken,
    Post,
    Properties,
    Wire,
)
from bus.rabbit.topology import BrokerNames
from bus.requests import Flavor
from ironic_sync.api import IronicRefused
from ironic_sync.api import _read as read_answer
from ironic_sync.core.node import Skipped, opened
from placement_worker.http import access, schemas
from placement_worker.http.access import BadTokens, TokenFile
from placement_worker.http.errors import Problem

CHANNEL = 3
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


LARGEST = 30_000  # bytes of a body that is received completely


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
            largest=LARGEST,
        )
        self.events: list[Arrived] = []
        self.channel.consumers["me"] = lambda message: self.events.append(
            msgspec.structs.replace(message, properties=None)
        )

    async def others(self) -> bytes:
        self.wire.feed_eof()
        return await self.wire.read()

    async def published(self, id_: str | None, *, mandatory: bool = True) -> "asyncio.Task[None]":
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


def delivered(body: bytes, tag: int = 7, consumer: str = "me", *, at_once: int = 1000, **reply: Any) -> bytes:
    arguments = short(consumer) + struct.pack(">QB", tag, 1) + short("ex") + short("a.key")
    return method(DELIVER, arguments) + content(body, Properties(**reply), at_once=at_once)


def came_back(id_: str | None) -> bytes:
    arguments = struct.pack(">H", 312) + short("NO_ROUTE") + short("ex") + short("key")
    return method(RETURN, arguments) + content(b"{}", Properties(message_id=id_))


def settled(what: tuple[int, int], tag: int, how: int = 0) -> bytes:
    return method(what, struct.pack(">QB", tag, how))


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
async def test_a_delivery_is_assembled_from_any_pieces(size: int) -> None:
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
    assert world.events == [
        Arrived(7, "ex", "a.key", True, b"x" * 2500, "i", "T", "c", "r", when, {"a": 1}, size=2500),
        Arrived(8, "ex", "a.key", True, b"", None, None, None, None, None, {}),
    ]
    assert await world.others() == b""


@pytest.mark.parametrize("size", [7, 10_000, 100_000])
async def test_of_a_body_that_is_too_large_only_the_beginning_is_kept(size: int) -> None:
    world = OneChannel()
    whole = bytes(range(256)) * 200
    coming = delivered(whole) + delivered(whole[:LARGEST], tag=8)
    for at in range(0, len(coming), size):
        world.wire.feed_data(coming[at : at + size])
    large, largest = world.events
    assert (large.body, large.size) == (whole[:KEPT_BYTES], len(whole))
    assert (largest.body, largest.size) == (whole[:LARGEST], LARGEST)


def test_a_message_of_which_only_the_beginning_was_received_has_a_problem() -> None:
    (_, problem) = open_message(msgspec.structs.replace(arrived(Properties()), size=60_000_000), "k")
    assert problem == (
        "the message is 60000000 bytes; the bus carries at most 1048576; only its first 2 bytes are stored"
    )


async def test_unreadable_properties_are_replaced_by_defaults() -> None:
    """A stranger's odd timestamp would end the connection, again at every redelivery."""
    odd = struct.pack(">HHQHQ", 60, 0, 1, 0x0040, 2**63)
    more = struct.pack(">HHQH", 60, 0, 1, 0x0001)
    for header in (odd, more):
        world = OneChannel()
        arguments = short("me") + struct.pack(">QB", 7, 0) + short("ex") + short("key")
        world.wire.feed_data(method(DELIVER, arguments) + frame(HEADER, header) + frame(BODY, b"1"))
        assert world.events == [
            Arrived(7, "ex", "key", False, b"1", None, None, None, None, None, {}, size=1)
        ]
        blank = header[:12] + b"\0\0" + header[14:]
        world.wire.feed_data(method(GET_OK) + frame(HEADER, header) + frame(BODY, b"1"))
        assert await world.others() == method(GET_OK) + frame(HEADER, blank) + frame(BODY, b"1")


async def test_a_message_with_an_invalid_key_is_delivered() -> None:
    world = OneChannel()
    arguments = short("me") + struct.pack(">QB", 7, 0) + short("ex") + b"\x01\xff"
    world.wire.feed_data(method(DELIVER, arguments) + content(b"1", Properties()))
    assert [message.key for message in world.events] == ["\N{REPLACEMENT CHARACTER}"]


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


async def test_a_returned_message_without_an_id_is_not_taken_for_confirmed() -> None:
    world = OneChannel()
    task = await world.published(None)
    world.wire.feed_data(came_back(None) + settled(ACK, 1))
    with pytest.raises(NoQueueBound):
        await task
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


@pytest.mark.parametrize("field", ["exchange", "key"])
async def test_a_name_longer_than_amqp_carries_is_refused_before_anything_is_written(field: str) -> None:
    world = OneChannel()
    names = {"exchange": "ex", "key": "key", field: "k" * 256}
    with pytest.raises(ValueError, match="256"):
        await world.channel.publish(Post(**names, body=b"", properties=Properties(), mandatory=False))
    assert world.sink.written == b""


async def test_our_frames_count_as_heartbeats_for_aio_pika() -> None:
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


HUGE = 2**200
NAN, ENDLESS = float("nan"), float("inf")

NAMES = BrokerNames("berth")


def arrived(properties: Any, body: bytes = b"{}") -> Arrived:
    """The message as a reader has it, through AMQP's own bytes."""
    sent = properties.marshal()
    reply = Properties()
    reply.unmarshal(int.from_bytes(sent[:2], "big"), sent[2:])
    return an_arrived(
        id=reply.message_id,
        type=reply.message_type,
        correlation=reply.correlation_id,
        reply_to=reply.reply_to,
        timestamp=reply.timestamp,
        headers=reply.headers or {},
        body=body,
    )


def an_arrived(**more: Any) -> Arrived:
    facts: dict[str, Any] = {
        "tag": 1,
        "exchange": "berth",
        "key": "0.q",
        "redelivered": False,
        "body": b"{}",
        "id": "1",
        "type": "T",
        "correlation": None,
        "reply_to": None,
        "timestamp": None,
        "headers": {},
    }
    return Arrived(**(facts | more))


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("attempt", 2**63, MAX_COUNT),
        ("attempt", HUGE, MAX_COUNT),
        ("attempt", -HUGE, 1),
        ("faults", 2**63, MAX_COUNT),
        ("unroutable", 2**63, MAX_COUNT),
        ("sent_at", 1e300, 0.0),
        ("sent_at", NAN, 0.0),
        ("sent_at", ENDLESS, 0.0),
        ("sent_at", 1_700_000_000.123456, 1_700_000_000.123456),
        ("first_died", -ENDLESS, 0.0),
        ("first_died", MAX_TIME * 2, 0.0),
        ("causation", "\N{SNOWMAN}" * 255, "\N{SNOWMAN}" * 85),
        ("correlation", "c" * 300, "c" * 255),
        ("traceparent", "\x00\x1b", "\x00\x1b"),
        ("error", "e" * 100_000, "e" * 8192),
        ("id", "\ud800x", "?x"),
        ("reply_to", "\N{SNOWMAN}" * 255, "\N{SNOWMAN}" * 85),
    ],
)
def test_any_envelope_can_be_sent(field: str, value: Any, read: Any) -> None:
    facts: dict[str, Any] = {"id": "1", "type": "T", "key": "k", "body": msgspec.Raw(b"{}"), field: value}
    envelope = Envelope(**facts)
    setattr(envelope, field, value)  # also past what reading one allows
    ((opened,), problem) = open_message(arrived(properties_of(envelope, "k")), "k")
    assert problem == ""
    assert getattr(opened, field) == read


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("attempt", 2**63, MAX_COUNT),
        ("attempt", -5, 0),
        ("died", NAN, 0.0),
        ("died", 1e300, 0.0),
        ("first_died", 1e300, 2.5),  # then it is when it died last
        ("queue", "q" * 100_000, "q" * 8192),
        ("key", "\ud800", "?"),
        ("type", "t" * 100_000, "t" * 8192),
        ("reason", "\N{SNOWMAN}" * 100_000, "\N{SNOWMAN}" * 2730),
        ("traceback", "t" * 100_000, "t" * 32768),
        ("id", "\N{SNOWMAN}" * 300, "\N{SNOWMAN}" * 85),
    ],
)
def test_any_dead_letter_can_be_stored(field: str, value: Any, read: Any) -> None:
    facts: dict[str, Any] = {
        "id": "1", "queue": "q", "key": "k", "type": "T", "reason": "why", "first_died": 1.5, "died": 2.5,
        "attempt": 2, "correlation": "", "body": b"\xff", field: value,
    }  # fmt: skip
    letter = letter_in(arrived(properties_of_letter(DeadLetter(**facts))), NAMES)
    assert getattr(letter, field) == read


@pytest.mark.parametrize(
    "odd",
    [
        "", "1e300", "-1", "nan", "inf", "1e400", "x", "0x10", b"\xff", True, -1, HUGE, 1e300, NAN, ENDLESS,
        Decimal("1e50"), [1], {"a": 1}, None, datetime(2023, 1, 1, tzinfo=UTC),
    ],
)  # fmt: skip
def test_odd_headers_are_read_as_valid_values(odd: object) -> None:
    names: tuple[str, ...] = (
        "attempt",
        "faults",
        "sent_at",
        "first-died",
        "key",
        "causation_id",
        "traceparent",
        "error",
        "again",
    )
    names += ("x-died", "x-first-died", "x-attempt", "x-queue", "x-key", "x-type", "x-reason", "x-traceback")
    names += ("x-sender",)
    message = an_arrived(headers=dict.fromkeys(names, odd), timestamp=odd, id=odd, type=odd, correlation=odd)
    letter = letter_in(message, NAMES)
    assert 0 <= letter.died < MAX_TIME and 0 <= letter.first_died < MAX_TIME
    assert 0 <= letter.attempt <= MAX_COUNT
    arrived(properties_of_letter(letter))
    ((opened,), _) = open_message(message, "k")
    assert 1 <= opened.attempt <= MAX_COUNT and 0 <= opened.faults <= MAX_COUNT
    assert 0 <= opened.sent_at < MAX_TIME and 0 <= opened.first_died < MAX_TIME
    arrived(properties_of(opened, "k"))


@pytest.mark.parametrize(
    ("exchange", "key", "headers", "cell"),
    [
        ("berth.dead", "letter", {}, ""),
        ("berth.dead", "letter.c1", {}, "c1"),
        ("berth.dead", "letter.c1", {"x-queue": "conductor.c2:agent.report.c2"}, "c1"),
        ("berth.dead", "letter", {"x-death": [{"queue": "conductor.c1:mine"}]}, "?"),
        ("berth.dead", "letter.c2", {"x-death": [{"queue": "conductor.c1:mine"}]}, "?"),
        ("berth.queues", "0.conductor.c1:gone", {"x-queue": "scheduler:build.requested"}, "c1"),
        ("berth.queues", "0.scheduler:gone", {}, ""),
    ],
)
def test_the_cell_of_a_dead_letter_follows_from_its_key(
    exchange: str, key: str, headers: dict[str, Any], cell: str
) -> None:
    assert letter_in(an_arrived(exchange=exchange, key=key, headers=headers), NAMES).cell == cell


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        ({"x-sender": "", "x-reason": "it was forwarded by a colleague"}, ""),
        ({"x-sender": "client.shop.0", "x-reason": "it was forwarded by"}, "client.shop.0"),
        ({"x-reason": "BuildRequested: flavor is missing"}, ""),
    ],
)
def test_a_dead_letter_says_whether_its_sender_was_refused(headers: dict[str, Any], sender: str) -> None:
    assert letter_in(an_arrived(exchange="berth.dead", key="letter", headers=headers), NAMES).sender == sender


DEEP = "[" * 20_000 + "]" * 20_000
ZERO = '{"a": ' + "[" * 700 + r'"\u0000"' + "]" * 700 + "}"
CASES: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "message": (lambda _: decode(BuildRequested, DEEP.encode()), Undecodable, "got `array`"),
    "unknown field of a message": (lambda _: decode(BuildRequested, f'{{"later": {DEEP}}}'.encode()),
        Undecodable, "not JSON"),
    "frame": (lambda _: decode_frame(DEEP.encode()), Undecodable, "not a frame"),
    "HTTP body": (lambda _: schemas.PUT_TRAITS.read(DEEP.encode()), Problem, "Malformed JSON"),
    "HTTP body with U+0000": (lambda _: schemas.PUT_TRAITS.read(ZERO.encode()), Problem, "U+0000"),
    "Ironic's answer": (lambda _: read_answer("GET", httpx.Response(200, text=f'{{"a": {DEEP}}}')),
        IronicRefused, "not answered with an object"),
    "settings": (lambda path: read_settings(file=path / "a.toml", environment={}), BadSetting, "not TOML"),
    "cell file": (lambda path: read_cell_file(path / "a.toml", "c1"), BadSetting, "not TOML"),
    "tokens in JSON": (lambda path: TokenFile(path / "a.json"), BadTokens, "unknown field"),
    "tokens in TOML": (lambda path: TokenFile(path / "a.toml"), BadTokens, "not TOML"),
    "policy in JSON": (lambda path: access.load_policy(path / "a.json"), access.BadPolicy, "got `array`"),
    "Nova's aggregates": (lambda _: read_aggregates(DEEP.encode()), NoAggregates, "not JSON"),
    "flavor": (lambda path: flavor_instead(Flavor(name="f"), str(path / "a.json")), BadSetting,
        "no flavor in JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nested_lists_are_refused_with_a_clear_error(name: str, tmp_path: Path) -> None:
    for suffix, text in (("json", f'{{"later": {DEEP}}}'), ("yaml", DEEP), ("toml", f"a = {DEEP}")):
        (tmp_path / f"a.{suffix}").write_text(text)
    read, error, sentence = CASES[name]
    with pytest.raises(error) as refused:
        read(tmp_path)
    assert sentence in str(refused.value)


def test_a_nested_notification_of_ironic_is_skipped() -> None:
    assert isinstance(opened(DEEP.encode()), Skipped)
