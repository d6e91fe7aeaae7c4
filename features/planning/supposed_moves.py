"""Answers what-if questions about moves. Chooses hosts as for moves, but claims nothing."""

from collections.abc import Collection, Sequence

from msgspec import structs

from bus.decisions import Decision
from bus.vocabulary import Id, portions
from features.moves.core.start import Barred, Stopped, asked_by
from features.moves.messages import MoveRequested
from features.moves.placing import MovePlacing, RequestedMove
from features.moves.supposed_moves import AT_ONCE, MoveEvaluation
from features.planning.joint_rules import JointPlacing, Moved
from features.planning.messages import WhatIfMoves, WhatIfMovesAnswered
from features.what_if.messages import PlacedThere, WhatIfAnswered
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import HostLimit


class WhatIfsOfMoves(MoveEvaluation):
    """Answers what-if questions about moves; only one what-if question is answered at a time."""

    def __init__(self, what_ifs: WhatIfs, placing: MovePlacing, joint: JointPlacing) -> None:
        self._scheduler = placing.scheduler
        self._what_ifs = what_ifs
        self._placing = placing
        self._joint = joint

    async def supposed(
        self, moves: Sequence[MoveRequested], closed: Collection[Id]
    ) -> Sequence[WhatIfAnswered]:
        answers: list[WhatIfAnswered] = []
        for some in portions(moves, AT_ONCE):
            answers += (await self.answer(WhatIfMoves(moves=some, closed=tuple(closed)))).answers
        return answers

    async def answer(self, question: WhatIfMoves) -> WhatIfMovesAnswered:
        """Return where instances would move, without any claim."""
        async with self._what_ifs.lock:
            batch = [RequestedMove(move) for move in question.moves]
            for requested, found in zip(batch, await self._placing.look_up(batch), strict=True):
                if found is not None:
                    requested.take(Stopped(found.barred))
            ready = [requested for requested in batch if requested.state.begins]
            await self._placing.check_rebuilds(
                [requested for requested in ready if requested.asked.kind == "rebuild"]
            )
            seeking = [requested for requested in ready if (start := requested.state.start) and start.seeks]
            chosen = await self._chosen(seeking, question)
            answers = [chosen.get(id(requested)) or _unsought(requested) for requested in batch]
            return WhatIfMovesAnswered(answers=tuple(answers))

    async def _chosen(self, batch: list[RequestedMove], question: WhatIfMoves) -> dict[int, WhatIfAnswered]:
        starts = [start for requested in batch if (start := requested.state.start) is not None]
        supposing, moved = self._what_ifs.supposing(), list[Moved]()
        answers: dict[int, WhatIfAnswered] = {}
        closed = HostLimit(
            "reserved",
            "reserved for other requests",
            frozenset(question.closed),
            lambda root: "being emptied",
        )
        orders = await self._scheduler.resolved_for(list(map(asked_by, starts)))
        for requested, start, order in zip(batch, starts, orders, strict=True):
            if invalid := order.verdict.invalid:
                unreadable = Decision(code="unreadable")
                answers[id(requested)] = WhatIfAnswered(fits=False, refusal=invalid, decision=unreadable)
                continue
            order = order.limited(closed).changed(
                lambda alternative: self._joint.of(alternative).after(moved, alternative)
            )
            answer, _ = await self._what_ifs.chosen(order, question.best, supposing)
            if answer.fits:
                moved.append((start, tuple([placed.root for placed in answer.placed])))
                if answers:
                    answer = structs.replace(answer, best=(), decision=Decision())
            answers[id(requested)] = answer
        return answers


def _unsought(requested: RequestedMove) -> WhatIfAnswered:
    barred, start = requested.state.barred, requested.state.start
    if barred is None and start is None:
        barred = Barred(code="moving", why="it has started before, and its cell sees it through")
    if barred is not None:
        return WhatIfAnswered(fits=False, refusal=barred.why, decision=Decision(code=barred.code))
    stays = start.source if start is not None and requested.asked.kind == "rebuild" else None
    if stays is None or start is None:
        return WhatIfAnswered(fits=True)
    return WhatIfAnswered(fits=True, placed=(PlacedThere(root=stays.root, host=stays.host, cell=start.cell),))
