"""Builds that two cells know after lost commits: which cell keeps the build, and when that is not proven."""

from collections.abc import Sequence

import pytest

from berth.operations.cell_records import BuildsByCell, KnownBuild
from berth.operations.stored_claims import TreesOfConsumer
from berth.operations.wrong_allocations import Doubled
from bus.guests import ReportedGuest
from tests.support.ids import uid

BUILD, HERE, THERE = uid(1), uid(1, "a"), uid(2, "a")


def record(cell: str, status: str, root: str = HERE) -> KnownBuild:
    return KnownBuild(cell, status, root, 1)


def guest(root: str, state: str = "running") -> ReportedGuest:
    return ReportedGuest(BUILD, 1, root, state, {root: {"VCPU": 1}})


def held_on(*roots: str) -> TreesOfConsumer:
    return TreesOfConsumer("INSTANCE", 0.0, False, dict.fromkeys(roots), [])


NO_GUEST = "no agent of cell c1, which has its allocations, has its guest"
UNCLEAR = "its allocations do not show which cell has it"


@pytest.mark.parametrize(
    ("here", "there", "held", "guests", "why"),
    [
        ("active", "active", [HERE], [guest(HERE)], ""),
        ("active", "verifying", [HERE], [guest(HERE)], ""),
        ("active", "moving", [HERE], [guest(HERE)], "it is moving in cell c2: try again"),
        ("active", "active", [], [guest(HERE)], UNCLEAR),
        ("active", "active", [HERE, THERE], [guest(HERE)], UNCLEAR),
        ("shelved", "active", [HERE], [guest(HERE)], "it is shelved in cell c1, which has its allocations"),
        ("active", "active", [HERE], [guest(THERE)], NO_GUEST),
        ("active", "active", [HERE], [guest(HERE, "arriving")], NO_GUEST),
    ],
)
def test_the_cell_with_the_allocations_and_the_guest_keeps_a_build(
    here: str, there: str, held: Sequence[str], guests: Sequence[ReportedGuest], why: str
) -> None:
    doubled = Doubled(BUILD, [record("c1", here), record("c2", there, THERE)], held_on(*held))
    assert doubled.doubt({("c1", "a1"): guests}) == why
    if not why:
        assert doubled.right_record() == record("c1", here)


@pytest.mark.parametrize(
    ("statuses", "counts", "is_doubled", "notes"),
    [
        (["active", "deleted"], "c1", False, 1),
        (["deleted", "active"], "c2", False, 1),
        (["error", "deleted"], "c2", False, 1),
        (["moved", "active"], "c2", False, 0),
        (["deleted", "moved"], "c1", False, 0),
        (["active", "shelved"], "c1", True, 0),
    ],
)
def test_the_record_of_the_cell_that_still_has_a_build_counts(
    statuses: Sequence[str], counts: str, is_doubled: bool, notes: int
) -> None:
    found = BuildsByCell()
    found.add(BUILD, [record(f"c{number}", status) for number, status in enumerate(statuses, 1)])
    assert found.builds[BUILD].cell == counts
    assert (BUILD in found.doubled, len(found.ended_elsewhere)) == (is_doubled, notes)
    assert (BUILD in found.deleted) == (found.builds[BUILD].status == "deleted")
