"""The waiting room: requests that wait for a host, in their order, and the operation that ends a wait."""

import logging
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import OperationRefused
from bus.queries import FindWaiting, WaitingFound
from control_room.pages import frame
from control_room.pages.page_updates import PageUpdates
from control_room.queries import Reply, query
from control_room.shared_data import SPACING, TIMES, SharedData

log = logging.getLogger(__name__)

SECONDS = 5.0  # seconds between two updates without changes: the waiting times grow
PAGE_SIZE = 50
_DEEPEST = 1_000_000


@dataclass(frozen=True)
class WaitingQuery:
    """The project, empty for all, and how many requests are skipped."""

    project: str
    after: int

    def address(self, path: str, after: int | None = None) -> str:
        parameters = {"project": self.project, "after": self.after if after is None else after}
        text = urlencode({name: value for name, value in parameters.items() if value})
        return f"{path}?{text}" if text else path


@dataclass(frozen=True)
class WaitingData:
    reply: Reply[WaitingFound]
    # rendered once for all who may only read (""), and once for each form token of those who may act
    parts: dict[str, str] = field(default_factory=dict)


class WaitingPages(frame.PageGroup):
    def __init__(self, context: frame.PageContext, renderer: frame.Renderer) -> None:
        super().__init__(context, renderer)
        changes = context.events.waiting
        self._data = SharedData(
            context.tasks, self._read, changes=changes, seconds=SECONDS * 0.9, times=TIMES, spacing=SPACING
        )
        self._updates = PageUpdates(SECONDS, changes, self._data.interval)

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
            ended=frame.uuid_in(request.query_params.get("ended", "")),
        )

    async def events(self, request: Request) -> Response:
        wanted = _wanted(request)

        async def part() -> str:
            return self._part(request, wanted, await self._data.latest(wanted))

        return self._updates.stream(request, part)

    async def end_wait(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        id_ = frame.uuid_in(fields.get("request", ""))
        if not id_:
            raise frame.PageRefused(
                400, "Not done", f"{fields.get('request', '')[:60]!r} is no id of a request."
            )
        try:
            answer = await self._context.operations.end_wait(id_)
        except OperationRefused as refused:
            return await self.page(request, str(refused), 409)
        finally:
            self._data.forget()
        log.info("%s: ended the wait of %s: %s", frame.user_of(request), id_, answer)
        return RedirectResponse(f"/waiting?{urlencode({'ended': id_})}", status_code=303)

    def _part(self, request: Request, wanted: WaitingQuery, data: WaitingData) -> str:
        visitor = self._renderer.of_visitor(request)
        token = visitor["form_token"] if visitor["may_act"] else ""
        if token not in data.parts:
            kinds = data.reply.answer.kinds if data.reply.answer else ()
            with self._updates.interval.rendering():
                data.parts[token] = self._renderer.part(
                    "waiting_part.html",
                    **visitor,
                    reply=data.reply,
                    wanted=wanted,
                    most=max((kind.requests for kind in kinds), default=1),
                    now=self._context.clock.now(),
                )
        return data.parts[token]

    async def _read(self, wanted: WaitingQuery) -> WaitingData:
        find = FindWaiting(project=wanted.project, after=wanted.after, limit=PAGE_SIZE)
        return WaitingData(await query("the scheduler", self._context.queries.waiting, find))


def _wanted(request: Request) -> WaitingQuery:
    after = request.query_params.get("after", "")
    number = int(after[:9]) if after.isascii() and after.isdigit() else 0
    return WaitingQuery(frame.parameter(request, "project"), min(number, _DEEPEST))
