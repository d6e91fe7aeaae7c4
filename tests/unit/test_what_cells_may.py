"""Permissions of a cell in placement: what it may hold, take, leave and report: a table."""

import pytest

from bus.claims import Retired, holder_consumer
from placement_worker.core.claim_world import CellLimits, ended
from placement_worker.core.report_checks import DAY, bars_report, names_apart
from tests.support.ids import uid

WALL = CellLimits("c1", {"r1": "c1", "r2": "c2", "r3": "c1", "r4": ""}, {"pool"})
OURS, THEIRS, ALSO_OURS = ("p1", "r1"), ("p2", "r2"), ("p3", "r3")
POOL, LONE, SHADOW = ("pool", "r7"), ("lone", "r8"), ("lone", "r4")  # of operators; one once had a row


@pytest.mark.parametrize(
    ("places", "may_hold", "may_go"),
    [
        ([OURS], True, True),
        ([OURS, ALSO_OURS], True, True),
        ([OURS, POOL], True, True),
        ([OURS, LONE], True, False),
        ([OURS, SHADOW], True, False),
        ([THEIRS], False, False),
        ([OURS, THEIRS], False, False),
        ([THEIRS, POOL], False, False),
        ([POOL], False, False),
        ([LONE], False, False),
        ([], False, False),
    ],
)
def test_permitted_consumers_and_destinations_of_a_cell(
    places: list[tuple[str, str]], may_hold: bool, may_go: bool
) -> None:
    assert (WALL.bars_holder("c", places) == "") is may_hold
    assert (WALL.bars_choice(places) == "") is may_go


def test_a_clean_up_has_a_name_that_follows_from_its_builds() -> None:
    build, other = uid(1), uid(2)
    for attempt in (1, 2, 1000):
        assert WALL.refuses_holder(build, holder_consumer(build, attempt)) == ""
    for keep in (other, holder_consumer(other, 1), holder_consumer(build, 1001), build):
        assert WALL.refuses_holder(build, keep) == f"consumer {keep}: it is no clean-up of {build}"


@pytest.mark.parametrize(
    ("by", "cell", "why"),
    [
        ("c1", "c1", "deleted"),
        ("c2", "", "deleted"),
        ("", "", "deleted"),
        ("c2", "c1", None),
        ("", "c1", None),
    ],
)
def test_visibility_of_retirement_reasons(by: str, cell: str, why: str | None) -> None:
    told = ended(Retired(why="deleted", unplaceable=True, cell=by), cell)
    assert (told.why == "deleted") is (why is not None)


NOW = 1_000_000.0
AT = int(NOW * 1_000_000)
A_DAY = int(DAY * 1_000_000)


@pytest.mark.parametrize(
    ("owner", "known", "sequence", "why"),
    [
        ("", False, AT, ""),
        ("c1", True, AT, ""),
        ("c1", False, AT, ""),
        ("c2", True, AT, "of cell c2"),
        ("c2", False, AT, "of cell c2"),
        ("", True, AT, "an operator made it"),
        ("c1", True, AT + A_DAY, ""),
        ("c1", True, AT + A_DAY + 1, "a day ahead"),
        ("", False, 2**62, "a day ahead"),
    ],
)
def test_accepted_reports_by_cell(owner: str, known: bool, sequence: int, why: str) -> None:
    said = bars_report("c1", owner, known=known, sequence=sequence, now=NOW)
    assert why in said if why else said == ""


def test_a_name_that_another_has_says_the_cell_and_stays_a_name() -> None:
    assert names_apart("h", "c2", uid(1)) == ("h@c2", f"h@c2@{uid(1)}")
    assert [len(name) for name in names_apart("h" * 200, "c2", uid(1))] == [200, 200]
