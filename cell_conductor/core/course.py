"""Courses: features that take over events of a build, and may have a build until they give it back.

A course is asked before the kernel (`core/step.py`) if the event is one of its own, if its state is in
`Build.parts`, or if the scheduler placed the build with the field of its feature. The first course that does
not pass decides. It calls `kernel` for what it does not change.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from bus.messages import BuildPlaced, Selection
from cell_conductor.core.build import Build, Effects, overdue
from cell_conductor.core.events import AttemptLimits, Event

Step = Callable[[Build | None, Event, float, AttemptLimits], tuple[Build | None, Effects]]


class Postponed(Exception):
    """Raised by a course if an event must be applied again after the given seconds."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class HeldStatuses(NamedTuple):
    """The statuses (`Build.held_as`) of builds that a course has, as far as the kernel treats them alike."""

    waiting: tuple[str, ...] = ()  # the build waits for an answer: messages are repeated if it does not come
    settled: tuple[str, ...] = ()  # orders to destroy guests left behind are repeated
    ended: tuple[str, ...] = ()  # not shown in lists; the record is deleted some time later


class Course(Protocol):
    """A feature's part in the life of a build, as pure functions."""

    @property
    def name(self) -> str:
        """The key of its value in stored builds."""

    @property
    def statuses(self) -> HeldStatuses:
        """The statuses that the kernel treats in some way while this course has a build."""

    @property
    def events(self) -> tuple[type[Any], ...]:
        """Its own messages and events: they are always given to it, also for an unknown build."""

    @property
    def state(self) -> type[Struct] | None:
        """The type of its value in `Build.parts`; None: it keeps nothing about a build."""

    def concerns(self, placed: BuildPlaced) -> bool:
        """Return whether the scheduler placed a build with a field of this course's feature."""

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects] | None:
        """Return the build after an event, with messages; None to pass. `kernel` applies an event as if this
        course did not exist. Raise Postponed if the event must be applied again later.
        """

    def guest_on(self, build: Build) -> Selection | None:
        """Return the host of the guest of a build that this course has; None if it is the build's host."""

    def operation(self, build: Build) -> str | None:
        """Return the id of this course's current or last operation on a build, such as a move; or None."""

    def time_limits(self, build: Build) -> Sequence[float] | None:
        """Return the times at which a build that waits for no answer needs an event `overdue`; None if the
        build waits for an answer, so that the course has set its deadline.
        """

    def reminders(self, build: Build) -> Effects:
        """Return the messages that the conductor sends to itself after the deadline of a build that this
        course has; () if the kernel's message `overdue` is right.
        """


class BaseCourse:
    """A course that keeps and does nothing: its subclasses state what differs."""

    name = ""
    statuses = HeldStatuses()
    events: tuple[type[Any], ...] = ()
    state: type[Struct] | None = None

    def concerns(self, placed: BuildPlaced) -> bool:
        return False

    def guest_on(self, build: Build) -> Selection | None:
        return None

    def operation(self, build: Build) -> str | None:
        return None

    def time_limits(self, build: Build) -> Sequence[float] | None:
        return ()

    def reminders(self, build: Build) -> Effects:
        return ()


Courses = Sequence[Course]


def is_asked(course: Course, build: Build | None, event: Event) -> bool:
    """Return whether a course is asked about an event before the kernel."""
    if isinstance(event, course.events) or (build is not None and course.state in build.parts):
        return True
    return isinstance(event, BuildPlaced) and course.concerns(event)


def with_state(build: Build, courses: Courses) -> list[Course]:
    """Return the courses that keep a state about a build."""
    return [course for course in courses if course.state in build.parts] if build.parts else []


def guest_on(build: Build, courses: Courses) -> Selection:
    """Return the host on which the guest of a placed build runs."""
    found = (course.guest_on(build) for course in with_state(build, courses)) if build.held_as else ()
    return next((each for each in found if each is not None), build.host)


def operation(build: Build, courses: Courses) -> str | None:
    """Return the id of a build's current or last operation of a feature; None if there was none."""
    found = (course.operation(build) for course in with_state(build, courses))
    return next((each for each in found if each is not None), None)


def reminders(build: Build, courses: Courses) -> Effects:
    """Return the messages that the conductor sends to itself after the deadline of a build."""
    for course in with_state(build, courses):
        if messages := course.reminders(build):
            return messages
    return (overdue(build),)


def time_limits(build: Build, courses: Courses) -> list[float] | None:
    """Return the times at which a build that waits for no answer needs an event `overdue`; None if the build
    waits for an answer of an agent or of placement.
    """
    if build.status in ("building", "swapping", "deleting"):
        return None
    limits = [left.until for left in build.leftovers]
    for course in with_state(build, courses):
        if (more := course.time_limits(build)) is None:
            return None
        limits += more
    return limits
