"""Holder consumers without a move, and which of them are proven: a table."""

import pytest

from berth.operations.wrong_allocations import leaks
from bus.claims import holder_consumer
from cell_conductor import HeldByCell
from placement_worker import StoredHolder
from tests.support.ids import uid

BUILD = uid(1)
OLD = 100.0


def kept(attempt: int, type_: str = "MIGRATION", since: float = 50.0) -> StoredHolder:
    return StoredHolder(holder_consumer(BUILD, attempt), 3, BUILD, type_, since)


SOUND = [
    ("it is in a move", kept(1), HeldByCell("moving", 2)),
    ("it waits to be confirmed", kept(1), HeldByCell("verifying", 2)),
    ("its guest may still be there", kept(1), HeldByCell("active", 2, frozenset({1}))),
    ("it is a clean-up under way", kept(1, "CLEANUP"), HeldByCell("deleted", 1, frozenset({1}))),
    ("its cell may be yet to hear of it", kept(1, since=100.5), HeldByCell("active", 1)),
    ("what is left of it cannot be read", kept(1), HeldByCell("active", 2, unreadable=True)),
]
LEAKING = [
    ("its move is over", kept(1), HeldByCell("active", 2), True),
    ("it is deleted", kept(2), HeldByCell("deleted", 2), True),
    ("it is shelved", kept(1), HeldByCell("shelved", 1), True),
    ("a clean-up is over", kept(1, "CLEANUP"), HeldByCell("active", 2, frozenset({2})), True),
    ("its guest is there, by its cell", kept(1), HeldByCell("active", 1), False),
    ("it is ahead of its cell", kept(3), HeldByCell("active", 2), False),
    ("no attempt of it is kept so", kept(99), HeldByCell("active", 2), False),
]


@pytest.mark.parametrize(("why", "holder_consumer", "known"), SOUND, ids=[each[0] for each in SOUND])
def test_who_keeps_for_somebody_leaks_nothing(
    why: str, holder_consumer: StoredHolder, known: HeldByCell
) -> None:
    assert list(leaks([holder_consumer], {BUILD: known}, all_read=True, old=OLD)) == []


@pytest.mark.parametrize(
    ("why", "holder_consumer", "known", "proven"), LEAKING, ids=[each[0] for each in LEAKING]
)
def test_who_keeps_for_nobody_leaks_and_is_given_back_only_if_that_is_proven(
    why: str, holder_consumer: StoredHolder, known: HeldByCell, proven: bool
) -> None:
    (leak,) = leaks([holder_consumer], {BUILD: known}, all_read=True, old=OLD)
    assert (leak.consumer, leak.generation, leak.build) == (holder_consumer.consumer, 3, BUILD)
    assert leak.proven is proven


def test_of_one_that_came_from_a_cell_that_was_not_read_nothing_is_proven() -> None:
    came = HeldByCell("active", 2, came=True)
    for all_read in (True, False):
        (leak,) = leaks([kept(1)], {BUILD: came}, all_read=all_read, old=OLD)
        assert leak.proven is all_read


def test_of_one_that_two_cells_know_what_either_keeps_is_kept() -> None:
    here, gone = HeldByCell("active", 2, came=True), HeldByCell("moved", 1, frozenset({1}))
    for both in (here.beside(gone), gone.beside(here)):
        assert (both.status, both.attempt, both.left) == ("active", 2, frozenset({1}))
        assert list(leaks([kept(1)], {BUILD: both}, all_read=True, old=OLD)) == []


@pytest.mark.parametrize("all_read", [True, False])
def test_of_a_build_that_no_cell_knows_nothing_is_proven(all_read: bool) -> None:
    found = list(leaks([kept(1)], {}, all_read=all_read, old=OLD))
    assert [leak.proven for leak in found] == ([False] if all_read else [])
