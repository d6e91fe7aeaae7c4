"""The page for what-if questions: would a request fit now, and where? Nothing is claimed."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import OperationRefused
from control_room.core.builds import DecisionShown, Scores, shown
from control_room.core.forms import InvalidForm
from control_room.core.headroom import headroom_after
from control_room.core.now import Reply
from control_room.core.what_if_form import FIELDS, MORE_FIELDS, form_texts, parse_request
from control_room.pages.frame import PageGroup
from control_room.queries import query
from features.headroom.messages import HEADROOM, FindHeadroom, HeadroomFound
from features.planning.messages import MOVES_MAY_HELP, PLAN_ROOM, PlanRoom, RoomPlanned
from features.waiting.messages import priority_of
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered


class WhatIfPages(PageGroup):
    async def page(self, request: Request) -> Response:
        texts, answer = form_texts(request.query_params), None
        notes: Sequence[str] = ()
        problems: Sequence[str] = ()
        plan: RoomPlanned | None = None
        headroom: Reply[HeadroomFound] | None = None
        try:
            wanted = parse_request(texts)
            if wanted is not None:
                build, notes = await self._context.operations.what_if_request(wanted)
                what_if = WhatIf(request=build, room=True, preempt=priority_of(build.parts) > 0, claims=True)
                reply = await query("the scheduler", self._context.queries.asker(WHAT_IF), what_if)
                answer = reply.answer
                if answer is None:
                    problems = (f"The scheduler does not answer: {reply.problem}.",)
                elif answer.claims:
                    asked = FindHeadroom(claims=answer.claims)
                    headroom = await query("placement", self._context.queries.asker(HEADROOM), asked)
                elif _moves_may_help(answer) and "moves" in request.query_params:
                    moves = await query(
                        "the scheduler", self._context.queries.asker(PLAN_ROOM), PlanRoom(request=build)
                    )
                    plan = moves.answer
                    if plan is None:
                        problems = (f"The scheduler does not answer: {moves.problem}.",)
        except InvalidForm as invalid:
            problems = invalid.args
        except OperationRefused as refused:
            problems = (str(refused),)
        return self._renderer.page(
            request,
            "what_if.html",
            fields=FIELDS,
            more_fields=MORE_FIELDS,
            texts=texts,
            more=any(texts[field.name] for field in MORE_FIELDS),
            problems=problems,
            notes=notes,
            answer=answer,
            decision=shown_answer(answer, self._context.operations.scores) if answer else None,
            now=self._context.clock.now(),
            plan=plan,
            headroom=headroom,
            headroom_after=headroom_after(headroom.answer) if headroom and headroom.answer else (),
            with_moves=f"/what-if?{request.url.query}&moves=1" if answer and _moves_may_help(answer) else "",
        )


def _moves_may_help(answer: WhatIfAnswered) -> bool:
    return not answer.fits and not answer.refusal and answer.decision.code in MOVES_MAY_HELP


def shown_answer(answer: WhatIfAnswered, scores: Scores) -> DecisionShown:
    return shown(answer.decision, scores, answer.placed[0].root if answer.placed else "")
