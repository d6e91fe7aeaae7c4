"""Sections that planning adds to pages: moves that would make room, and the rebalancings that run."""

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import operations_refused
from bus.errors import OperationRefused
from control_room.kit import (
    QUERY_SECONDS,
    READ_TIMES,
    AddedPages,
    Changes,
    PageContext,
    PagePart,
    PageRefused,
    Renderer,
    Reply,
    SharedData,
    post,
    query,
    unknown_operation,
    user_of,
)
from features.moves.messages import FIND_PLANS, MOVE_ENDED, MOVE_PROGRESS, FindPlans, PlansFound
from features.moves.plan_requests import plan_sentence
from features.planning.messages import MOVES_MAY_HELP, PLAN_ROOM, PlanRoom, balancing_goal
from features.planning.running_rebalancings import rebalancings_in, stop_rebalancings
from features.what_if.pages import AskedForm

log = logging.getLogger(__name__)

SECONDS = 2.0  # that data about running plans are used


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    async def stop(request: Request) -> Response:
        act = (await renderer.form(request)).get("act", "")
        if act != "stop":
            raise unknown_operation(act, "rebalancing")
        try:
            with operations_refused():
                await stop_rebalancings(context.queries.bus)
        except OperationRefused as refused:
            raise PageRefused(409, "Not done", str(refused)) from None
        finally:
            context.events.of(MOVE_PROGRESS).notify()  # open pages of moves show that it is stopping
        log.info("%s: stop of rebalancing", user_of(request))
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

    async def read_plans(_: None) -> Reply[PlansFound]:
        ask = context.queries.asker(FIND_PLANS, timeout=QUERY_SECONDS)
        return await query("the scheduler", ask, FindPlans())

    plans = SharedData(
        context.tasks,
        read_plans,
        changes=Changes(context.events.of(MOVE_ENDED), context.events.of(MOVE_PROGRESS)),
        seconds=SECONDS,
        times=READ_TIMES,
    )

    async def rebalancing(request: Request, _: None) -> str:
        """Show the rebalancings that run, with a form to stop them."""
        found = await plans.get(None)
        shown = [
            (stands.why or plan_sentence(stands), stands.stopping, balancing_goal(stands.plan).keeps_on)
            for stands in (rebalancings_in(found.answer) if found.answer else ())
        ]
        return renderer.part(
            "moves_rebalancing.html", **renderer.of_visitor(request), plans=shown, problem=found.problem
        )

    return AddedPages(routes=[post("/rebalancing", stop)], sections={"what_if": moves, "moves": rebalancing})


PART = PagePart(make)
