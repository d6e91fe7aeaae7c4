"""Differences between agents' guests and the cells' records that may be repaired, and those that may not."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest

from berth.operations.guest_differences import (
    DELETED,
    FAILED,
    Agent,
    CellRecords,
    GuestComparison,
    differences,
)
from berth.operations.guest_repairs import judged
from berth.operations.stored_builds import PlaceByCell
from bus.claims import Choice
from bus.guests import ReportedGuest
from bus.messages import Selection
from bus.resources import Consumer
from tests.support.ids import uid

BUILD, HERE, THERE = uid(1), uid(1, "a"), uid(2, "a")
HELD = {HERE: {"VCPU": 1}}
ACTIVE = PlaceByCell(
    build=BUILD, cell="c1", version=1, attempt=1, generation=1,
    host=Selection(root=HERE, host="h1", agent="a1", choice=Choice(allocations=HELD)),
)  # fmt: skip
A1, A2 = ("c1", "a1"), ("c2", "a2")


def guest(attempt: int = 1, root: str = HERE, state: str = "running") -> ReportedGuest:
    return ReportedGuest(BUILD, attempt, root, state, {root: {"VCPU": 1}})


def consumer(root: str) -> Consumer:
    return Consumer(
        id=BUILD, generation=1, project="p", user="u", type="INSTANCE", allocations={root: {"VCPU": 1}}
    )


def repairs(
    books: Mapping[Agent, Sequence[ReportedGuest]],
    *,
    active: bool = True,
    ended: Mapping[str, str] = MappingProxyType({}),
    released: Mapping[str, int] = MappingProxyType({}),
    silent: Sequence[Agent] = (),
    unread: Sequence[str] = (),
    held: Consumer | None = None,
) -> list[tuple[str, str]]:
    stood = {BUILD: ACTIVE} if active else {}
    wrong = differences(books, CellRecords(stood.keys(), stood, (), ended, released))
    found = GuestComparison(wrong, books, silent, unread)
    return [(repair.would, repair.why_not) for repair in judged(found, {BUILD: held} if held else {})]


@pytest.mark.parametrize(
    ("books", "held", "why"),
    [
        ({A1: [guest()]}, None, ""),
        ({A1: [guest(attempt=3, state="stopped")]}, None, ""),
        ({A1: [guest()]}, consumer(HERE), ""),
        ({A1: [guest()]}, consumer(THERE), "placement has other allocations of it"),
        ({A1: [guest(state="arriving")]}, None, "it is arriving: try again"),
        ({A1: [guest()], A2: [guest(root=THERE)]}, None, "there are 2 guests of it"),
    ],
)
def test_the_only_guest_of_a_build_without_a_record_is_adopted(
    books: Mapping[Agent, Sequence[ReportedGuest]], held: Consumer | None, why: str
) -> None:
    guests = sum(map(len, books.values()))
    assert repairs(books, active=False, held=held) == [("adopted", why)] * guests


def test_a_cell_that_was_not_read_may_have_a_record_of_the_build() -> None:
    why = "the database of cell c9 is not in the settings"
    assert repairs({A1: [guest()]}, active=False, unread=["c9"]) == [("adopted", why)]
    assert repairs({A1: []}, unread=["c9"]) == [("deleted", why)]


def test_a_guest_elsewhere_is_destroyed_if_the_agent_of_the_recorded_host_has_the_other() -> None:
    assert repairs({A1: [guest()], A2: [guest(root=THERE)]}) == [("destroyed", "")]
    assert repairs({A1: [guest(), guest(attempt=2)]}) == [("destroyed", "")]
    assert repairs({A2: [guest(root=THERE)]}, silent=[A1]) == [
        ("destroyed", "agent a1 does not confirm the guest on h1")
    ]


@pytest.mark.parametrize(("attempt", "why"), [(0, ""), (2, "the guest is arriving: try again")])
def test_an_arriving_guest_of_an_earlier_attempt_is_destroyed(attempt: int, why: str) -> None:
    arriving = guest(attempt, state="arriving")
    assert repairs({A1: [guest(), arriving]}) == [("destroyed", why)]


@pytest.mark.parametrize("status", [DELETED, FAILED])
def test_a_guest_of_an_ended_build_is_destroyed_unless_a_holder_consumer_has_its_host(status: str) -> None:
    assert repairs({A1: [guest()]}, active=False, ended={BUILD: status}) == [("destroyed", "")]
    second = guest(root=THERE)
    found = differences(
        {A1: [guest()], A2: [second]}, CellRecords([BUILD], {}, [(BUILD, HERE)], {BUILD: status})
    )
    assert [(each.wrong, each.guest) for each in found] == [("deleted", second)]


def test_a_guest_from_before_a_shelving_is_destroyed() -> None:
    assert repairs({A1: [guest(attempt=2)]}, active=False, released={BUILD: 2}) == [("destroyed", "")]
    assert repairs({A1: [guest(attempt=3)]}, active=False, released={BUILD: 2}) == [
        ("destroyed", "its cell may have lost that it was unshelved")
    ]
    second = guest(root=THERE)
    found = differences(
        {A1: [guest()], A2: [second]}, CellRecords([BUILD], {}, [(BUILD, HERE)], released={BUILD: 1})
    )
    assert [(each.wrong, each.guest) for each in found] == [("deleted", second)]


def test_a_build_is_deleted_only_if_every_agent_answers_and_has_no_guest_of_it() -> None:
    assert repairs({A1: [], A2: []}) == [("deleted", "")]
    assert repairs({A1: []}, silent=[A2]) == [("deleted", "agent a2 did not answer and may have its guest")]
    assert repairs({A1: [], A2: [guest(2, THERE)]}) == [
        ("deleted", "agent a2 has a guest of its attempt 2"),
        ("destroyed", "agent a1 does not confirm the guest on h1"),
    ]
