"""What becomes of a message whose handler raised, as a table."""

import msgspec
import pytest

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
from bus.protocol import MAX_COUNT, Envelope


def tried(attempt: int = 1, faults: int = 0) -> Envelope:
    return Envelope(id="m", type="T", key="k", body=msgspec.Raw(b"{}"), attempt=attempt, faults=faults)


@pytest.mark.parametrize(
    "problem, envelope, expected",
    [
        (Retry(2.5), tried(), Again(2.5)),
        (Retry(2.5), tried(attempt=1000), Again(2.5)),
        (Poison("no"), tried(), Dead("no")),
        (TooBig("2 MB"), tried(), Dead("2 MB")),
        (AnswerRefused("no such class"), tried(), Dead("no such class")),
        (BrokerRefused("no right to write"), tried(), Dead("no right to write")),
        (Unavailable("away"), tried(), Again(0.5, "away", away=True)),
        (NoAnswer("away"), tried(attempt=4), Again(2.0, "away", away=True)),
        (Unavailable("away"), tried(attempt=MAX_COUNT), Again(5.0, "away", away=True)),
        (Unroutable("nobody"), tried(), Again(0.5, "nobody")),
        (Unroutable("nobody"), tried(attempt=MAX_UNROUTABLE - 1), Again(5.0, "nobody")),
        (Unroutable("nobody"), tried(attempt=MAX_UNROUTABLE), Dead("nobody")),
    ],
    ids=repr,
)
def test_what_a_handler_says_is_done(problem: Exception, envelope: Envelope, expected: Again | Dead) -> None:
    assert verdict(problem, envelope) == expected


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
