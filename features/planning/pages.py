"""Sections that planning adds to pages: moves that would make room, and the switch of rebalancing."""

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from berth.operations.refusing import operations_refused
from bus.errors import OperationRefused
from control_room import queries
from control_room.core.now import Reply
from control_room.pages import frame
from control_room.pages.frame import PageRefused
from control_room.queries import query
from control_room.shared_data import TIMES, Changes, SharedData
from features.moves.messages import MOVE_ENDED, MOVE_PROGRESS
from features.planning.messages import (
    MOVES_MAY_HELP,
    PLAN_ROOM,
    SWITCH_BALANCING,
    BalancingSwitched,
    PlanRoom,
    SwitchBalancing,
)
from features.what_if.pages import AskedForm

log = logging.getLogger(__name__)

SECONDS = 2.0  # that the state of rebalancing is used


def make(context: frame.PageContext, renderer: frame.Renderer) -> frame.AddedPages:
    async def switch_balancing(request: Request) -> Response:
        act = (await renderer.form(request)).get("act", "")
        if act not in ("stop", "permit"):
            raise PageRefused(400, "Not done", f"There is no operation {act[:40]!r} on rebalancing.")
        try:
            with operations_refused():
                await context.queries.bus.asker(SWITCH_BALANCING)(SwitchBalancing(stop=act == "stop"))
        except OperationRefused as refused:
            raise PageRefused(409, "Not done", str(refused)) from None
        finally:
            context.events.of(MOVE_PROGRESS).notify()  # open pages of moves show the switch
        log.info("%s: %s rebalancing", frame.user_of(request), act)
        return RedirectResponse("/moves", status_code=303)

    async def moves(request: Request, asked: AskedForm) -> str:
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

    balancing: SharedData[None, Reply[BalancingSwitched]] = SharedData(
        context.tasks,
        lambda _: read_balancing(context),
        changes=Changes(context.events.of(MOVE_ENDED), context.events.of(MOVE_PROGRESS)),
        seconds=SECONDS,
        times=TIMES,
    )

    async def rebalancing(request: Request, _: None) -> str:
        """Show whether rebalancing is stopped, with a form to stop or permit it."""
        return renderer.part(
            "moves_rebalancing.html", **renderer.of_visitor(request), balancing=await balancing.get(None)
        )

    return frame.AddedPages(
        routes=[Route("/rebalancing", switch_balancing, methods=["POST"])],
        sections={"what_if": moves, "moves": rebalancing},
    )


async def read_balancing(context: frame.PageContext) -> Reply[BalancingSwitched]:
    ask = context.queries.asker(SWITCH_BALANCING, timeout=queries.SECONDS)
    return await query("the scheduler", ask, SwitchBalancing())
