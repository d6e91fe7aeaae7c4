"""Pages that compare decisions of a running Nova's scheduler with berth's (shadow mode)."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from control_room.kit import (
    READ_TIMES,
    AddedPages,
    PageContext,
    PageGroup,
    PagePart,
    PageRefused,
    PageUpdates,
    Renderer,
    Reply,
    SharedData,
    decision_shown,
    get,
    live,
    parameter,
    query,
    soon,
    uuid_in,
)
from features.nova.with_what_if.core.report_shown import PERIODS, USUAL, report_shown, verdict_name
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport, NovaReportFound

SECONDS = 10.0
LISTED = 50  # requests of each kind
SOURCE = "shadow mode"


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    nova = NovaPages(context, renderer)
    return AddedPages(routes=[*live("/nova", nova), get("/nova/{instance}", nova.instance)])


class NovaPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._reports = SharedData(context.tasks, self._read, seconds=SECONDS * 0.9, times=READ_TIMES)
        self._updates = PageUpdates(SECONDS, None, self._reports.interval)

    async def page(self, request: Request) -> Response:
        period = _period(request)
        reply = await soon(request, self._reports.get(period))
        return self._renderer.page(
            request,
            "nova.html",
            part=self._part(reply, period),
            live=f"/nova/events?{urlencode({'since': period})}",
            period=period,
            periods=PERIODS,
        )

    async def events(self, request: Request) -> Response:
        period = _period(request)

        async def part() -> str:
            return self._part(await self._reports.latest(period), period)

        return self._updates.stream(request, part)

    async def instance(self, request: Request) -> Response:
        """Return the web page of an instance's requests to Nova's scheduler, with berth's decisions."""
        id_ = uuid_in(request.path_params["instance"])
        if not id_:
            raise PageRefused(404, "There is no such instance", "That is not the uuid of an instance.")
        reply = await query(SOURCE, self._context.queries.asker(NOVA_REPORT), FindNovaReport(instance=id_))
        if reply.answer is None:
            raise PageRefused(503, "Not available", f"Shadow mode does not answer: {reply.problem}.")
        if not reply.answer.listed:
            text = (
                "Shadow mode has no request of it: no request was published, or it is older than two weeks."
            )
            raise PageRefused(404, "There is no such request", text)
        scores = self._context.operations.scores
        found = reply.answer.listed
        return self._renderer.page(
            request,
            "nova_instance.html",
            id=id_,
            requests=[
                (each, decision_shown(each.decision, scores) if each.decision is not None else None)
                for each in found
            ],
            verdict_name=verdict_name,
            now=self._context.clock.now(),
        )

    async def _read(self, period: str) -> Reply[NovaReportFound]:
        since = max(0.0, self._context.clock.now() - PERIODS[period])
        find = FindNovaReport(since=since, listed=LISTED)
        return await query(SOURCE, self._context.queries.asker(NOVA_REPORT), find)

    def _part(self, reply: Reply[NovaReportFound] | None, period: str) -> str:
        return self._renderer.part(
            "nova_part.html",
            reply=reply,
            report=report_shown(reply.answer) if reply is not None and reply.answer is not None else None,
            period=period,
            now=self._context.clock.now(),
        )


def _period(request: Request) -> str:
    given = parameter(request, "since")
    return given if given in PERIODS else USUAL


PART = PagePart(make)
