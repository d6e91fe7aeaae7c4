"""The verdict for every exception of a handler, as a table."""

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


def tried(attempt: int = 1, faults: int = 0, unheard: int = 0) -> Envelope:
    return Envelope(
        id="m",
        type="T",
        key="k",
        body=msgspec.Raw(b"{}"),
        attempt=attempt,
        faults=faults,
        unheard=unheard,
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
def test_what_a_handler_says_is_done(problem: Exception, tries: int, expected: Again | Dead) -> None:
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
def test_who_should_hear_its_words_is_waited_for_some_minutes(
    envelope: Envelope, expected: Again | Dead
) -> None:
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
