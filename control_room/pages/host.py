"""One host: its tree, its guests, its heartbeats, and the acts of an operator on it."""

import asyncio
import logging
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.host_health import FindHostHealth, HostHealth, HostHealthFound, standing, unanswered
from bus.host_marks import DRAIN
from bus.moves import FindMoves
from bus.queries import FindInstances
from bus.resources import FindProviders, Provider
from control_room.core.provider_rows import rows
from control_room.core.windows import latest
from control_room.operations import ActRefused
from control_room.pages.frame import Frame, OpenRoom, PageRefused, who
from control_room.pages.ids import uuid_in
from control_room.queries import heard

log = logging.getLogger(__name__)

MOST_GUESTS = 200
MOST_MOVES = 50
MARKS = ("disable", "enable", "force-down", "undo-force-down")
DRAINS = ("drain", "stop-drain", "stop-drain-and-open")
LONGEST_NAME = 200
MOST_AT_ONCE = 1000  # moves of a drain


class HostPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame

    async def page(self, request: Request) -> Response:
        return await self._page(request)

    async def act(self, request: Request) -> Response:
        fields = await self._frame.form(request)
        root = await self._root(request.path_params["host"])
        what, cause = fields.get("act", ""), fields.get("cause", "").strip()
        if what not in (*MARKS, *DRAINS):
            raise PageRefused(400, "Not done", f"A host cannot be told to {what[:40]!r}.")
        try:
            if what in DRAINS:
                stands = await self._drain(what, root.id, fields)
            else:
                stands = await self._room.means.mark_host(what, root.id, cause)
        except ActRefused as refused:
            return await self._page(request, problem=str(refused), status=409)
        log.info("%s: %s %s %s: %s", who(request), what, root.id, cause, stands)
        return RedirectResponse(f"/hosts/{root.id}", status_code=303)

    async def _drain(self, what: str, root: str, fields: Mapping[str, str]) -> str:
        drains = self._room.means.drains
        if what != "drain":
            return await drains.stop(root, what == "stop-drain-and-open")
        most = fields.get("most", "10")
        if not (most.isascii() and most.isdigit() and len(most) <= 9 and 1 <= int(most) <= MOST_AT_ONCE):
            raise ActRefused(f"At a time: a number from 1 to {MOST_AT_ONCE}, not {most[:20]!r}.")
        return await drains.begin(root, fields.get("how", "live") != "cold", int(most))

    async def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        room = self._room
        root = await self._root(request.path_params["host"])
        question = FindProviders(in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner"))
        tree = await heard("placement", room.questions.providers, question)
        if tree.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{tree.problem}.")
        now, name = room.clock.now(), root.host or root.name
        health = await heard("a scheduler", room.questions.health, FindHostHealth(roots=(root.id,)))
        state = standing(root.traits, _health(root, health.answer), root.kept_traits, deleted=root.gone)
        guests = moving = None
        if root.cell:
            whom = f"the conductor of cell {root.cell}"
            of_cell = FindInstances(cell=root.cell, host=root.id, limit=MOST_GUESTS, count=True)
            going = FindMoves(cell=root.cell, host=name, under_way=True, limit=MOST_MOVES)
            guests, moving = await asyncio.gather(
                heard(whom, room.questions.instances, of_cell), heard(whom, room.questions.moves, going)
            )
        drain = room.means.drains.far(root.id)
        agents = room.hearing.roll.agents(now)
        ended = [end for end in latest(room.hearing.lately.recent, False, 10_000) if end.host == name]
        return self._frame.page(
            request,
            "host.html",
            status=status,
            root=root,
            name=name,
            state=state,
            tree=rows(tree.answer.providers),
            guests=guests,
            moving=moving,
            drain=drain,
            drain_here=drain is not None and drain.going,
            draining=DRAIN in root.traits,
            agent=next(
                (agent for agent in agents if (agent.cell, agent.agent) == (root.cell, root.agent)), None
            ),
            ended=ended[:20],
            now=now,
            problem=problem,
        )

    async def _root(self, named: str) -> Provider:
        id_ = uuid_in(named)
        if not id_ and (not named.isprintable() or len(named) > LONGEST_NAME):
            raise PageRefused(404, "There is no such host", "That is neither the name nor the id of a host.")
        query = FindProviders(ids=(id_,) if id_ else (), name="" if id_ else named, parts=("traits", "owner"))
        found = await heard("placement", self._room.questions.providers, query)
        if found.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{found.problem}.")
        roots = [provider for provider in found.answer.providers if provider.parent is None]
        if not roots:
            raise PageRefused(404, "There is no such host", "Placement knows none by this name or id.")
        return roots[0]


def _health(root: Provider, answer: HostHealthFound | None) -> HostHealth | None:
    """Return what the scheduler reports of a host: nothing if it is up."""
    return unanswered(root) if answer is None else next(iter(answer.hosts), None)
