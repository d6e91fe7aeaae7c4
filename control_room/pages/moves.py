"""Moves and drained hosts: their progress, and the acts of an operator on them."""

import asyncio
import logging
from dataclasses import dataclass
from urllib.parse import urlencode

from msgspec import structs
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.moves import FindMoves, MovesFound, MoveStands
from control_room.core.decisions import shown
from control_room.core.moves import MoveShown, move_shown, told_by_one
from control_room.drained_hosts import DrainsLooked, DrainsSeen
from control_room.operations import ActRefused
from control_room.page_refresh import Pace
from control_room.pages.frame import Frame, OpenRoom, PageRefused, who
from control_room.pages.ids import uuid_in
from control_room.pages.live import live
from control_room.periodic_queries import Glances
from control_room.queries import Reply, heard

log = logging.getLogger(__name__)

SECONDS = 1.0
UNDER_WAY = 100  # shown
ENDED = 50
STEERINGS = ("confirm", "revert", "abort", "force")


@dataclass(frozen=True)
class MovesSeen:
    under_way: tuple[MoveShown, ...]
    ended: tuple[MoveShown, ...]
    more: bool  # more run than are listed
    silent: tuple[str, ...]


class MovePages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        drains = DrainsLooked(room.questions, room.means.drains, room.clock)
        self._pace = Pace()
        # What was known when moves had stirred less often is not what is asked for.
        self._moves: Glances[tuple[str, int], MovesSeen] = Glances(
            lambda asked: self._seen(asked[0]), room.clock, SECONDS * 0.9
        )
        self._drains: Glances[str, DrainsSeen] = Glances(lambda _: drains.seen(), room.clock, 2.0)

    # All of them

    async def page(self, request: Request) -> Response:
        return await self._page(request)

    async def events(self, request: Request) -> Response:
        return live(request, lambda: self._part(request), SECONDS, self._room.hearing.moving, self._pace)

    async def act(self, request: Request) -> Response:
        """Stops a drain."""
        fields = await self._frame.form(request)
        root, what = uuid_in(fields.get("root", "")), fields.get("act", "")
        if not root or what not in ("stop", "stop-and-open"):
            raise PageRefused(400, "Not done", f"A drain cannot be told to {what[:40]!r}.")
        try:
            said = await self._room.means.drains.stop(root, what == "stop-and-open")
        except ActRefused as refused:
            return await self._page(request, problem=str(refused), status=409)
        finally:
            self._drains.forget()
        _note(request, "%s of the drain of %s: %s", what, root, said)
        return RedirectResponse("/moves", status_code=303)

    async def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        host = _host(request)
        return self._frame.page(
            request,
            "moves.html",
            status=status,
            part=await self._part(request),
            live=f"/moves/events?{urlencode({'host': host})}" if host else "/moves/events",
            host=host,
            problem=problem,
        )

    async def _part(self, request: Request) -> str:
        host = _host(request)
        stirred = self._room.hearing.moving.count
        with self._pace.asking():
            moves, drains = await asyncio.gather(self._moves.at((host, stirred)), self._drains.at(""))
        if host:
            kept = tuple(drain for drain in drains.drains if host in (drain.host, drain.root))
            drains = DrainsSeen(kept, 0, drains.problem)
        return self._frame.part(
            "moves_part.html",
            **self._frame.of_visitor(request),
            moves=moves,
            drains=drains,
            host=host,
            now=self._room.clock.now(),
        )

    async def _seen(self, host: str) -> MovesSeen:
        open_ = FindMoves(cell="any", host=host, under_way=True, limit=UNDER_WAY + 1)
        going, silent = await self._asked(open_)
        lately, _ = await self._asked(FindMoves(cell="any", host=host, limit=200))
        over = sorted((move for move in lately if move.ended), key=lambda move: -move.ended)
        return MovesSeen(
            under_way=tuple(map(move_shown, going[:UNDER_WAY])),
            ended=tuple(map(move_shown, over[:ENDED])),
            more=len(going) > UNDER_WAY,
            silent=tuple(silent),
        )

    async def _asked(self, question: FindMoves) -> tuple[list[MoveStands], list[str]]:
        """Ask all cells in parallel. Return the moves, and the cells that did not answer."""
        looking = self._room.looking
        cells = looking.cell_names(await looking.seen())
        replies: list[Reply[MovesFound]] = await asyncio.gather(
            *(
                heard(f"cell {cell}", self._room.questions.moves, structs.replace(question, cell=cell))
                for cell in cells
            )
        )
        found = [move for reply in replies if reply.answer for move in reply.answer.moves]
        return told_by_one(found), [reply.who for reply in replies if reply.problem]

    # One

    async def one(self, request: Request) -> Response:
        return await self._one(request)

    async def one_events(self, request: Request) -> Response:
        id_ = _id(request)

        async def told() -> str:
            with pace.asking():
                found, silent = await self._asked(FindMoves(cell="any", moves=(id_,)))
            return self._one_part(request, found[0] if found else None, silent)

        pace = Pace()
        return live(request, told, SECONDS, self._room.hearing.moving, pace)

    async def steer(self, request: Request) -> Response:
        fields = await self._frame.form(request)
        what = fields.get("act", "")
        if what not in STEERINGS:
            raise PageRefused(400, "Not done", f"A move cannot be told to {what[:40]!r}.")
        found, _ = await self._asked(FindMoves(cell="any", moves=(_id(request),)))
        if not found:
            raise PageRefused(404, "There is no such move", "No cell that answers knows it.")
        try:
            said = await self._room.means.steer(found[0], what)
        except ActRefused as refused:
            return await self._one(request, problem=str(refused), status=409)
        finally:
            self._moves.forget()
        _note(request, "%s of move %s: %s", what, found[0].move, said)
        return RedirectResponse(f"/moves/{found[0].move}", status_code=303)

    async def _one(self, request: Request, problem: str = "", status: int = 200) -> Response:
        id_ = _id(request)
        found, silent = await self._asked(FindMoves(cell="any", moves=(id_,)))
        if not found:
            unheard = f" ({', '.join(silent)} did not answer.)" if silent else ""
            raise PageRefused(
                404,
                "There is no such move",
                f"No cell knows it; of one that waits or was refused /builds/{id_} tells.{unheard}",
            )
        return self._frame.page(
            request,
            "move.html",
            status=status,
            part=self._one_part(request, found[0], silent),
            id=id_,
            kind=found[0].kind,
            problem=problem,
        )

    def _one_part(self, request: Request, found: MoveStands | None, silent: list[str]) -> str:
        return self._frame.part(
            "move_part.html",
            **self._frame.of_visitor(request),
            one=move_shown(found) if found else None,
            decision=shown(found.decision, self._room.means.scores) if found else None,
            silent=silent,
            now=self._room.clock.now(),
        )


def _host(request: Request) -> str:
    return request.query_params.get("host", "").strip()[:255]


def _id(request: Request) -> str:
    id_ = uuid_in(request.path_params["move"])
    if not id_:
        raise PageRefused(404, "There is no such move", "That is not the uuid of a move.")
    return id_


def _note(request: Request, what: str, *said: object) -> None:
    log.info("%s: " + what, who(request), *said)
