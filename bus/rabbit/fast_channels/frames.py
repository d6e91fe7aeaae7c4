"""Encodes and decodes the AMQP frames of messages directly as bytes: publish, confirm, deliver, acknowledge.
All other frames are left to aio-pika.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec
from aio_pika import DeliveryMode, Message

Properties = type(Message(b"").properties)  # the properties of an AMQP message
PERSISTENT = DeliveryMode.PERSISTENT.value

_START = struct.Struct(">BHI")  # header of a frame: type, channel, size of the content before _END
_END = b"\xce"
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_KINDS = (_METHOD, _HEADER, _BODY, _HEARTBEAT)
_SIGN_OF_LIFE = _START.pack(_HEARTBEAT, 0, 0) + _END
KEPT_BYTES = 16 * 1024  # of a body that is too large
_LIFE_SECONDS = 5.0  # between heartbeats passed to aio-pika, which does not see the frames decoded here

# Class and method ids of the frames that are encoded and decoded here, and of the frames only decoded here.
_DELIVER, _RETURN, _PUBLISH, _ACK, _NACK = 0x3C003C, 0x3C0032, 0x3C0028, 0x3C0050, 0x3C0078
_CLOSE, _CLOSED = 0x140028, 0x140029
_BLOCKED, _UNBLOCKED = 0x0A003C, 0x0A003D  # the broker stops, or begins again, to accept messages
_SETTLED = struct.Struct(">QB")  # a delivery tag, and whether all earlier tags are meant too
_CONTENT = struct.Struct(">HHQH")  # content header: class, weight, size of the body, flags of properties
_BASIC = 60


class Post(msgspec.Struct, frozen=True):
    """An AMQP message to publish. If it is `mandatory`, at least one queue must receive it."""

    exchange: str
    key: str
    body: bytes
    properties: Any
    mandatory: bool


class Arrived(msgspec.Struct, frozen=True):
    """A received AMQP message. Fields that its publisher sets may have any value."""

    tag: int
    exchange: str
    key: str
    redelivered: bool
    body: bytes
    id: object
    type: object
    correlation: object
    reply_to: object
    timestamp: object
    headers: Mapping[str, Any]
    properties: Any = None  # all properties, as received
    size: int = 0  # of the body as published; `body` has only the beginning of a body that is too large


def arrived(
    tag: int, exchange: str, key: str, redelivered: bool, body: bytes, properties: Any, size: int
) -> Arrived:
    """Return a received message from the fields of its frames."""
    return Arrived(
        tag,
        exchange,
        key,
        redelivered,
        body,
        properties.message_id,
        properties.message_type,
        properties.correlation_id,
        properties.reply_to,
        properties.timestamp,
        properties.headers or {},
        properties,
        size,
    )


OnMessage = Callable[[Arrived], None]


class NoQueueBound(Exception):
    """Raised if no queue is bound to the routing key of a mandatory message."""


class NotTaken(Exception):
    """Raised if the broker refuses a message (basic.nack), because it could not store the message."""


class Wire(asyncio.StreamReader):
    """Reads a connection's AMQP frames; frequent frames go directly to their channel, not to aio-pika."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=1024 * 1024, loop=loop)
        self.channels: dict[int, FramesOfChannel] = {}
        self.reads = 0  # how often data was received
        self.blocked = ""  # why the broker accepts no messages, such as "low on disk"; empty: it does
        self._clock = loop.time
        self._rest = b""
        self._framed = True
        self._last_read = self._clock()

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # asyncio passes bytes only
        self.reads += 1
        if not self._framed:
            super().feed_data(data)
            return
        data = self._rest + data if self._rest else data
        frames = []
        at, end = 0, len(data)
        while end - at >= _START.size:
            kind, number, size = _START.unpack_from(data, at)
            if kind not in _KINDS:  # the data is not AMQP: pass it to aio-pika, which reports the error
                self._framed = False
                frames.append(data[at:])
                at = end
                break
            past = at + _START.size + size + len(_END)
            if past > end:
                break
            if number == 0 and kind == _METHOD:
                self._method(data[at + _START.size : past - len(_END)])
            channel = self.channels.get(number)
            if channel is None or not channel.take(kind, data, at + _START.size, past - len(_END)):
                frames.append(_readable(kind, data[at:past]))
            at = past
        self._rest = data[at:]
        now = self._clock()
        if not frames and now - self._last_read > _LIFE_SECONDS:
            frames.append(_SIGN_OF_LIFE)
        if frames:
            self._last_read = now
            super().feed_data(b"".join(frames))

    def _method(self, payload: bytes) -> None:
        method = int.from_bytes(payload[:4])
        if method == _BLOCKED:  # payload: 4 bytes of the method, 1 byte of the reason's length, the reason
            self.blocked = payload[5:].decode(errors="replace") or "without a reason"
        elif method == _UNBLOCKED:
            self.blocked = ""


class FramesOfChannel:
    """Sends and receives the frames of one channel: publications, confirms, deliveries, acknowledgements."""

    def __init__(
        self,
        wire: Wire,
        writer: asyncio.StreamWriter,
        number: int,
        frame_max: int,
        *,
        confirms: bool,
        largest: int,
    ) -> None:
        self.consumers: dict[str, OnMessage] = {}  # consumer tag → callback
        self._writer = writer
        self._number = number
        self._most = frame_max - _START.size - len(_END)
        self._confirms = confirms
        self._largest = largest  # bytes of a body that is received completely
        self._published = 0
        self._unconfirmed: dict[int, _Unconfirmed] = {}  # delivery tag → message, oldest first
        self._tags: dict[str, int] = {}  # message id → delivery tag, to find a returned message
        self._coming: _Coming | None = None
        self._is_closed = False
        self._channels = wire.channels
        self._channels[number] = self

    @property
    def oldest(self) -> int:
        """Return the delivery tag of the oldest unconfirmed message; 0 if all are confirmed."""
        return next(iter(self._unconfirmed), 0)

    @property
    def oldest_id(self) -> str:
        """Return the message id of the oldest unconfirmed message; empty if all are confirmed."""
        return next(iter(self._unconfirmed.values()), _NONE)[1]

    async def publish(self, post: Post) -> None:
        """Publish a message; on a channel with confirms, wait for the confirm."""
        frames = self._frames_of(post)
        confirmed = self._awaited(post) if self._confirms else None
        if not self._is_closed:
            self._writer.write(frames)
            await self._writer.drain()
        if confirmed is not None:
            await confirmed

    def ack(self, tag: int, *, multiple: bool) -> None:
        self._on_settled(_ACK, tag, multiple)

    def nack(self, tag: int, *, multiple: bool) -> None:
        self._on_settled(_NACK, tag, multiple + 2)

    def end(self, why: BaseException) -> None:
        """Fail all publications without a confirm, because the channel closed."""
        self._is_closed = True
        for tag in tuple(self._unconfirmed):
            self._settled(tag, why)

    def _frames_of(self, post: Post) -> bytes:
        method = b"".join(
            (_PUBLISH.to_bytes(4), b"\0\0", _short(post.exchange), _short(post.key), bytes((post.mandatory,)))
        )
        header = struct.pack(">HHQ", _BASIC, 0, len(post.body)) + post.properties.marshal()
        bodies = [post.body[at : at + self._most] for at in range(0, len(post.body), self._most)]
        framed = [self._frame(_METHOD, method), self._frame(_HEADER, header)]
        return b"".join((*framed, *(self._frame(_BODY, body) for body in bodies)))

    def _frame(self, kind: int, payload: bytes) -> bytes:
        return b"".join((_START.pack(kind, self._number, len(payload)), payload, _END))

    def _awaited(self, post: Post) -> asyncio.Future[None]:
        self._published += 1
        id_ = post.properties.message_id or ""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed[self._published] = confirmed, id_
        self._tags[id_] = self._published
        return confirmed

    def _on_settled(self, method: int, tag: int, how: int) -> None:
        if not self._is_closed:
            self._writer.write(self._frame(_METHOD, method.to_bytes(4) + _SETTLED.pack(tag, how)))

    def take(self, kind: int, data: bytes, at: int, end: int) -> bool:
        """Process a frame of a delivery or a confirm; return False, without effect, for any other frame."""
        if kind == _METHOD:
            return self._take_method(int.from_bytes(data[at : at + 4]), data, at + 4)
        coming = self._coming
        if coming is None:
            return False
        if kind == _HEADER:
            coming.size = coming.missing = int.from_bytes(data[at + 4 : at + 12])
            coming.header = data[at:end]
        else:
            coming.add(data, at, end, self._largest)
        if coming.missing <= 0:
            self._coming = None
            self._has_come(coming)
        return True

    def _take_method(self, method: int, data: bytes, at: int) -> bool:
        if method == _DELIVER:
            consumer, at = _text(data, at)
            tag, redelivered = _SETTLED.unpack_from(data, at)
            exchange, at = _text(data, at + _SETTLED.size)
            key, at = _text(data, at)
            self._coming = _Coming(consumer, tag, exchange, key, bool(redelivered))
        elif method in (_ACK, _NACK):
            tag, how = _SETTLED.unpack_from(data, at)
            problem = None if method == _ACK else NotTaken("the broker refuses a message")
            several = how & 1  # the frame is about this message and all earlier messages
            for confirmed in list(takewhile(tag.__ge__, self._unconfirmed)) if several else (tag,):
                self._settled(confirmed, problem)
        elif method == _RETURN:
            self._coming = _Coming(None, 0, "", "", False)
        else:
            if method in (_CLOSE, _CLOSED):  # the channel's number may be reused from now on
                self._is_closed = True
                self._channels.pop(self._number, None)
            return False
        return True

    def _settled(self, tag: int, problem: BaseException | None) -> None:
        confirmed, id_ = self._unconfirmed.pop(tag, _NONE)
        if self._tags.get(id_) == tag:
            del self._tags[id_]
        if confirmed is None or confirmed.done():
            return
        if problem is None:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(problem)
            confirmed.exception()  # asyncio logs exceptions that are not retrieved

    def _has_come(self, coming: "_Coming") -> None:
        properties = _properties(coming.header)
        if properties is None:
            properties = Properties()
        if coming.consumer is None:  # returned by the broker, which will nevertheless confirm it
            self._settled(self._tags.get(str(properties.message_id or ""), 0), NoQueueBound())
            return
        on_message = self.consumers.get(coming.consumer)
        if on_message is not None:
            body = coming.bodies[0] if len(coming.bodies) == 1 else b"".join(coming.bodies)
            tag, exchange, key = coming.tag, coming.exchange, coming.key
            on_message(arrived(tag, exchange, key, coming.redelivered, body, properties, coming.size))


_Unconfirmed = tuple[asyncio.Future[None], str]
_NONE: tuple[None, str] = (None, "")


@dataclass(eq=False, slots=True)
class _Coming:
    """A message that is incomplete: some of its AMQP frames have not arrived."""

    consumer: str | None  # consumer tag; None: a message that the broker returned as unroutable
    tag: int
    exchange: str
    key: str
    redelivered: bool
    size: int = 0  # number of bytes of the body
    missing: int = 0  # number of bytes of the body that have not arrived
    header: bytes = b""
    bodies: list[bytes] = field(default_factory=list)

    def add(self, data: bytes, at: int, end: int, largest: int) -> None:
        """Add a part of the body; of a body above `largest` bytes, only the first KEPT_BYTES are kept."""
        if self.size > largest:
            kept = KEPT_BYTES - (self.size - self.missing)
            if kept > 0:
                self.bodies.append(data[at : min(end, at + kept)])
        else:
            self.bodies.append(data[at:end])
        self.missing -= end - at


def _properties(header: bytes) -> Any | None:
    """Return the message properties in a content header frame, or None if the frame is unreadable."""
    properties = Properties()
    try:
        *_, flags = _CONTENT.unpack_from(header)
        if flags & 1:
            raise ValueError("only the first 16 property flags are supported")
        properties.unmarshal(flags, header[_CONTENT.size :])
    except Exception:  # the decoder may raise any exception for invalid data
        return None
    return properties


def _readable(kind: int, frame: bytes) -> bytes:
    """Return the AMQP frame, or if its message properties are unreadable, a copy without properties.

    With an invalid timestamp in a foreign message, aio-pika would close the connection at every redelivery.
    """
    if kind != _HEADER or _properties(frame[_START.size : -len(_END)]) is not None:
        return frame
    flags = _START.size + _CONTENT.size - 2
    return frame[:flags] + b"\0\0" + frame[flags + 2 :]


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data  # raises ValueError above 255 bytes, the limit of AMQP
