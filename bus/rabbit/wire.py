"""Envelopes and dead letters as AMQP messages, and back. Nothing that strangers put in a message raises."""

import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from bus.codec import FRAME_TYPE, decode_frame
from bus.errors import Undecodable
from bus.protocol import MAX_MESSAGE_BYTES, DeadLetter, Envelope

JSON = "application/json"
PERSISTENT = 2
MAX_REASON = 8 * 1024
MAX_TRACEBACK = 32 * 1024  # all headers of a message must fit into one AMQP frame of 128 KiB
_SHORT = 255  # bytes in an AMQP short string
_MAX_WHOLE = 2**31 - 1
_STRANGERS = uuid.UUID("6b8a3c52-51c5-5d0e-9f0b-5f6f2c0f5d3e")


def properties(envelope: Envelope, key: str) -> Basic.Properties:
    """What an envelope says beside its body, when it travels alone to this routing key or queue."""
    headers: dict[str, Any] = {}
    if envelope.key != key:
        headers["key"] = envelope.key
    if envelope.causation:
        headers["causation_id"] = envelope.causation
    if envelope.attempt != 1:
        headers["attempt"] = min(envelope.attempt, _MAX_WHOLE)
    if envelope.faults:
        headers["faults"] = min(envelope.faults, _MAX_WHOLE)
    if envelope.sent_at:
        headers["sent_at"] = repr(envelope.sent_at)  # as text: pamqp would halve a float's precision
    if envelope.traceparent:
        headers["traceparent"] = envelope.traceparent
    if envelope.first_died:
        headers["first-died"] = repr(envelope.first_died)
    if envelope.error:
        headers["error"] = _cut(envelope.error, MAX_REASON)
    if envelope.again:
        headers["again"] = True
    return Basic.Properties(
        content_type=JSON,
        delivery_mode=PERSISTENT,
        message_id=_short(envelope.id),
        correlation_id=_short(envelope.correlation) or None,
        message_type=_short(envelope.type) or None,
        timestamp=datetime.fromtimestamp(envelope.sent_at, UTC) if 0 < envelope.sent_at < 2**32 else None,
        reply_to=_short(envelope.reply_to) or None,
        headers=headers or None,
    )


def frame_properties(id_: str) -> Basic.Properties:
    return Basic.Properties(
        content_type=JSON, delivery_mode=PERSISTENT, message_id=id_, message_type=FRAME_TYPE
    )


def is_frame(message: DeliveredMessage) -> bool:
    return message.header.properties.message_type == FRAME_TYPE


def open_message(message: DeliveredMessage, key: str) -> tuple[list[Envelope], str]:
    """The envelopes in an AMQP message; or what is wrong with it, and its bytes as one envelope."""
    size = len(message.body)
    if size > MAX_MESSAGE_BYTES:
        problem = f"the message is {size} bytes; the bus carries at most {MAX_MESSAGE_BYTES}"
        return [_alone(message, key)], problem
    if not is_frame(message):
        return [_alone(message, key)], ""
    try:
        return decode_frame(message.body), ""
    except (Undecodable, RecursionError) as problem:
        return [_alone(message, key)], str(problem)


def crashes(message: DeliveredMessage) -> int:
    """How often this message was handed to a reader who did not settle it, as far as the broker says."""
    counted = (message.header.properties.headers or {}).get("x-delivery-count")
    if counted is None:
        return 1 if message.redelivered else 0
    return _whole(counted, 0)


def _alone(message: DeliveredMessage, key: str) -> Envelope:
    said = message.header.properties
    headers: Mapping[str, Any] = said.headers or {}
    sent_at = _number(headers.get("sent_at"))
    if not sent_at and isinstance(said.timestamp, datetime):
        sent_at = said.timestamp.timestamp()
    return Envelope(
        id=_text(said.message_id) or _id_for_stranger(message),
        type=_text(said.message_type),
        key=_short(_text(headers.get("key"))) or key,
        body=msgspec.Raw(message.body),
        correlation=_text(said.correlation_id),
        causation=_short(_text(headers.get("causation_id"))),
        attempt=_whole(headers.get("attempt"), 1) or 1,
        faults=_whole(headers.get("faults"), 0),
        sent_at=sent_at,
        traceparent=_short(_text(headers.get("traceparent"))),
        reply_to=_text(said.reply_to),
        error=_text(headers.get("error")),
        again=headers.get("again") is True,
        first_died=_number(headers.get("first-died")),
    )


def _id_for_stranger(message: DeliveredMessage) -> str:
    """An id for who gave none: the same whenever the same message comes again."""
    said = message.header.properties
    told = f"{message.routing_key}|{said.correlation_id}|{said.timestamp}|{message.body.hex()}"
    return str(uuid.uuid5(_STRANGERS, told))


# Dead letters


def letter_properties(letter: DeadLetter) -> Basic.Properties:
    headers: dict[str, Any] = {
        "x-reason": _cut(letter.reason, MAX_REASON),
        "x-traceback": _cut(letter.traceback, MAX_TRACEBACK, from_end=True),
        "x-queue": letter.queue,
        "x-key": _cut(letter.key, MAX_REASON),
        "x-type": _cut(letter.type, MAX_REASON),
        "x-first-died": repr(letter.first_died),
        "x-died": repr(letter.died),
        "x-attempt": letter.attempt,
    }
    return Basic.Properties(
        delivery_mode=PERSISTENT,
        message_id=_short(letter.id),
        correlation_id=_short(letter.correlation) or None,
        message_type=_short(letter.type) or None,
        headers=headers,
    )


def letter(message: DeliveredMessage) -> DeadLetter:
    """A dead letter; one that the broker itself put there says so, under the key <ms>.<queue>."""
    queue = (message.routing_key or "").partition(".")[2]
    said = message.header.properties
    headers: Mapping[str, Any] = said.headers or {}
    died = _number(headers.get("x-died"))
    return DeadLetter(
        id=_text(said.message_id) or _id_for_stranger(message),
        queue=_text(headers.get("x-queue")) or queue,
        key=_text(headers.get("x-key")) or _text(headers.get("key")) or queue,
        type=_text(headers.get("x-type")) or _text(said.message_type),
        reason=_text(headers.get("x-reason")) or f"the queue {queue} is gone",
        first_died=_number(headers.get("x-first-died")) or died,
        died=died,
        attempt=_whole(headers.get("x-attempt", headers.get("attempt")), 1),
        correlation=_text(said.correlation_id),
        body=message.body,
        traceback=_text(headers.get("x-traceback")),
    )


# Strangers' values


def blank_if_unreadable(header: bytes) -> bytes:
    """A content header frame; when its properties cannot be decoded, one that has none, of the same length.

    Without this a stranger's odd timestamp ends our connection, again at every redelivery.
    """
    try:
        ContentHeader().unmarshal(header[:-1])
    except Exception:  # whatever a decoder may stumble over
        return header[:12] + b"\0\0" + header[14:]
    return header


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _number(value: object) -> float:
    if not isinstance(value, str | int | float):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _whole(value: object, default: int) -> int:
    number = _number(value)
    return min(int(number), _MAX_WHOLE) if number >= 0 and value is not None else default


def _short(text: str) -> str:
    return text if len(text) <= _SHORT and text.isascii() else _cut(text, _SHORT)


def _cut(text: str, limit: int, *, from_end: bool = False) -> str:
    """At most so many bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return (data[-limit:] if from_end else data[:limit]).decode("utf-8", "ignore")
