"""New requests for moves: reads the state of the instances, finds destinations as for boots, or stores
requests that may wait.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from bus.moves import MoveRequested
from scheduler_worker.core.order import Order
from scheduler_worker.move_courses import MoveCourse, MoveCourses, MoveVerdict


class ParksMoves(Protocol):
    """Stores moves of a batch that may wait for capacity."""

    def aside(self, course: MoveCourse, order: Order) -> bool:
        """Return whether the search is skipped, because earlier requests of the class wait."""
        ...

    async def park(self, courses: Sequence[MoveCourse]) -> None: ...


# New moves; nothing is published for moves that wait already
Parks = Callable[[Sequence[MoveCourse]], ParksMoves]


class MoveArrivals:
    """Handles `move.requested`."""

    def __init__(self, courses: MoveCourses, parks: Parks) -> None:
        self.courses = courses
        self._parks = parks

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveVerdict]:
        """Return a verdict for each request: begun, refused, or waiting."""
        courses = [MoveCourse(request) for request in requests]
        arriving = self._parks(courses)
        new = [course for course in courses if course.verdict is None]
        unknown = await self.courses.look(new)
        for course, look in zip(new, unknown, strict=True):
            if look is not None:
                self.courses.not_yet(course, look)
        await self.courses.begin(new, arriving.aside)
        await arriving.park([course for course in new if course.park is not None or course.behind])
        await self.courses.finish(new)
        return [self.courses.settled(course) for course in courses]
