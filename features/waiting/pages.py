"""The page about waiting requests, which operators may cancel."""

import logging
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from berth.kit import end_wait, operations_refused
from bus import topics
from bus.errors import OperationRefused
from bus.queries import FindWaiting, WaitingFound
from control_room.kit import (
    AddedPages,
    BuildRecords,
    PageContext,
    PageGroup,
    PagePart,
    PageRefused,
    Renderer,
    Reply,
    address,
    live,
    live_data,
    parameter,
    post,
    query,
    user_of,
    uuid_in,
)

log = logging.getLogger(__name__)

SECONDS = 5.0  # seconds between two updates without changes: the waiting times grow
PAGE_SIZE = 50
_DEEPEST = 1_000_000


@dataclass(frozen=True)
class WaitingQuery:
    """The parameters in the URL of the page of waiting requests: project (empty: all), how many to skip."""

    project: str
    after: int

    def address(self, path: str, after: int | None = None) -> str:
        after = self.after if after is None else after
        return address(path, {"project": self.project, "after": after})


@dataclass(frozen=True)
class WaitingData:
    """The data of the page, rendered once for all readers."""

    reply: Reply[WaitingFound]
    # rendered once for users without permission to act (""), and once for each form token
    parts: dict[str, str] = field(default_factory=dict)


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = WaitingPages(context, renderer)

    async def of_decision(request: Request, records: BuildRecords) -> str:
        """Show why and how long a build's request waits, with a form to cancel it."""
        if not records.decided.waits:
            return ""
        visitor, now = renderer.of_visitor(request), context.clock.now()
        return renderer.part("build_waits.html", **visitor, id=records.id, decided=records.decided, now=now)

    return AddedPages(
        routes=[*live("/waiting", pages), post("/waiting", pages.end_wait)],
        sections={"decision": of_decision},
    )


class WaitingPages(PageGroup):
    """Shows waiting requests; operators end their wait."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._data, self._updates = live_data(
            context, self._read, context.events.of(topics.SCHEDULER_ALIVE), SECONDS
        )

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        wanted = _wanted(request)
        return self._renderer.page(
            request,
            "waiting.html",
            status=status,
            part=self._part(request, wanted, await self._data.get(wanted)),
            live=wanted.address("/waiting/events"),
            wanted=wanted,
            problem=problem,
            ended=uuid_in(request.query_params.get("ended", "")),
        )

    async def events(self, request: Request) -> Response:
        wanted = _wanted(request)

        async def part() -> str:
            return self._part(request, wanted, await self._data.latest(wanted))

        return self._updates.stream(request, part)

    async def end_wait(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        id_ = uuid_in(fields.get("request", ""))
        if not id_:
            raise PageRefused(400, "Not done", f"{fields.get('request', '')[:60]!r} is no request.")
        try:
            answer = await self._end_wait(id_)
        except OperationRefused as refused:
            return await self.page(request, str(refused), 409)
        finally:
            self._data.forget()
        log.info("%s: ended the wait of %s: %s", user_of(request), id_, answer)
        return RedirectResponse(address("/waiting", {"ended": id_}), status_code=303)

    async def _end_wait(self, request: str) -> str:
        """Cancel a waiting request or move; return the scheduler's answer."""
        with operations_refused():
            ended = await end_wait(self._context.queries.bus, request)
        if not ended.waited:
            raise OperationRefused(f"It does not wait: {ended.why}.")
        return ended.why

    def _part(self, request: Request, wanted: WaitingQuery, data: WaitingData) -> str:
        kinds = data.reply.answer.kinds if data.reply.answer else ()
        return self._renderer.part_of_visitor(
            request,
            data.parts,
            self._updates.interval,
            "waiting_part.html",
            reply=data.reply,
            wanted=wanted,
            most=max((kind.requests for kind in kinds), default=1),
            now=self._context.clock.now(),
        )

    async def _read(self, wanted: WaitingQuery) -> WaitingData:
        find = FindWaiting(project=wanted.project, after=wanted.after, limit=PAGE_SIZE)
        return WaitingData(await query("the scheduler", self._context.queries.waiting, find))


def _wanted(request: Request) -> WaitingQuery:
    after = request.query_params.get("after", "")
    number = int(after[:9]) if after.isascii() and after.isdigit() else 0
    return WaitingQuery(parameter(request, "project"), min(number, _DEEPEST))


PART = PagePart(make)
