"""Converts envelopes and dead letters to AMQP messages, and back, and says what the broker verified about an
AMQP message. A message that another program has
published never raises an exception here, whatever it contains.
"""

import math
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from bus.broker_urls import client_user
from bus.errors import Undecodable
from bus.protocol import (
    FRAME_TYPE,
    MAX_COUNT,
    MAX_MESSAGE_BYTES,
    MAX_TIME,
    UNCOUNTED,
    UNVERIFIED,
    DeadLetter,
    Envelope,
    decode_frame,
)
from bus.rabbit.fast_channels.frames import PERSISTENT, Arrived, Properties
from bus.rabbit.topology import LETTER, BrokerNames
from bus.topics import is_of_client
from bus.worker import cell_of

JSON = "application/json"
MAX_HEADER = 8 * 1024
MAX_TRACEBACK = 32 * 1024  # all headers of a message must fit into one AMQP frame of 128 KiB
_SHORT = 255  # bytes in an AMQP short string
_STRANGERS = uuid.UUID("6b8a3c52-51c5-5d0e-9f0b-5f6f2c0f5d3e")


def properties_of(envelope: Envelope, key: str, user: str | None = None) -> Any:
    """Return the AMQP properties of an envelope that is alone in its AMQP message. `key` is the routing key
    that the consumer will see, `user` the RabbitMQ user that publishes the message.
    """
    # Times in seconds are sent as texts: AMQP's float has only single precision.
    facts: dict[str, Any] = {
        "key": _short(envelope.key) if envelope.key != key else "",
        "causation_id": _short(envelope.causation),
        "attempt": _bounded(envelope.attempt) if envelope.attempt != 1 else 0,
        "faults": _bounded(envelope.faults),
        "unroutable": _bounded(envelope.unroutable),
        "sent_at": repr(envelope.sent_at) if envelope.sent_at else "",
        "traceparent": _short(envelope.traceparent),
        "first-died": repr(envelope.first_died) if envelope.first_died else "",
        "suspect-of": _short(envelope.suspect_of),
        "strikes": _bounded(envelope.strikes),
        "error": _cut(envelope.error, MAX_HEADER),
        "again": envelope.again,
    }
    headers = {name: value for name, value in facts.items() if value}
    return Properties(
        content_type=JSON,
        delivery_mode=PERSISTENT,
        message_id=_short(envelope.id),
        correlation_id=_short(envelope.correlation) or None,
        message_type=_short(envelope.type) or None,
        timestamp=datetime.fromtimestamp(envelope.sent_at, UTC) if 0 < envelope.sent_at < MAX_TIME else None,
        reply_to=_short(envelope.reply_to) or None,
        user_id=user,
        headers=headers or None,
    )


def properties_of_frame(id_: str, user: str | None = None) -> Any:
    """Return the AMQP properties of a body with several envelopes."""
    return Properties(
        content_type=JSON, delivery_mode=PERSISTENT, message_id=id_, message_type=FRAME_TYPE, user_id=user
    )


def open_message(
    message: Arrived, key: str, *, names_key: bool = True, problem: str = ""
) -> tuple[list[Envelope], str]:
    """Return the envelopes in an AMQP message, and why the message cannot be processed (empty if it can).

    `key` is the routing key of the AMQP message. With `names_key`, an envelope has the key that is stored in
    it, without `names_key`, the AMQP message's key, and then a client's message is a first attempt. If the
    caller already knows a `problem`, the message is not split into envelopes, so that it is requeued as a
    whole.
    """
    if problem:
        return [_alone(message, key, names_key)], problem
    size = max(message.size, len(message.body))
    if size > MAX_MESSAGE_BYTES:
        problem = f"the message is {size} bytes; the bus carries at most {MAX_MESSAGE_BYTES}"
        if len(message.body) < size:
            problem += f"; only its first {len(message.body)} bytes are stored"
        return [_alone(message, key, names_key)], problem
    if message.type != FRAME_TYPE:
        return [_alone(message, key, names_key)], ""
    try:
        envelopes = decode_frame(message.body)
    except (Undecodable, RecursionError) as problem:
        return [_alone(message, key, names_key)], str(problem)
    if not names_key:
        for envelope in envelopes:
            envelope.key, envelope.suspect_of, envelope.strikes = key, "", 0
            envelope.attempt = _attempt(envelope.attempt, key, names_key)
    return envelopes, ""


def crashes(message: Arrived) -> int:
    """Return how often the broker delivered this AMQP message before without getting an acknowledgement;
    UNCOUNTED if it was redelivered and the broker does not count. A header of a first delivery is the
    sender's.
    """
    counted = message.headers.get("x-delivery-count")
    if not message.redelivered:
        return 0
    if counted is None:
        return UNCOUNTED
    return _whole(counted, 0)


def _alone(message: Arrived, key: str, names_key: bool) -> Envelope:
    headers = message.headers
    sent_at = _seconds(headers.get("sent_at"))
    if not sent_at and isinstance(message.timestamp, datetime):
        sent_at = message.timestamp.timestamp()
    return Envelope(
        id=_text(message.id) or _id_for_stranger(message),
        type=_text(message.type),
        key=(names_key and _short(_text(headers.get("key")))) or key,
        body=msgspec.Raw(message.body),
        correlation=_text(message.correlation),
        causation=_short(_text(headers.get("causation_id"))),
        attempt=_attempt(_whole(headers.get("attempt"), 1) or 1, key, names_key),
        faults=_whole(headers.get("faults"), 0),
        unroutable=_whole(headers.get("unroutable"), 0),
        sent_at=sent_at,
        traceparent=_short(_text(headers.get("traceparent"))),
        reply_to=_text(message.reply_to),
        error=_text(headers.get("error")),
        again=headers.get("again") is True,
        first_died=_seconds(headers.get("first-died")),
        suspect_of=_short(_text(headers.get("suspect-of"))) if names_key else "",
        strikes=_whole(headers.get("strikes"), 0) if names_key else 0,
    )


def _attempt(attempt: int, key: str, names_key: bool) -> int:
    return 1 if attempt != 1 and not names_key and is_of_client(key) else attempt


def _id_for_stranger(message: Arrived) -> str:
    """Return an id for an AMQP message without an id, derived from its content: equal after a redelivery."""
    content = f"{message.key}|{message.correlation}|{message.timestamp}|{message.body.hex()}"
    if message.size > len(message.body):
        content += f"|{message.size}"
    return str(uuid.uuid5(_STRANGERS, content))


def routing_of(message: Arrived, names: BrokerNames, queue: str) -> tuple[str, bool, str]:
    """Return the routing key of an AMQP message, whether the keys inside its body replace this routing key,
    and why the message must be refused (empty: it is accepted).

    One AMQP message may contain several of berth's messages, each with a key. These keys are used only if
    the AMQP message was sent through the default exchange. `names` are the names of berth's exchanges at the
    broker, and `queue` is the broker's name of the queue that delivered the message.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if message.exchange == names.queues:
        problem = ""
        if message.key.partition(".")[2] != queue:
            problem = f"it was sent to {message.key!r}, and reached {queue} by an additional key (CC)"
        elif forwarded and not forwarded.startswith(f"{names.delay}."):
            problem = f"it was forwarded by the queue {forwarded}, which is not one of berth's"
        return names.key_for_reader(message.exchange, message.key), True, problem
    if message.exchange == "":  # the default exchange, to which berth's RabbitMQ users may not publish
        return message.key, True, ""
    problem = f"it was forwarded by the queue {forwarded}, which is not one of berth's" if forwarded else ""
    if message.exchange not in (names.exchange, names.clients):
        problem = f"it was published to the exchange {message.exchange}, not to {names.exchange}"
    return message.key, False, problem


def sender_of(message: Arrived, names: BrokerNames) -> str:
    """Return what the broker verified about the sender of an AMQP message that `routing_of` refuses: the
    queue or exchange that forwarded the message, which only its owner can declare, or the routing key to
    which it was published.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if forwarded and not forwarded.startswith(f"{names.delay}."):
        return forwarded
    berths = names.exchange, names.clients, names.queues
    return message.key if message.exchange in berths else message.exchange


def client_of(message: Arrived, names: BrokerNames, sender: str) -> str:
    """Return `Envelope.client` of an AMQP message: the client in its `user_id`, which the broker compares
    with the user of the connection, or the client that owns the queue or exchange `sender` (as `sender_of`
    returns it; empty if the routing key is proven).
    """
    user, prefix = str(message.properties.user_id or ""), client_user("", names.exchange)
    if user.startswith(prefix):
        return user.removeprefix(prefix)
    word, _, rest = names.plain(sender).partition(".")
    owner = rest.partition(".")[0] if word == "client" else ""
    return owner or (UNVERIFIED if sender else "")


def _dead_lettered_from(deaths: object) -> str:
    if deaths is None:
        return ""
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        return str(deaths[0].get("queue") or "?")
    return "?"


def properties_of_letter(letter: DeadLetter, user: str | None = None) -> Any:
    """Return the AMQP properties of a dead letter; headers give reason, traceback, queue and key for any
    client.
    """
    headers: dict[str, Any] = {
        "x-reason": _cut(letter.reason, MAX_HEADER),
        "x-traceback": _cut(letter.traceback, MAX_TRACEBACK, from_end=True),
        "x-queue": _cut(letter.queue, MAX_HEADER),
        "x-key": _cut(letter.key, MAX_HEADER),
        "x-type": _cut(letter.type, MAX_HEADER),
        "x-first-died": repr(letter.first_died),
        "x-died": repr(letter.died),
        "x-attempt": _bounded(letter.attempt),
        "x-sender": _cut(letter.sender, MAX_HEADER),
    }
    return Properties(
        delivery_mode=PERSISTENT,
        message_id=_short(letter.id),
        correlation_id=_short(letter.correlation) or None,
        message_type=_short(letter.type) or None,
        user_id=user,
        headers=headers,
    )


def letter_in(message: Arrived, names: BrokerNames) -> DeadLetter:
    """Return the dead letter in an AMQP message, whose routing key is <ms>.<queue> if the broker itself made
    it a dead letter.

    The dead letter's cell is taken from the routing key only, which the broker's permissions verify.
    """
    by, _, rest = message.key.partition(".")
    queue = "" if by == LETTER else names.plain(rest)
    if message.exchange == names.dead:
        cell = rest if by == LETTER else "?"
        cell = "?" if "x-death" in message.headers else cell  # forwarded by a queue: its key proves nothing
    else:
        cell = cell_of(queue)
    headers = message.headers
    died = _seconds(headers.get("x-died"))
    return DeadLetter(
        id=letter_id(message),
        queue=_text(headers.get("x-queue")) or queue,
        key=_text(headers.get("x-key")) or _text(headers.get("key")) or queue,
        type=_text(headers.get("x-type")) or _text(message.type),
        reason=_text(headers.get("x-reason")) or f"the queue {queue} was deleted",
        first_died=_seconds(headers.get("x-first-died")) or died,
        died=died,
        attempt=_whole(headers.get("x-attempt", headers.get("attempt")), 1),
        correlation=_text(message.correlation),
        body=message.body,
        traceback=_text(headers.get("x-traceback")),
        cell=cell,
        sender=_text(headers.get("x-sender")),
    )


def letter_id(message: Arrived) -> str:
    """Return the id of a dead letter; without one, an id derived from its content, so that it is equal after
    a redelivery.
    """
    return _text(message.id) or _id_for_stranger(message)


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


def _seconds(value: object) -> float:
    number = _number(value)
    return number if 0.0 <= number < MAX_TIME else 0.0


def _bounded(number: int) -> int:
    """Return the number, limited to the range from 0 to the largest integer that AMQP clients can read."""
    return max(0, min(number, MAX_COUNT))


def _whole(value: object, default: int) -> int:
    number = _number(value)
    return min(int(number), MAX_COUNT) if number >= 0 and value is not None else default


def _short(text: str) -> str:
    return text if len(text) <= _SHORT and text.isascii() else _cut(text, _SHORT)


def _cut(text: str, limit: int, *, from_end: bool = False) -> str:
    data = text.encode("utf-8", "replace")
    return (data[-limit:] if from_end else data[:limit]).decode("utf-8", "ignore")
