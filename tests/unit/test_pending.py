"""Choices are reserved until the replica shows them, the claim fails, or time expires."""

import pytest

from bus.vocabulary import Resources
from scheduler_worker.pending_choices import PendingChoice, PendingChoices
from tests.support.ids import uid
from tests.support.plain_source import PlainSource

ROOT = uid(1, "c")
ONE: Resources = {"VCPU": 1, "MEMORY_MB": 512}


@pytest.fixture
def source() -> PlainSource:
    return PlainSource()


def chosen(pending: PendingChoices, resources: Resources = ONE, now: float = 0) -> PendingChoice:
    return pending.enter({ROOT: resources}, "c1", ROOT, now)


def test_choices_add_up(source: PlainSource) -> None:
    pending = PendingChoices(source)
    chosen(pending)
    chosen(pending, {"VCPU": 2})
    assert source.taken(ROOT) == {"VCPU": 3, "MEMORY_MB": 512}


def test_a_failed_claim_is_given_back_once(source: PlainSource) -> None:
    pending = PendingChoices(source)
    first, second = chosen(pending), chosen(pending)
    pending.drop(first)
    pending.drop(first)
    assert source.taken(ROOT) == ONE
    assert pending.unsettled == [second]


@pytest.mark.parametrize(("seen", "left"), [(6, ONE), (7, {}), (8, {})])
def test_a_claim_is_counted_until_the_memory_has_it(
    source: PlainSource, seen: int, left: dict[str, int]
) -> None:
    pending = PendingChoices(source)
    pending.confirm(chosen(pending), 7)
    assert pending.unsettled == []
    source.seen = seen
    pending.look(0)
    assert source.taken(ROOT) == left


def test_a_claim_whose_answer_came_after_it_was_seen_is_not_counted_twice(source: PlainSource) -> None:
    pending = PendingChoices(source)
    entry = chosen(pending)
    source.seen = 9
    pending.look(0)
    assert source.taken(ROOT) == ONE
    pending.confirm(entry, 7)
    assert source.promised == []


@pytest.mark.parametrize("confirmed", [False, True])
def test_nothing_is_counted_for_ever(source: PlainSource, confirmed: bool) -> None:
    pending = PendingChoices(source, timeout=10)
    entry = chosen(pending, now=100)
    if confirmed:
        pending.confirm(entry, 7)
    pending.look(109)
    assert source.taken(ROOT) == ONE
    pending.look(110)
    assert source.promised == []
    source.seen = 7
    pending.look(111)
    assert source.promised == []


def test_numbers_that_start_over_do_not_hide_choices(source: PlainSource) -> None:
    pending = PendingChoices(source)
    source.seen = 1000
    pending.look(0)
    source.seen = 1
    pending.look(0)
    pending.confirm(chosen(pending), 2)
    assert source.taken(ROOT) == ONE
