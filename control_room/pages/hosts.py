"""Hosts: the heat map of all hosts, and one host's tree, guests, heartbeats and operations."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import OperationRefused
from bus.host_health import DRAIN, FindHostHealth, HostHealth, HostHealthFound, standing, unanswered
from bus.moves import FindMoves
from bus.queries import FindInstances
from bus.resources import FindProviders, Provider
from control_room.core.heat import changed_columns, columns, parse_flavor
from control_room.core.hosts import rows
from control_room.core.windows import latest
from control_room.host_reads import FleetReader
from control_room.pages.frame import PageContext, PageGroup, PageRefused, Renderer, user_of, uuid_in
from control_room.pages.page_updates import PageUpdates
from control_room.queries import NO_ANSWER, query
from control_room.shared_data import SOONEST, SharedData

log = logging.getLogger(__name__)

SECONDS = 30.0  # between two events without changes
FLEET_SECONDS = 2.0  # that the hosts are used without changes
USUAL = "VCPU:2,MEMORY_MB:4096,DISK_GB:20"
MOST_GUESTS = 200
MOST_MOVES = 50
MARKS = ("disable", "enable", "force-down", "undo-force-down")
DRAINS = ("drain", "stop-drain", "stop-drain-and-open")
LONGEST_NAME = 200
MOST_CONCURRENT = 1000  # moves of a drain


class HeatPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._changes = context.events.changes
        read = FleetReader(context.queries, context.clock).read
        self._fleet = SharedData(
            context.tasks, read, changes=self._changes, seconds=FLEET_SECONDS, spacing=SOONEST
        )
        self._updates = PageUpdates(SECONDS, self._changes)

    async def page(self, request: Request) -> Response:
        flavor = request.query_params.get("flavor", USUAL)
        return self._renderer.page(request, "hosts.html", flavor=flavor)

    async def events(self, request: Request) -> Response:
        """Send an event whenever hosts have changed: the browser then reads the changed hosts."""

        async def count() -> str:
            return str(self._changes.count)

        return self._updates.stream(request, count)

    async def data(self, request: Request) -> Response:
        """Return all hosts for the heat map, or only the changes since the state that the browser names."""
        clock, parameters = self._context.clock, request.query_params
        began = clock.monotonic()
        try:
            flavor = parse_flavor(parameters.get("flavor", USUAL))
        except ValueError as problem:
            return _json({"problem": str(problem)}, 400)
        try:
            fleet = await self._fleet.get(None)
        except NO_ANSWER as problem:
            return _json({"problem": f"Placement does not answer: {problem}."}, 503)
        since = parameters.get("since", "")
        if parameters.get("layout") == str(fleet.layout) and since.isascii() and since.isdigit():
            changed = changed_columns(fleet, int(since[:18]), flavor)
            self._updates.interval.add(clock.monotonic() - began)  # with placement's time
            return _json(changed)
        return _json(columns(fleet, flavor))


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class HostPages(PageGroup):
    async def operate(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        root = await self._root(request.path_params["host"])
        name, cause = fields.get("act", ""), fields.get("cause", "").strip()
        if name not in (*MARKS, *DRAINS):
            raise PageRefused(400, "Not done", f"There is no operation {name[:40]!r} on hosts.")
        try:
            if name in DRAINS:
                state = await self._drain(name, root.id, fields)
            else:
                state = await self._context.operations.mark_host(name, root.id, cause)
        except OperationRefused as refused:
            return await self.page(request, str(refused), 409)
        log.info("%s: %s %s %s: %s", user_of(request), name, root.id, cause, state)
        return RedirectResponse(f"/hosts/{root.id}", status_code=303)

    async def _drain(self, name: str, root: str, fields: Mapping[str, str]) -> str:
        drains = self._context.operations.drains
        if name != "drain":
            return await drains.stop(root, name == "stop-drain-and-open")
        most = fields.get("most", "10")
        if not (most.isascii() and most.isdigit() and len(most) <= 9 and 1 <= int(most) <= MOST_CONCURRENT):
            raise OperationRefused(f"At a time: a number from 1 to {MOST_CONCURRENT}, not {most[:20]!r}.")
        return await drains.start(root, fields.get("how", "live") != "cold", int(most))

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        context = self._context
        root = await self._root(request.path_params["host"])
        question = FindProviders(in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner"))
        tree = await query("placement", context.queries.providers, question)
        if tree.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{tree.problem}.")
        now, name = context.clock.now(), root.host or root.name
        health = await query("a scheduler", context.queries.health, FindHostHealth(roots=(root.id,)))
        state = standing(root.traits, _health(root, health.answer), root.kept_traits, deleted=root.gone)
        guests = moving = None
        if root.cell:
            conductor = f"the conductor of cell {root.cell}"
            of_cell = FindInstances(cell=root.cell, host=root.id, limit=MOST_GUESTS, count=True)
            running = FindMoves(cell=root.cell, host=name, under_way=True, limit=MOST_MOVES)
            guests, moving = await asyncio.gather(
                query(conductor, context.queries.instances, of_cell),
                query(conductor, context.queries.moves, running),
            )
        agents = context.events.heartbeats.agents(now)
        ended = [end for end in latest(context.events.history.recent, False, 10_000) if end.host == name]
        return self._renderer.page(
            request,
            "host.html",
            status=status,
            root=root,
            name=name,
            state=state,
            tree=rows(tree.answer.providers),
            guests=guests,
            moving=moving,
            drain=context.operations.drains.progress(root.id),
            draining=DRAIN in root.traits,
            agent=next((one for one in agents if (one.cell, one.agent) == (root.cell, root.agent)), None),
            ended=ended[:20],
            now=now,
            problem=problem,
        )

    async def _root(self, name: str) -> Provider:
        id_ = uuid_in(name)
        if not id_ and (not name.isprintable() or len(name) > LONGEST_NAME):
            raise PageRefused(404, "There is no such host", "That is neither the name nor the id of a host.")
        find = FindProviders(ids=(id_,) if id_ else (), name="" if id_ else name, parts=("traits", "owner"))
        found = await query("placement", self._context.queries.providers, find)
        if found.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{found.problem}.")
        roots = [provider for provider in found.answer.providers if provider.parent is None]
        if not roots:
            raise PageRefused(404, "There is no such host", "Placement knows no host by this name or id.")
        return roots[0]


def _health(root: Provider, answer: HostHealthFound | None) -> HostHealth | None:
    return unanswered(root) if answer is None else next(iter(answer.hosts), None)
