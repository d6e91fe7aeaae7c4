"""Envelopes and letters as AMQP messages: whatever they hold can be sent, whatever comes can be read."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from bus.protocol import MAX_COUNT, MAX_TIME, DeadLetter, Envelope
from bus.rabbit.amqp_messages import letter_in, open_message, properties_of, properties_of_letter
from bus.rabbit.topology import BrokerNames
from bus.rabbit.wire import Arrived, Properties

HUGE = 2**200
NAN, ENDLESS = float("nan"), float("inf")

NAMES = BrokerNames("berth")


def arrived(properties: Any, body: bytes = b"{}") -> Arrived:
    """The message as a reader has it, through AMQP's own bytes."""
    sent = properties.marshal()
    said = Properties()
    said.unmarshal(int.from_bytes(sent[:2], "big"), sent[2:])
    return an_arrived(
        id=said.message_id,
        type=said.message_type,
        correlation=said.correlation_id,
        reply_to=said.reply_to,
        timestamp=said.timestamp,
        headers=said.headers or {},
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


# What we send


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("attempt", 2**63, MAX_COUNT),
        ("attempt", HUGE, MAX_COUNT),
        ("attempt", -HUGE, 1),
        ("faults", 2**63, MAX_COUNT),
        ("unheard", 2**63, MAX_COUNT),
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
def test_an_envelope_can_be_sent_whatever_it_holds(field: str, value: Any, read: Any) -> None:
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
def test_a_letter_can_be_buried_whatever_it_holds(field: str, value: Any, read: Any) -> None:
    facts: dict[str, Any] = {
        "id": "1", "queue": "q", "key": "k", "type": "T", "reason": "why", "first_died": 1.5, "died": 2.5,
        "attempt": 2, "correlation": "", "body": b"\xff", field: value,
    }  # fmt: skip
    letter = letter_in(arrived(properties_of_letter(DeadLetter(**facts))), NAMES)
    assert getattr(letter, field) == read


# What strangers send


@pytest.mark.parametrize(
    "odd",
    [
        "", "1e300", "-1", "nan", "inf", "1e400", "x", "0x10", b"\xff", True, -1, HUGE, 1e300, NAN, ENDLESS,
        Decimal("1e50"), [1], {"a": 1}, None, datetime(2023, 1, 1, tzinfo=UTC),
    ],
)  # fmt: skip
def test_odd_headers_are_read_as_something_that_can_be_told_on(odd: object) -> None:
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
