"""The part of the page of what-if questions about moves that would make room."""

from starlette.requests import Request

from control_room.pages import frame
from control_room.queries import query
from features.planning.messages import MOVES_MAY_HELP, PLAN_ROOM, PlanRoom
from features.what_if.pages import Asked


def sections(context: frame.PageContext, renderer: frame.Renderer) -> dict[str, frame.Section]:
    async def moves(request: Request, asked: Asked) -> str:
        """Show a link to a plan of moves if moves may help, and the plan if the request's URL asks for it."""
        answer = asked.answer
        if answer.fits or answer.refusal or answer.decision.code not in MOVES_MAY_HELP:
            return ""
        plan, problem = None, ""
        if "moves" in request.query_params:
            question = PlanRoom(request=asked.request)
            reply = await query("the scheduler", context.queries.asker(PLAN_ROOM), question)
            plan, problem = reply.answer, reply.problem
        with_moves = f"/what-if?{request.url.query}&moves=1"
        return renderer.part("what_if_moves.html", plan=plan, problem=problem, with_moves=with_moves)

    return {"what_if": moves}
