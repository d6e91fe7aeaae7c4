"""Web pages about hosts: the heat map, one host with its operations, and bare-metal nodes by state."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.errors import OperationRefused
from bus.host_health import FindHostHealth, standing, unanswered
from bus.queries import FindInstances, InstancesFound
from bus.replication import PlacementChanged
from bus.resources import FindProviders, Provider
from control_room.core.builds import latest
from control_room.core.host_table import STATES, TableQuery, table
from control_room.core.hosts import changed_columns, columns, parse_flavor, rows
from control_room.core.metal import BoardNode, MetalNodes, board, completed
from control_room.kit import words
from control_room.kit.frame import PageContext, PageGroup, PageRefused, Renderer, unknown_operation
from control_room.kit.page_requests import parameter, user_of, uuid_in
from control_room.kit.placement_watch import PlacementWatch
from control_room.kit.queries import NO_ANSWER, query
from control_room.kit.refresh import PageUpdates, soon
from control_room.kit.replies import Reply
from control_room.kit.shared_data import READ_TIMES, SOONEST, SPACING, BackgroundTasks, SharedData
from control_room.queries import FleetReader, Operations
from control_room.worker import NodeChanges

SECONDS = 10.0  # between two reads of all nodes; a node with a message about it is read immediately
MOST = 40  # nodes that are read separately at a time
_UNWATCHED_SECONDS = 3.0  # age up to which read nodes are used if no page is open


class MetalReader:
    """Reads bare-metal nodes for all pages: all periodically, and a single node after a message about it."""

    def __init__(self, operations: Operations, tasks: BackgroundTasks, changes: NodeChanges) -> None:
        self._operations = operations
        self._nodes = MetalNodes(at=0.0)
        self._ids: set[str] = set()
        self._changed: dict[str, BoardNode | None] = {}  # read since the last read of all nodes began
        self._all = SharedData(
            tasks, self._read_all, changes=changes.of_all, seconds=SECONDS, times=READ_TIMES
        )
        self._some = SharedData(
            tasks, self._read_some, changes=changes, seconds=float("inf"), spacing=SPACING
        )
        self.watch = PlacementWatch(operations.placement_changes, tasks, self._on_placement_change)
        self.changes = changes
        self.interval = self._some.interval

    async def nodes(self) -> MetalNodes:
        """Return the bare-metal nodes for a page that is being loaded; they may be some seconds old."""
        await self._all.get(None, float("inf") if self.watch.is_open else _UNWATCHED_SECONDS)
        return self._nodes

    async def latest(self) -> MetalNodes:
        """Return the bare-metal nodes for an open page; nodes about which messages came since the last
        read are read again first.
        """
        if not self._nodes.at:
            return await self.nodes()
        if (reading := self._all.refresh(None)) is not None:
            reading.add_done_callback(lambda _: self.changes.notify())
        await self._some.latest(None)
        return self._nodes

    async def _read_all(self, _: None) -> None:
        self._changed.clear()
        self.changes.nodes.clear()
        self._set(completed(await self._operations.metal(None), self._nodes), self._changed)

    async def _read_some(self, _: None) -> None:
        some = list(self.changes.nodes)[:MOST]
        if not some:
            return
        for id_ in some:
            del self.changes.nodes[id_]
        read = await self._operations.metal(some)
        if not read.is_complete:  # the problem is reported when all nodes are read
            self.changes.of_all.notify()
            return
        found = {node.id: node for node in read.nodes}
        changed = {id_: found.get(id_) for id_ in some}
        self._changed.update(changed)
        self._set(self._nodes, changed)
        if self.changes.nodes:
            self.changes.notify()

    def _set(self, nodes: MetalNodes, changed: dict[str, BoardNode | None]) -> None:
        found = {node.id: node for node in nodes.nodes} | changed
        known = tuple(node for node in found.values() if node is not None)
        self._nodes, self._ids = replace(nodes, nodes=known), {node.id for node in known}

    def _on_placement_change(self, change: PlacementChanged) -> None:
        # unless only its usage changed, an unknown provider may be a new node
        nodes = {c.root for c in change.changes if c.reshaped or c.gone or c.root in self._ids}
        if nodes:
            self.changes.add(nodes)


SHOWN = 12  # nodes of a column, unless it is the only column
SHOWN_ALONE = 500


class MetalPages(PageGroup):
    """Shows the bare-metal nodes as a board."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        changes = context.events.metal
        self._reader = MetalReader(context.operations, context.tasks, changes)
        self._updates = PageUpdates(SECONDS, changes, self._reader.interval)

    async def page(self, request: Request) -> Response:
        nodes = await soon(request, self._reader.nodes())
        filters = _filters(request)
        return self._renderer.page(
            request,
            "metal.html",
            part=self._part(request, nodes),
            live=words.address("/metal/events", filters),
            q=filters["q"],
            state=filters["state"],
        )

    async def events(self, request: Request) -> Response:
        async def part() -> str:
            return self._part(request, await self._reader.latest())

        return self._updates.stream(request, part, self._reader.watch.following())

    def _part(self, request: Request, nodes: MetalNodes | None) -> str:
        filters, now = _filters(request), self._context.clock.now()
        most = SHOWN_ALONE if filters["state"] else SHOWN
        with self._updates.interval.rendering():
            return self._renderer.part(
                "metal_part.html",
                read=nodes,
                columns=board(nodes, now, filters["q"], filters["state"], most) if nodes else [],
                stuck=nodes.stuck(now) if nodes else [],
                now=now,
                **filters,
            )


def _filters(request: Request) -> dict[str, str]:
    return {name: parameter(request, name) for name in ("q", "state")}


log = logging.getLogger(__name__)

HEAT_SECONDS = 30.0  # between two events without changes
FLEET_SECONDS = 2.0  # age up to which hosts are used without reading their changes
USUAL = "VCPU:2,MEMORY_MB:4096,DISK_GB:20"
MOST_GUESTS = 200
MARKS = ("disable", "enable", "force-down", "undo-force-down")
LONGEST_NAME = 200


class HeatPages(PageGroup):
    """Shows all hosts as a map coloured by free capacity, and as a table."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._changes = context.events.changes
        read = FleetReader(context.queries, context.clock).read
        self._fleet = SharedData(
            context.tasks, read, changes=self._changes, seconds=FLEET_SECONDS, spacing=SOONEST
        )
        self._updates = PageUpdates(HEAT_SECONDS, self._changes)

    async def page(self, request: Request) -> Response:
        return self._renderer.page(request, "hosts.html", flavor=request.query_params.get("flavor", USUAL))

    async def table(self, request: Request) -> Response:
        """Return a page of the table of hosts, sorted and filtered by the parameters of the address."""
        given = {name: parameter(request, name) for name in ("q", "cell", "state", "sort")}
        page = parameter(request, "page")
        asked = TableQuery(
            **{name: value for name, value in given.items() if value},
            page=int(page) if page.isascii() and page.isdigit() else 1,
        )
        try:
            fleet = await self._fleet.get(None)
        except NO_ANSWER as problem:
            raise PageRefused(503, "Placement does not answer", f"{problem}.") from None
        found = table(fleet, asked)
        find = FindHostHealth(roots=tuple(row.host.root for row in found.rows), described=True)
        health = await query("a scheduler", self._context.queries.health, find) if found.rows else None
        told = health.answer.capabilities if health is not None and health.answer else ()
        return self._renderer.page(
            request,
            "host_table.html",
            found=found,
            asked=asked,
            states=STATES,
            address=partial(words.address, "/host-table"),
            known={each.root: each for each in told},
            now=self._context.clock.now(),
        )

    async def events(self, request: Request) -> Response:
        """Return an event stream for an open heat map: an event when hosts have changed, after which the page
        requests `/hosts.json`.
        """

        async def count() -> str:
            return str(self._changes.count)

        return self._updates.stream(request, count)

    async def data(self, request: Request) -> Response:
        """Return, in JSON, all hosts for the heat map, or only hosts that changed since the last request."""
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
            self._updates.interval.add(clock.monotonic() - began)  # including the time of placement's answer
            return _json(changed)
        return _json(columns(fleet, flavor))


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class HostPages(PageGroup):
    """Shows one host; operators disable and enable it."""

    async def operate(self, request: Request) -> Response:
        fields = await self._renderer.form(request)
        root = await self._root(request.path_params["host"])
        name, cause = fields.get("act", ""), fields.get("cause", "").strip()
        further = self._renderer.host_operations
        if name not in (*MARKS, *further):
            raise unknown_operation(name, "hosts")
        try:
            if name in further:
                state = await further[name](root.id, fields)
            else:
                state = await self._context.operations.mark_host(name, root.id, cause)
        except OperationRefused as refused:
            return await self.page(request, str(refused), 409)
        log.info("%s: %s %s %s: %s", user_of(request), name, root.id, cause, state)
        return RedirectResponse(f"/hosts/{root.id}", status_code=303)

    async def page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        context = self._context
        root = await self._root(request.path_params["host"])
        question = FindProviders(in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner"))
        tree = await query("placement", context.queries.providers, question)
        if tree.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{tree.problem}.")
        now, name = context.clock.now(), root.host or root.name
        find = FindHostHealth(roots=(root.id,), described=True)
        health = await query("a scheduler", context.queries.health, find)
        known = unanswered(root) if health.answer is None else next(iter(health.answer.hosts), None)
        state = standing(root.traits, known, root.kept_traits, deleted=root.gone)
        guests, alarms, operations, sections = await asyncio.gather(
            self._guests(root),
            self._renderer.sections("host alarms", request, root),
            self._renderer.sections("host operations", request, root),
            self._renderer.sections("host", request, root),
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
            capabilities=next(iter(health.answer.capabilities), None) if health.answer else None,
            tree=rows(tree.answer.providers),
            guests=guests,
            alarms=alarms,
            operations=operations,
            sections=sections,
            agent=next((a for a in agents if (a.cell, a.agent) == (root.cell, root.agent)), None),
            ended=ended[:20],
            now=now,
            problem=problem,
        )

    async def _guests(self, root: Provider) -> Reply[InstancesFound] | None:
        """Query the instances of a host; return None if the host is in no cell."""
        if not root.cell:
            return None
        find = FindInstances(cell=root.cell, host=root.id, limit=MOST_GUESTS, count=True)
        return await query(f"the conductor of cell {root.cell}", self._context.queries.instances, find)

    async def _root(self, name: str) -> Provider:
        id_ = uuid_in(name)
        if not id_ and (not name.isprintable() or len(name) > LONGEST_NAME):
            raise PageRefused(404, "There is no such host", "That is neither the name nor the id of a host.")
        find = FindProviders(ids=(id_,) if id_ else (), host="" if id_ else name, parts=("traits", "owner"))
        found = await query("placement", self._context.queries.providers, find)
        if found.answer is None:
            raise PageRefused(503, "Placement does not answer", f"{found.problem}.")
        roots = [provider for provider in found.answer.providers if provider.parent is None]
        if not roots:
            raise PageRefused(404, "There is no such host", "Placement knows no host by this name or id.")
        if len(roots) > 1:
            ids = " and ".join(sorted(root.id for root in roots))
            raise PageRefused(409, "Several hosts have this name", f"Use the id of the host, one of {ids}.")
        return roots[0]
