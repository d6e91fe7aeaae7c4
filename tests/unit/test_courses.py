"""Courses of features are asked before the kernel of a conductor."""

from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from bus.messages import BuildDeleteRequested, BuildPlaced
from bus.parts import PlacedPart
from cell_conductor.core.build import Build
from cell_conductor.core.events import AttemptLimits
from cell_conductor.core.step import Course, CourseStands, Postponed, overdue_report, step, time_limits
from tests.support.conductor_builders import a_build_order, a_delete, a_placed, an_agent_report

LIMITS = AttemptLimits()
PLACED = a_placed(1)


class Urgent(PlacedPart, frozen=True):
    """The field of the feature in the message about a placed build."""


class Paused(Struct, frozen=True):
    until: float


class Pause(Struct, frozen=True):
    until: float


class PauseCourse(Course):
    """Has active builds until a time, and postpones their deletion."""

    events = (Pause,)
    state = Paused
    placed_with = Urgent

    def step(self, build: Any, event: Any, now: float, limits: AttemptLimits, kernel: Any) -> Any:
        match event:
            case Pause() if build is None:
                return None, ()
            case Pause():
                parts = build.parts.having(Paused(event.until))
                return replace(build, status="held", held_as="paused", parts=parts), ()
            case BuildPlaced():
                build, _ = kernel(build, event, now, limits)
                return build, ()
            case BuildDeleteRequested():
                raise Postponed(5.0, "it is paused")
            case _:
                return None

    def stands(self, build: Build) -> CourseStands:
        return CourseStands(time_limits=(state.until,) if (state := build.parts.get(Paused)) else ())


def active(*courses: Any) -> Build:
    build, _ = step(None, PLACED, 0.0, LIMITS, courses)
    build, _ = step(build, an_agent_report(a_build_order(PLACED), "built"), 1.0, LIMITS, courses)
    assert build is not None
    return build


def paused() -> Build:
    build, _ = step(active(PauseCourse()), Pause(60.0), 2.0, LIMITS, (PauseCourse(),))
    assert build is not None
    return build


def test_a_course_has_a_build_until_it_gives_it_back() -> None:
    build = paused()
    assert (build.status, build.shown) == ("held", "paused")
    assert (build.deadline, time_limits(build, [PauseCourse()])) == (60.0, [60.0])
    assert overdue_report(build, [PauseCourse()]).outcome == "overdue"  # type: ignore[attr-defined]
    with pytest.raises(Postponed, match="it is paused"):
        step(build, a_delete(PLACED), 3.0, LIMITS, (PauseCourse(),))
