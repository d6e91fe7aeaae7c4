"""Answers what-if questions about moves: looked up and chosen like requested moves, without a claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import structs

from bus.decisions import Decision
from bus.groups import ServerGroup
from bus.queries import PlacedThere, WhatIfAnswered, WhatIfMoves, WhatIfMovesAnswered
from bus.vocabulary import Id
from scheduler_worker.core.move_start import Barred, MoveStart
from scheduler_worker.core.move_state import Stopped
from scheduler_worker.core.order import Order
from scheduler_worker.move_courses import MoveCourse, MoveCourses
from scheduler_worker.placing import Scheduler
from scheduler_worker.waiting.hosts import beside
from scheduler_worker.what_if import WhatIfs


@dataclass(slots=True)
class _Gone:
    """The hosts of group members after the moves that were answered before."""

    members: dict[Id, dict[Id, tuple[Id, ...]]] = field(default_factory=dict)  # group → instance → roots
    left: dict[Id, dict[Id, tuple[Id, ...]]] = field(default_factory=dict)  # group → keeper → roots

    def goes(self, start: MoveStart, roots: tuple[Id, ...]) -> None:
        if start.group is not None:
            self.members.setdefault(start.group, {})[start.asked.build] = roots
            if start.keep is not None:
                self.left.setdefault(start.group, {})[start.keep] = tuple(start.own)

    def seen_by(self, order: Order) -> Order:
        alternatives = [
            alternative
            if alternative.group is None
            else replace(alternative, group=self._as_it_would_be(alternative.group))
            for alternative in order.alternatives
        ]
        return structs.replace(order, alternatives=tuple(alternatives))

    def _as_it_would_be(self, group: ServerGroup) -> ServerGroup:
        members, left = self.members.get(group.id), self.left.get(group.id)
        if members is None:
            return group
        return msgspec.structs.replace(
            group, members={**group.members, **members}, left={**group.left, **(left or {})}
        )


class WhatIfsOfMoves:
    """Answers one question at a time, and none in parallel with one about requests."""

    def __init__(self, scheduler: Scheduler, what_ifs: WhatIfs, courses: MoveCourses) -> None:
        self._scheduler = scheduler
        self._what_ifs = what_ifs
        self._courses = courses

    async def answer(self, question: WhatIfMoves) -> WhatIfMovesAnswered:
        async with self._what_ifs.one:
            courses = [MoveCourse(move) for move in question.moves]
            for course, look in zip(courses, await self._courses.look(courses), strict=True):
                if look is not None:
                    course.take(Stopped(look.barred))
            ready = [course for course in courses if course.state.begins]
            await self._courses.check_rebuilds([course for course in ready if course.asked.kind == "rebuild"])
            chosen = await self._chosen(
                [course for course in ready if (start := course.state.start) and start.seeks], question
            )
            return WhatIfMovesAnswered(
                answers=tuple([chosen.get(id(course)) or _unsought(course) for course in courses])
            )

    async def _chosen(
        self, courses: Sequence[MoveCourse], question: WhatIfMoves
    ) -> Mapping[int, WhatIfAnswered]:
        starts = [start for course in courses if (start := course.state.start) is not None]
        supposing, gone = self._what_ifs.supposing(), _Gone()
        answers: dict[int, WhatIfAnswered] = {}
        orders = await self._scheduler.ready_moves(starts)
        for course, start, (order, begun) in zip(courses, starts, orders, strict=True):
            if begun.refusal:
                answers[id(course)] = WhatIfAnswered(
                    fits=False, refusal=begun.refusal, decision=Decision(code="unreadable")
                )
                continue
            order = gone.seen_by(beside(order, question.closed, lambda root: "being emptied"))
            answer, _ = await self._what_ifs.chosen(order, question.best, supposing)
            if answer.fits:
                gone.goes(start, tuple(there.root for there in answer.placed))
                if answers:
                    answer = structs.replace(answer, best=(), decision=Decision())
            answers[id(course)] = answer
        return answers


def _unsought(course: MoveCourse) -> WhatIfAnswered:
    barred, start = course.state.barred, course.state.start
    if barred is None and start is None:
        barred = Barred(code="moving", why="it has begun before, and its cell sees it through")
    if barred is not None:
        return WhatIfAnswered(fits=False, refusal=barred.why, decision=Decision(code=barred.code))
    stays = start.source if start is not None and course.asked.kind == "rebuild" else None
    if stays is None or start is None:
        return WhatIfAnswered(fits=True)
    return WhatIfAnswered(fits=True, placed=(PlacedThere(root=stays.root, host=stays.host, cell=start.cell),))
