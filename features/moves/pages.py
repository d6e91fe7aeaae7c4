"""Pages about moves and drained hosts, with their progress and operations, and sections about them on the
pages of hosts and builds.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import OperationRefused
from bus.host_health import DRAIN as MARK
from bus.host_health import causes_in
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider
from control_room.kit import (
    QUERY_SECONDS,
    READ_TIMES,
    AddedPages,
    Changes,
    FoundRecords,
    PageContext,
    PageGroup,
    PagePart,
    PageRefused,
    PageUpdates,
    Renderer,
    Reply,
    SharedData,
    address,
    decision_shown,
    get,
    live,
    parameter,
    post,
    query,
    unknown_operation,
    user_of,
    uuid_in,
)
from features.moves.core.shown import MoveShown, merged_moves, move_shown
from features.moves.messages import FIND_MOVES, MOVE_ENDED, MOVE_PROGRESS, FindMoves, MovesFound, MoveStands
from features.moves.operations import DRAIN, DrainProgress, Drains, steer

MOST = 40  # drained hosts that are queried


@dataclass(frozen=True, kw_only=True)
class DrainShown:
    """A host that is being emptied, as pages show it."""

    root: str
    host: str
    cell: str
    causes: tuple[str, ...]  # other causes for which the host is disabled
    progress: DrainProgress | None  # None: no plan is known that drains the host

    @property
    def is_done(self) -> bool:
        return self.progress is not None and self.progress.is_done


@dataclass(frozen=True)
class DrainsFound:
    """The hosts that are being emptied."""

    drains: tuple[DrainShown, ...] = ()
    unseen: int = 0  # further hosts, which are not queried
    problem: str = ""


def name_of(root: Provider) -> str:
    return root.host or root.name


log = logging.getLogger(__name__)

SECONDS = 1.0
DRAIN_SECONDS = 2.0  # seconds that data about drained hosts are used
RUNNING = 100  # moves in progress that are shown
ENDED = 50
MOST_MOVES = 50  # on the page of a host
MOST_CONCURRENT = 1000  # moves of a drain
STEERINGS = ("confirm", "revert", "abort", "force")

Found = tuple[list[MoveStands], list[str]]  # moves, and the cells that did not answer


@dataclass(frozen=True)
class MovesListed:
    """The moves of all cells that have answered."""

    running: tuple[MoveShown, ...]
    ended: tuple[MoveShown, ...]
    more: bool  # more run than are listed
    silent: tuple[str, ...]


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    context.events.changes.include(context.events.of(MOVE_ENDED))
    drains = Drains(context.queries.bus)
    pages, of_hosts = MovePages(context, renderer, drains), MovesOfHosts(context, renderer, drains)

    async def of_build(id_: str) -> FoundRecords:
        """Find the moves with an id, and of the build with this id."""
        ask = context.queries.asker(FIND_MOVES, timeout=QUERY_SECONDS)
        replies = await asyncio.gather(
            *(
                query(f"cell {cell}", ask, find)
                for cell in await context.status.cells()
                for find in (FindMoves(cell=cell, moves=(id_,)), FindMoves(cell=cell, builds=(id_,)))
            )
        )
        found = {move.move: move for reply in replies if reply.answer for move in reply.answer.moves}
        moves = sorted(found.values(), key=lambda move: move.since)
        text = renderer.part("build_moves.html", moves=moves) if moves else ""
        return FoundRecords(text, [reply.source for reply in replies if reply.problem])

    return AddedPages(
        routes=[
            *live("/moves", pages),
            post("/moves", pages.stop_drain),
            get("/moves/{move}", pages.move),
            post("/moves/{move}", pages.steer),
            get("/moves/{move}/events", pages.move_events),
        ],
        sections={"host alarms": of_hosts.alarm, "host operations": of_hosts.form, "host": of_hosts.moves},
        records=of_build,
        host_operations={
            "drain": of_hosts.drain,
            "stop-drain": of_hosts.stop_drain,
            "stop-drain-and-open": of_hosts.stop_drain_and_open,
        },
    )


class MovesOfHosts(PageGroup):
    """The moves and the drain of a host on its page."""

    def __init__(self, context: PageContext, renderer: Renderer, drains: Drains) -> None:
        super().__init__(context, renderer)
        self._drains = drains

    async def alarm(self, request: Request, root: Provider) -> str:
        """Return the part of a host's page about its emptying; "" if there is none."""
        if MARK not in root.traits:
            return ""
        drain = await self._drains.progress(root.id)
        return self._renderer.part("host_drain.html", drain=drain, name=name_of(root))

    async def form(self, request: Request, root: Provider) -> str:
        """Return the form that begins or stops the emptying of a host."""
        return self._renderer.part(
            "host_drain_form.html",
            **self._renderer.of_visitor(request),
            drain=await self._drains.progress(root.id),
            draining=MARK in root.traits,
        )

    async def moves(self, request: Request, root: Provider) -> str:
        """Return the part of a host's page with the moves from and to it."""
        name, moving = name_of(root), None
        if root.cell:
            ask = self._context.queries.asker(FIND_MOVES, timeout=QUERY_SECONDS)
            find = FindMoves(cell=root.cell, host=name, under_way=True, limit=MOST_MOVES)
            moving = await query(f"the conductor of cell {root.cell}", ask, find)
        return self._renderer.part("host_moves.html", moving=moving, name=name)

    async def drain(self, root: str, fields: Mapping[str, str]) -> str:
        """Begin to empty a host; return a sentence about it."""
        most = fields.get("most", "10")
        if not (most.isascii() and most.isdigit() and len(most) <= 9 and 1 <= int(most) <= MOST_CONCURRENT):
            raise OperationRefused(f"At a time: a number from 1 to {MOST_CONCURRENT}, not {most[:20]!r}.")
        return await self._drains.start(root, fields.get("how", "live") != "cold", int(most))

    async def stop_drain(self, root: str, fields: Mapping[str, str]) -> str:
        """Stop the emptying of a host, which stays disabled."""
        return await self._drains.stop(root, and_open=False)

    async def stop_drain_and_open(self, root: str, fields: Mapping[str, str]) -> str:
        """Stop the emptying of a host, and enable it."""
        return await self._drains.stop(root, and_open=True)


class MovePages(PageGroup):
    """Shows moves and hosts that are being emptied; operators steer them."""

    def __init__(self, context: PageContext, renderer: Renderer, drains: Drains) -> None:
        super().__init__(context, renderer)
        self._running_drains = drains
        self._ask = context.queries.asker(FIND_MOVES, timeout=QUERY_SECONDS)
        tasks, events = context.tasks, context.events
        changes = Changes(events.of(MOVE_ENDED), events.of(MOVE_PROGRESS))
        seconds = SECONDS * 0.9
        self._lists = SharedData(tasks, self._list, changes=changes, seconds=seconds, times=READ_TIMES)
        self._moves = SharedData(tasks, self._find, changes=changes, seconds=seconds, times=READ_TIMES)
        self._drains = SharedData(tasks, self._read_drains, seconds=DRAIN_SECONDS, times=READ_TIMES)
        self._updates = PageUpdates(SECONDS, changes, self._lists.interval)
        self._move_updates = PageUpdates(SECONDS, changes, self._moves.interval)

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        host = parameter(request, "host")
        return self._renderer.page(
            request,
            "moves.html",
            status=status,
            part=await self._part(request),
            live=address("/moves/events", {"host": host}),
            host=host,
            problem=problem,
        )

    async def events(self, request: Request) -> Response:
        return self._updates.stream(request, lambda: self._part(request))

    async def stop_drain(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        root, name = uuid_in(fields.get("root", "")), fields.get("act", "")
        if not root or name not in ("stop", "stop-and-open"):
            raise unknown_operation(name, "drains")
        try:
            state = await self._running_drains.stop(root, name == "stop-and-open")
        except OperationRefused as refused:
            return await self.page(request, str(refused), 409)
        finally:
            self._drains.forget()
        log.info("%s: %s of the drain of %s: %s", user_of(request), name, root, state)
        return RedirectResponse("/moves", status_code=303)

    async def _part(self, request: Request) -> str:
        host = parameter(request, "host")
        moves, drains, sections = await asyncio.gather(
            self._lists.get(host), self._drains.get(None), self._renderer.sections("moves", request, None)
        )
        if host:
            of_host = tuple(drain for drain in drains.drains if host in (drain.host, drain.root))
            drains = DrainsFound(of_host, 0, drains.problem)
        return self._renderer.part(
            "moves_part.html",
            **self._renderer.of_visitor(request),
            moves=moves,
            drains=drains,
            sections=sections,
            host=host,
            now=self._context.clock.now(),
        )

    async def _read_drains(self, _: None) -> DrainsFound:
        find = FindProviders(like=ResourceGroup(required=(MARK,)), parts=("traits", "owner"))
        found = await query("placement", self._context.queries.providers, find)
        if found.answer is None:
            return DrainsFound(problem=found.problem)
        roots = sorted((root for root in found.answer.providers if root.parent is None), key=name_of)
        drains = await asyncio.gather(*(self._drain(root) for root in roots[:MOST]))
        drains.sort(key=lambda drain: (drain.is_done, drain.host))
        return DrainsFound(tuple(drains), max(0, len(roots) - MOST))

    async def _drain(self, root: Provider) -> DrainShown:
        return DrainShown(
            root=root.id,
            host=name_of(root),
            cell=root.cell,
            causes=tuple([cause for cause in causes_in(root.traits) if cause != DRAIN]),
            progress=await self._running_drains.progress(root.id),
        )

    async def _list(self, host: str) -> MovesListed:
        running, silent = await self._query(
            FindMoves(cell="any", host=host, under_way=True, limit=RUNNING + 1)
        )
        recent, _ = await self._query(FindMoves(cell="any", host=host, limit=200))
        ended = sorted((move for move in recent if move.ended), key=lambda move: -move.ended)
        return MovesListed(
            running=tuple(map(move_shown, running[:RUNNING])),
            ended=tuple(map(move_shown, ended[:ENDED])),
            more=len(running) > RUNNING,
            silent=tuple(silent),
        )

    async def _query(self, find: FindMoves) -> Found:
        cells = await self._context.status.cells()
        replies: list[Reply[MovesFound]] = await asyncio.gather(
            *(query(f"cell {cell}", self._ask, structs.replace(find, cell=cell)) for cell in cells)
        )
        found = [move for reply in replies if reply.answer for move in reply.answer.moves]
        return merged_moves(found), [reply.source for reply in replies if reply.problem]

    async def move(self, request: Request, problem: str = "", status: int = 200) -> Response:
        """Show one move with its phases."""
        id_ = _id(request)
        found, silent = await self._find(id_)
        if not found:
            no_answer = f" ({', '.join(silent)} did not answer.)" if silent else ""
            text = f"No cell knows the move; /builds/{id_} shows a move that waits or was refused.{no_answer}"
            raise PageRefused(404, "There is no such move", text)
        return self._renderer.page(
            request,
            "move.html",
            status=status,
            part=self._move_part(request, found[0], silent),
            id=id_,
            kind=found[0].kind,
            problem=problem,
        )

    async def move_events(self, request: Request) -> Response:
        id_ = _id(request)

        async def part() -> str:
            found, silent = await self._moves.get(id_)
            return self._move_part(request, found[0] if found else None, silent)

        return self._move_updates.stream(request, part)

    async def steer(self, request: Request) -> Response:
        """Carry out the operation of a form on a move."""
        fields = await self._renderer.form(request)
        name = fields.get("act", "")
        if name not in STEERINGS:
            raise unknown_operation(name, "moves")
        found, _ = await self._find(_id(request))
        if not found:
            raise PageRefused(404, "There is no such move", "No cell that answered knows the move.")
        try:
            state = await steer(self._context.queries.bus, found[0], name)
        except OperationRefused as refused:
            return await self.move(request, str(refused), 409)
        finally:
            self._lists.forget()
            self._moves.forget()
        log.info("%s: %s of move %s: %s", user_of(request), name, found[0].move, state)
        return RedirectResponse(f"/moves/{found[0].move}", status_code=303)

    async def _find(self, id_: str) -> Found:
        return await self._query(FindMoves(cell="any", moves=(id_,)))

    def _move_part(self, request: Request, found: MoveStands | None, silent: list[str]) -> str:
        return self._renderer.part(
            "move_part.html",
            **self._renderer.of_visitor(request),
            one=move_shown(found) if found else None,
            decision=decision_shown(found.decision, self._context.operations.scores) if found else None,
            silent=silent,
            now=self._context.clock.now(),
        )


def _id(request: Request) -> str:
    id_ = uuid_in(request.path_params["move"])
    if not id_:
        raise PageRefused(404, "There is no such move", "That is not the uuid of a move.")
    return id_


PART = PagePart(make)
