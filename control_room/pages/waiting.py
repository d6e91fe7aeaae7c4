"""The waiting room: requests that wait for a host, in their order, and the act that ends a wait."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.queries import FindWaiting, WaitingFound
from control_room.operations import ActRefused
from control_room.pages.frame import Frame, OpenRoom, PageRefused, who
from control_room.pages.ids import uuid_in
from control_room.pages.live import live
from control_room.queries import Reply, heard
from control_room.shared_queries import SharedLooks

log = logging.getLogger(__name__)

SECONDS = 5.0  # seconds between two updates without changes: the waiting times grow
A_PAGE = 50
MADE = 64  # parts that are kept
_DEEPEST = 1_000_000


@dataclass(frozen=True)
class WaitsLooked:
    """A project's or everybody's, and behind how many."""

    project: str
    after: int

    def address(self, path: str, after: int | None = None) -> str:
        asked = {"project": self.project, "after": self.after if after is None else after}
        said = urlencode({name: value for name, value in asked.items() if value})
        return f"{path}?{said}" if said else path


class WaitingPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._looks: SharedLooks[WaitsLooked, Reply[WaitingFound]] = SharedLooks(
            self._asked, room.clock, room.hearing.waiting, SECONDS * 0.9
        )
        self._made: OrderedDict[tuple[WaitsLooked, str], tuple[Reply[WaitingFound], str]] = OrderedDict()

    async def page(self, request: Request) -> Response:
        return await self._page(request)

    async def events(self, request: Request) -> Response:
        wanted = _wanted(request)

        async def told() -> str:
            return self._part(request, wanted, await self._looks.latest(wanted))

        return live(request, told, SECONDS, self._room.hearing.waiting, self._looks.pace)

    async def act(self, request: Request) -> Response:
        """Ends one's wait."""
        fields = await self._frame.form(request)
        id_ = uuid_in(fields.get("request", ""))
        if not id_:
            raise PageRefused(400, "Not done", f"{fields.get('request', '')[:60]!r} is no id of a request.")
        try:
            said = await self._room.means.end_wait(id_)
        except ActRefused as refused:
            return await self._page(request, problem=str(refused), status=409)
        finally:
            self._looks.forget()
        log.info("%s: ended the wait of %s: %s", who(request), id_, said)
        return RedirectResponse(f"/waiting?{urlencode({'ended': id_})}", status_code=303)

    async def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        wanted = _wanted(request)
        return self._frame.page(
            request,
            "waiting.html",
            status=status,
            part=self._part(request, wanted, await self._looks.at(wanted)),
            live=wanted.address("/waiting/events"),
            wanted=wanted,
            problem=problem,
            ended=uuid_in(request.query_params.get("ended", "")),
        )

    def _part(self, request: Request, wanted: WaitsLooked, reply: Reply[WaitingFound]) -> str:
        """Render the part once for all who may only read, and once for each who may act, with his form."""
        visitor = self._frame.of_visitor(request)
        for_whom = wanted, visitor["form_token"] if visitor["may_act"] else ""
        before, part = self._made.get(for_whom, (None, ""))
        if before is not reply:
            with self._looks.pace.making():
                part = self._frame.part(
                    "waiting_part.html",
                    **visitor,
                    reply=reply,
                    wanted=wanted,
                    most=max((kind.requests for kind in reply.answer.kinds), default=1)
                    if reply.answer
                    else 1,
                    now=self._room.clock.now(),
                )
            self._made[for_whom] = reply, part
            self._made.move_to_end(for_whom)
            while len(self._made) > MADE:
                self._made.popitem(last=False)
        return part

    async def _asked(self, wanted: WaitsLooked) -> Reply[WaitingFound]:
        question = FindWaiting(project=wanted.project, after=wanted.after, limit=A_PAGE)
        return await heard("the scheduler", self._room.questions.waiting, question)


def _wanted(request: Request) -> WaitsLooked:
    after = request.query_params.get("after", "")
    number = int(after[:9]) if after.isascii() and after.isdigit() else 0
    return WaitsLooked(request.query_params.get("project", "").strip()[:255], min(number, _DEEPEST))
