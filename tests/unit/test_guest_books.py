"""Differences between agents' guests and cells' records."""

import pytest

from berth.operations.guest_differences import differences
from bus.claims import Choice
from bus.guests import ReportedGuest
from bus.messages import Selection
from cell_conductor import PlaceByCell
from tests.support.ids import uid

BUILD, ROOT, OTHER = uid(1), uid(1, "a"), uid(2, "a")
ACTIVE = PlaceByCell(BUILD, "c1", 1, 1, 1, Selection(root=ROOT, host="h1", agent="a1", choice=Choice({})))
NO_GUEST = f"{BUILD}: active on h1 in cell c1, and agent a1 has no guest of its attempt 1 there"
HAS = f"{BUILD}: agent a1 of cell c1 has a guest of its attempt"


@pytest.mark.parametrize(
    ("guests", "stands", "known", "kept", "said"),
    [
        ([(1, ROOT)], True, True, False, []),
        ([], True, True, False, [NO_GUEST]),
        ([(2, ROOT)], True, True, False, [NO_GUEST, f"{HAS} 2, and by its cell it is attempt 1 on h1"]),
        ([(1, ROOT), (2, OTHER)], True, True, False, [f"{HAS} 2, and by its cell it is attempt 1 on h1"]),
        ([(1, ROOT), (2, OTHER)], True, True, True, []),  # a keeper has its room: of a move, or a clean-up
        ([(2, OTHER)], False, True, False, []),  # being built, moved or deleted just now
        ([(1, ROOT)], False, False, False, [f"{HAS} 1, and no cell knows it"]),
    ],
)
def test_each_difference_is_one_sentence(
    guests: list[tuple[int, str]], stands: bool, known: bool, kept: bool, said: list[str]
) -> None:
    books = {("c1", "a1"): [ReportedGuest(BUILD, attempt, root, "running", {}) for attempt, root in guests]}
    stood = {BUILD: ACTIVE} if stands else {}
    assert differences(books, {BUILD} if known else set(), stood, {BUILD} if kept else set()) == said


def test_of_an_agent_that_does_not_answer_nothing_is_said() -> None:
    assert differences({}, {BUILD}, {BUILD: ACTIVE}, set()) == []
