"""What was chosen counts as used until placement's answers show it, the claim fails, or time is up."""

import pytest

from scheduler_worker.pending import PendingChoices
from tests.support.ids import uid

ROOT = uid(1, "c")
ONE = {"VCPU": 1, "MEMORY_MB": 512}


def test_choices_add_up_by_provider() -> None:
    ledger = PendingChoices()
    ledger.enter({ROOT: ONE}, 0)
    ledger.enter({ROOT: {"VCPU": 2}, uid(2, "c"): {"VCPU": 7}}, 0)
    ledger.enter({uid(2, "c"): {"DISK_GB": 5}}, 0)
    assert ledger.taken(ROOT) == {"VCPU": 3, "MEMORY_MB": 512}
    assert ledger.taken(uid(2, "c")) == {"VCPU": 7, "DISK_GB": 5}
    assert ledger.taken(uid(3, "c")) == {}


def test_a_failed_claim_is_given_back_once() -> None:
    ledger = PendingChoices()
    first = ledger.enter({ROOT: ONE}, 0)
    ledger.enter({ROOT: ONE}, 0)
    ledger.drop(first)
    ledger.drop(first)
    assert ledger.taken(ROOT) == ONE


@pytest.mark.parametrize(("seen", "left"), [(6, ONE), (7, {}), (8, {})])
def test_a_claim_is_counted_until_an_answer_has_seen_it(seen: int, left: dict[str, int]) -> None:
    ledger = PendingChoices()
    ledger.confirm(ledger.enter({ROOT: ONE}, 0), 7)
    ledger.seen(seen, 0)
    assert ledger.taken(ROOT) == left


def test_a_claim_whose_answer_came_after_it_was_seen_is_not_counted_twice() -> None:
    ledger = PendingChoices()
    entry = ledger.enter({ROOT: ONE}, 0)
    ledger.seen(9, 0)
    assert ledger.taken(ROOT) == ONE
    ledger.confirm(entry, 7)
    assert ledger.taken(ROOT) == {}


@pytest.mark.parametrize("confirmed", [False, True])
def test_nothing_is_counted_for_ever(confirmed: bool) -> None:
    ledger = PendingChoices(timeout=10)
    entry = ledger.enter({ROOT: ONE}, 100)
    if confirmed:
        ledger.confirm(entry, 7)
    ledger.seen(1, 109)
    assert ledger.taken(ROOT) == ONE
    ledger.seen(1, 110)
    assert ledger.taken(ROOT) == {}
    ledger.seen(7, 111)
    assert ledger.taken(ROOT) == {}


def test_numbers_that_start_over_do_not_hide_choices() -> None:
    ledger = PendingChoices()
    ledger.seen(1000, 0)
    ledger.seen(1, 0)
    ledger.confirm(ledger.enter({ROOT: ONE}, 0), 2)
    assert ledger.taken(ROOT) == ONE
