"""The conductor's cache of builds that wait for a report, with its limit."""

from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bus.clock import Clock
from cell_conductor import applying
from cell_conductor.applying import EventApplier
from cell_conductor.core.build import Build, BuildParts, Status
from cell_conductor.core.events import AttemptLimits
from cell_conductor.core.step import Course, Postponed
from cell_conductor.store import BuildStore
from tests.support.conductor_builders import CELL, a_delete, a_placed


def a_build(number: int, status: Status = "building") -> Build:
    placed = a_placed(number)
    return Build(id=placed.build, cell=CELL, status=status, placed=placed, attempt=1)


def a_cache() -> EventApplier:
    return EventApplier(None, AttemptLimits(), Clock(), BuildStore(), ())  # type: ignore[arg-type]


def test_the_oldest_cached_build_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "CACHED", 2)
    remembered = a_cache()
    first, second, third = a_build(1), a_build(2), a_build(3)
    for build in (first, second, first, third):
        remembered.cache([build])
    assert remembered.cached.get(second.id) is None
    assert [remembered.cached.get(build.id) for build in (first, third)] == [first, third]


class PausedBuild(Struct, frozen=True):
    """The state of a course that postpones all events."""


class PausedCourse(Course):
    state = PausedBuild

    def step(self, *event: Any) -> Any:
        raise Postponed(5.0, "it is paused")


async def test_a_postponed_event_is_decided_again_with_the_stored_build() -> None:
    build = replace(a_build(1), parts=BuildParts(PausedBuild()))
    remembered = EventApplier(None, AttemptLimits(), Clock(), BuildStore((PausedCourse(),)), ())  # type: ignore[arg-type]
    remembered.cache([build])
    assert await remembered._apply_to_cached({build.id: a_delete(a_placed(1))}) == {}
    assert remembered.cached == {build.id: build}
