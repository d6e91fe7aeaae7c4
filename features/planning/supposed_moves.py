"""Answers what-if questions about moves. Chooses hosts as for moves, but claims nothing."""

from dataclasses import dataclass, field

from msgspec import structs

from bus.decisions import Decision
from bus.vocabulary import Id
from features.groups.core.joined_group import JoinedGroup, group_of_alternative
from features.moves.core.start import Barred, MoveStart, Stopped, asked_by
from features.moves.placing import MovePlacing, RequestedMove
from features.planning.messages import WhatIfMoves, WhatIfMovesAnswered
from features.what_if.messages import PlacedThere, WhatIfAnswered
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import Alternative, HostLimit, Order


@dataclass(slots=True)
class _SupposedHosts:
    """The hosts that members of server groups would have after the moves of a what-if question; a move is
    added when its destination is found.
    """

    members: dict[Id, dict[Id, tuple[Id, ...]]] = field(default_factory=dict)  # group → instance → roots
    left: dict[Id, dict[Id, tuple[Id, ...]]] = field(default_factory=dict)  # group → holder consumer → roots

    def goes(self, start: MoveStart, roots: tuple[Id, ...]) -> None:
        if start.group is not None:
            self.members.setdefault(start.group, {})[start.asked.build] = roots
            if start.keep is not None:
                self.left.setdefault(start.group, {})[start.keep] = tuple(start.current_roots)

    def seen_by(self, order: Order) -> Order:
        def changed(alternative: Alternative) -> Alternative:
            if (group := group_of_alternative(alternative)) is None:
                return alternative
            members = {**group.members, **self.members.get(group.id, {})}
            left = {**group.left, **self.left.get(group.id, {})}
            return alternative.with_part(JoinedGroup(group.on_hosts(members, left)))

        return order.changed(changed)


class WhatIfsOfMoves:
    """Answers what-if questions about moves; only one what-if question is answered at a time."""

    def __init__(self, what_ifs: WhatIfs, courses: MovePlacing) -> None:
        self._scheduler = courses.scheduler
        self._what_ifs = what_ifs
        self._courses = courses

    async def answer(self, question: WhatIfMoves) -> WhatIfMovesAnswered:
        async with self._what_ifs.lock:
            courses = [RequestedMove(move) for move in question.moves]
            for course, found in zip(courses, await self._courses.look_up(courses), strict=True):
                if found is not None:
                    course.take(Stopped(found.barred))
            ready = [course for course in courses if course.state.begins]
            await self._courses.check_rebuilds([course for course in ready if course.asked.kind == "rebuild"])
            seeking = [course for course in ready if (start := course.state.start) and start.seeks]
            chosen = await self._chosen(seeking, question)
            answers = [chosen.get(id(course)) or _unsought(course) for course in courses]
            return WhatIfMovesAnswered(answers=tuple(answers))

    async def _chosen(self, courses: list[RequestedMove], question: WhatIfMoves) -> dict[int, WhatIfAnswered]:
        starts = [start for course in courses if (start := course.state.start) is not None]
        supposing, emptied = self._what_ifs.supposing(), _SupposedHosts()
        answers: dict[int, WhatIfAnswered] = {}
        closed = HostLimit(
            "reserved",
            "reserved for other requests",
            frozenset(question.closed),
            lambda root: "being emptied",
        )
        orders = await self._scheduler.resolved_for(list(map(asked_by, starts)))
        for course, start, order in zip(courses, starts, orders, strict=True):
            if invalid := order.verdict.invalid:
                unreadable = Decision(code="unreadable")
                answers[id(course)] = WhatIfAnswered(fits=False, refusal=invalid, decision=unreadable)
                continue
            order = emptied.seen_by(order.limited(closed))
            answer, _ = await self._what_ifs.chosen(order, question.best, supposing)
            if answer.fits:
                emptied.goes(start, tuple(placed.root for placed in answer.placed))
                if answers:
                    answer = structs.replace(answer, best=(), decision=Decision())
            answers[id(course)] = answer
        return answers


def _unsought(course: RequestedMove) -> WhatIfAnswered:
    barred, start = course.state.barred, course.state.start
    if barred is None and start is None:
        barred = Barred(code="moving", why="it has started before, and its cell sees it through")
    if barred is not None:
        return WhatIfAnswered(fits=False, refusal=barred.why, decision=Decision(code=barred.code))
    stays = start.source if start is not None and course.asked.kind == "rebuild" else None
    if stays is None or start is None:
        return WhatIfAnswered(fits=True)
    return WhatIfAnswered(fits=True, placed=(PlacedThere(root=stays.root, host=stays.host, cell=start.cell),))
