"""What was chosen counts as used until placement's answers show it, the claim fails, or time is up."""

import pytest

from scheduler_worker.pending import PendingChoices
from tests.support.ids import uid

ROOT = uid(1, "c")
ONE = {"VCPU": 1, "MEMORY_MB": 512}


def test_choices_add_up_by_provider() -> None:
    pending = PendingChoices()
    pending.enter({ROOT: ONE}, 0)
    pending.enter({ROOT: {"VCPU": 2}, uid(2, "c"): {"VCPU": 7}}, 0)
    pending.enter({uid(2, "c"): {"DISK_GB": 5}}, 0)
    assert pending.taken(ROOT) == {"VCPU": 3, "MEMORY_MB": 512}
    assert pending.taken(uid(2, "c")) == {"VCPU": 7, "DISK_GB": 5}
    assert pending.taken(uid(3, "c")) == {}


def test_a_failed_claim_is_given_back_once() -> None:
    pending = PendingChoices()
    first = pending.enter({ROOT: ONE}, 0)
    pending.enter({ROOT: ONE}, 0)
    pending.drop(first)
    pending.drop(first)
    assert pending.taken(ROOT) == ONE


@pytest.mark.parametrize(("seen", "left"), [(6, ONE), (7, {}), (8, {})])
def test_a_claim_is_counted_until_an_answer_has_seen_it(seen: int, left: dict[str, int]) -> None:
    pending = PendingChoices()
    pending.confirm(pending.enter({ROOT: ONE}, 0), 7)
    pending.seen(seen, 0)
    assert pending.taken(ROOT) == left


def test_a_claim_whose_answer_came_after_it_was_seen_is_not_counted_twice() -> None:
    pending = PendingChoices()
    entry = pending.enter({ROOT: ONE}, 0)
    pending.seen(9, 0)
    assert pending.taken(ROOT) == ONE
    pending.confirm(entry, 7)
    assert pending.taken(ROOT) == {}


@pytest.mark.parametrize("confirmed", [False, True])
def test_nothing_is_counted_for_ever(confirmed: bool) -> None:
    pending = PendingChoices(timeout=10)
    entry = pending.enter({ROOT: ONE}, 100)
    if confirmed:
        pending.confirm(entry, 7)
    pending.seen(1, 109)
    assert pending.taken(ROOT) == ONE
    pending.seen(1, 110)
    assert pending.taken(ROOT) == {}
    pending.seen(7, 111)
    assert pending.taken(ROOT) == {}


def test_numbers_that_start_over_do_not_hide_choices() -> None:
    pending = PendingChoices()
    pending.seen(1000, 0)
    pending.seen(1, 0)
    pending.confirm(pending.enter({ROOT: ONE}, 0), 2)
    assert pending.taken(ROOT) == ONE
