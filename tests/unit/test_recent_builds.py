"""The conductor's cache of builds that wait for a report, with its limit."""

from msgspec.structs import replace

from cell_conductor.applying import RecentBuilds
from cell_conductor.core.build import Build, Status
from tests.support.conductor_builders import CELL, a_placed


def a_build(number: int, status: Status = "building") -> Build:
    placed = a_placed(number)
    return Build(id=placed.build, cell=CELL, status=status, placed=placed, attempt=1)


def test_a_build_that_is_waited_for_is_remembered_as_it_was_stored_last() -> None:
    remembered, build = RecentBuilds(), a_build(1)
    for status in ("building", "swapping", "building", "deleting"):
        build = replace(build, status=status, version=build.version + 1)
        remembered.put(build)
        assert remembered.get(build.id) is build


def test_one_that_is_settled_is_not() -> None:
    for status in ("active", "moving", "verifying", "shelved", "moved", "error", "deleted"):
        remembered = RecentBuilds()
        remembered.put(a_build(1))
        remembered.put(a_build(1, status))
        assert len(remembered) == 0, status


def test_of_too_many_the_one_stored_longest_ago_is_forgotten() -> None:
    remembered = RecentBuilds(most=2)
    first, second, third = a_build(1), a_build(2), a_build(3)
    for build in (first, second, first, third):
        remembered.put(build)
    assert remembered.get(second.id) is None
    assert [remembered.get(build.id) for build in (first, third)] == [first, third]
    remembered.forget(first.id)
    remembered.forget(first.id)
    assert remembered.get(first.id) is None
    assert len(remembered) == 1
    remembered.clear()
    assert len(remembered) == 0
