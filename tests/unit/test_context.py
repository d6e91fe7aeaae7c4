"""Correlation and trace of a message, and the verdict for every exception of its handler."""

import random

import msgspec
import pytest

from bus.clock import Clock
from bus.codec import decode_frame, encode_frame
from bus.context import envelope_of
from bus.delivery.verdicts import FAULT_DELAYS, MAX_UNROUTABLE, Again, Dead, verdict
from bus.errors import (
    AnswerRefused,
    BrokerRefused,
    NoAnswer,
    Poison,
    Retry,
    TooBig,
    Unavailable,
    Undecodable,
    Unroutable,
)
from bus.messages import BuildDeleteRequested
from bus.protocol import MAX_COUNT, Envelope

CLOCK = Clock(now=lambda: 1_700_000_000.0, chance=random.Random(1))
TRACE = "0af7651916cd43dd8448eb211c80319c"
MESSAGE = BuildDeleteRequested(build="00000000-0000-0000-0000-000000000001", cell="c1")


def a_cause(**said: str) -> Envelope:
    return msgspec.structs.replace(Envelope(id="cause", type="T", key="k", body=msgspec.Raw(b"{}")), **said)


@pytest.mark.parametrize(
    "said, trace, flags",
    [
        (f"00-{TRACE}-b7ad6b7169203331-00", TRACE, "00"),
        (f"cc-{TRACE}-b7ad6b7169203331-01-and-more-in-later-versions", TRACE, "01"),
        ("", None, "01"),
        ("00", None, "01"),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None, "01"),
        (f"00-{TRACE}-b7ad6b7169203331-0", None, "01"),
        (f"00-{TRACE}-b7ad6b7169203331-011", None, "01"),
        (f"-{'z' * 32}--{'f' * 220}", None, "01"),
    ],
)
def test_a_trace_goes_on_if_it_is_one_and_else_a_new_one_begins(
    said: str, trace: str | None, flags: str
) -> None:
    _, found, span, found_flags = envelope_of(MESSAGE, CLOCK, a_cause(traceparent=said)).traceparent.split(
        "-"
    )
    assert (found == trace) == (trace is not None)
    assert (len(found), len(span), found_flags) == (32, 16, flags)
    assert span not in said


def test_any_foreign_correlation_gives_readable_consequences() -> None:
    long = 255 * "x"
    causes = [
        a_cause(traceparent=f"-{'z' * 32}--{'f' * 220}"),
        a_cause(correlation=long),
        a_cause(id=long),
        a_cause(traceparent=long),
    ]
    sent = [envelope_of(MESSAGE, CLOCK, cause) for cause in causes]
    assert decode_frame(encode_frame(sent)) == sent


def tried(attempt: int = 1, faults: int = 0, unheard: int = 0) -> Envelope:
    return Envelope(
        id="m", type="T", key="k", body=msgspec.Raw(b"{}"), attempt=attempt, faults=faults, unheard=unheard
    )


@pytest.mark.parametrize(
    ("problem", "tries", "expected"),
    [
        (Retry(2.5), 1, Again(2.5)),
        (Retry(2.5), 1000, Again(2.5)),
        (Poison("no"), 1, Dead("no")),
        (TooBig("2 MB"), 1, Dead("2 MB")),
        (AnswerRefused("no such class"), 1, Dead("no such class")),
        (BrokerRefused("no right to write"), 1, Dead("no right to write")),
        (Unavailable("away"), 1, Again(0.5, "away", away=True)),
        (NoAnswer("away"), 4, Again(2.0, "away", away=True)),
        (Unavailable("away"), MAX_COUNT, Again(5.0, "away", away=True)),
    ],
    ids=repr,
)
def test_the_verdict_of_each_exception(problem: Exception, tries: int, expected: Again | Dead) -> None:
    assert verdict(problem, tried(attempt=tries)) == expected


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        (tried(), Again(0.5, "nobody", unheard=True)),
        (tried(1000), Again(5.0, "nobody", unheard=True)),  # it waited for something else until now
        (tried(MAX_UNROUTABLE - 1, unheard=MAX_UNROUTABLE - 2), Again(5.0, "nobody", unheard=True)),
        (tried(MAX_UNROUTABLE, unheard=MAX_UNROUTABLE - 1), Dead("nobody")),
    ],
)
def test_a_missing_consumer_is_waited_for_some_minutes(envelope: Envelope, expected: Again | Dead) -> None:
    assert verdict(Unroutable("nobody"), envelope) == expected


@pytest.mark.parametrize("bug", [KeyError("three"), Undecodable("of an answer"), TimeoutError()], ids=repr)
def test_anything_else_is_a_bug_which_is_tried_five_times_more(bug: Exception) -> None:
    found = [verdict(bug, tried(faults=faults)) for faults in range(len(FAULT_DELAYS) + 1)]
    assert [one.after for one in found[:-1] if isinstance(one, Again) and one.fault] == list(FAULT_DELAYS)
    assert isinstance(found[-1], Dead)
    assert found[-1].reason == f"{type(bug).__name__}: {bug}"
    assert type(bug).__name__ in found[-1].trace
    assert isinstance(verdict(bug, tried(faults=MAX_COUNT)), Dead)


def test_other_tries_do_not_count_as_bugs() -> None:
    assert verdict(KeyError(), tried(attempt=500)) == verdict(KeyError(), tried())
