"""Sends the control room's queries with a time limit, and reads the state of the cloud with them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from bus import topics
from bus.aggregates import ZONE, AggregatesFound, FindAggregates, every_aggregate
from bus.audit_trail import Outcome
from bus.cells import CellsFound, FindCells
from bus.clock import Clock, monotonic
from bus.decisions import Record, RecordedHost
from bus.delivery.recording import Caller
from bus.delivery.runner import Bus, Listener
from bus.errors import UNANSWERED, NoAnswer, Undecodable, Unroutable
from bus.host_health import FindHostHealth, HostHealthFound, every_health
from bus.protocol import Ask, Transport
from bus.queries import FindInstances, FindWaiting, InstancesFound, WaitingFound
from bus.replication import FindChanges, FindTrees, KnownTree, PlacementChanged, TreesFound
from bus.vocabulary import MAX_ORDINAL
from control_room.bus_load import QueueLoad
from control_room.core.hosts import Fleet, KnownHost, host_of_tree
from control_room.core.metal import MetalNodes
from control_room.core.now import Reply
from control_room.shared_data import BackgroundTasks, SharedData

R = TypeVar("R")

SECONDS = 3.0  # time limit of usual queries
LONG = 20.0  # time limit of queries that take computation
NO_ANSWER = (*UNANSWERED, Undecodable)  # what a query may raise


class Queries:
    """The control room's queries to workers, each with a time limit.

    A failed query raises one of the errors in NO_ANSWER.
    """

    def __init__(self, bus: Bus) -> None:
        self.cells = bus.asker(topics.CELLS, SECONDS)
        self.providers = bus.asker(topics.PROVIDERS, LONG)
        self.trees = bus.asker(topics.TREES, LONG)
        self.changes = bus.asker(topics.CHANGES, LONG)
        self.aggregates = bus.asker(topics.AGGREGATES, LONG)
        self.waiting = bus.asker(topics.WAITING, SECONDS)
        self.decision = bus.asker(topics.DECISION, SECONDS)
        self.health = bus.asker(topics.HOST_HEALTH, SECONDS)
        self.builds = bus.asker(topics.FIND_BUILDS, SECONDS)
        self.instances = bus.asker(topics.FIND_INSTANCES, SECONDS)
        self.acts = bus.asker(topics.FIND_ACTS, SECONDS)
        self.bus = bus  # for operations of features
        self.asker = partial(bus.asker, timeout=LONG)  # for the queries of features


async def query(source: str, ask: Callable[[Any], Awaitable[R]], question: Any) -> Reply[R]:
    began = monotonic()
    answer, problem = None, ""
    try:
        answer = await ask(question)
    except NoAnswer:
        problem = "no answer in time"
    except Unroutable:
        problem = "no consumer; it is not running"
    except NO_ANSWER as error:
        problem = str(error)
    return Reply(source, answer, problem, monotonic() - began)


STATUS_SECONDS = 4.0  # age up to which the read state of the cloud is used
COUNT_TIMES = 25.0  # placement's counts are used for this multiple of the time that counting took


@dataclass(frozen=True)
class CloudStatus:
    cells: Reply[CellsFound] = field(default_factory=lambda: Reply("placement"))
    counts: CellsFound | None = None  # numbers of hosts and instances
    waiting: Reply[WaitingFound] = field(default_factory=lambda: Reply("the scheduler"))
    building: dict[str, Reply[InstancesFound]] = field(default_factory=dict)  # by cell
    health: Reply[HostHealthFound] = field(default_factory=lambda: Reply("a scheduler"))

    @property
    def replies(self) -> list[Reply[Any]]:
        return [self.cells, self.waiting, *self.building.values()]


class StatusReader:
    def __init__(self, queries: Queries, tasks: BackgroundTasks, configured: Sequence[str]) -> None:
        """Construct a reader of the cloud's status; it always queries the `configured` cells, and
        further cells that it discovers.
        """
        self._queries = queries
        self._configured = tuple(configured)
        self._counts: CellsFound | None = None
        self._counting: SharedData[FindCells, Reply[CellsFound]] = SharedData(
            tasks, lambda find: query("placement", queries.cells, find), times=COUNT_TIMES
        )
        self._status = SharedData(tasks, self._read, seconds=STATUS_SECONDS)

    async def status(self) -> CloudStatus:
        return await self._status.get(None)

    async def cells(self) -> list[str]:
        return self.cell_names(await self.status())

    def cell_names(self, status: CloudStatus) -> list[str]:
        found, counts = status.cells.answer, status.counts
        known = [cell.name for cell in found.cells if not cell.gone] if found else []
        return list(dict.fromkeys((*known, *(counts.hosts if counts else ()), *self._configured)))

    async def _read(self, _: None) -> CloudStatus:
        ask = self._queries
        cells, waiting, health = await asyncio.gather(
            query("placement", ask.cells, FindCells(counted=False)),
            query("the scheduler", ask.waiting, FindWaiting(limit=1)),
            query("a scheduler", ask.health, FindHostHealth(limit=1, counted=True)),
        )
        counted = await self._counting.get(FindCells())
        self._counts = counted.answer or self._counts
        status = CloudStatus(cells=cells, waiting=waiting, counts=self._counts, health=health)

        async def building(cell: str) -> Reply[InstancesFound]:
            find = FindInstances(cell=cell, statuses=("building", "swapping"), limit=1, count=True)
            return await query(f"the conductor of cell {cell}", ask.instances, find)

        names = self.cell_names(status)
        replies = await asyncio.gather(*map(building, names))
        return replace(status, building=dict(zip(names, replies, strict=True)))


_PAGE = 2000


async def known_hosts(
    trees: Ask[FindTrees, TreesFound],
    aggregates: Ask[FindAggregates, AggregatesFound],
    cells: Ask[FindCells, CellsFound],
) -> list[KnownHost]:
    """Return all hosts with zones and free amounts, from placement's answers, to compute how many instances
    would fit. Hosts of disabled cells are `closed`.
    """
    disabled = {cell.name for cell in (await cells(FindCells(counted=False))).cells if not cell.enabled}
    zones = await zones_by_aggregate(aggregates)
    # by id: a host that moves between pages in the meantime is listed once
    found: dict[str, KnownHost] = {}
    async for page in _every_page(trees):
        for tree in page.trees:
            rest = await _rest(tree, trees) if tree.left_out else ()
            if (host := host_of_tree(page, tree, zones, rest)) is not None:
                found[host.root] = replace(host, closed=True) if host.cell in disabled else host
    return list(found.values())


async def _every_page(trees: Ask[FindTrees, TreesFound]) -> AsyncIterator[TreesFound]:
    after: int | None = 0
    while after is not None:
        page = await trees(FindTrees(after=after, limit=_PAGE))
        yield page
        after = page.more


async def zones_by_aggregate(aggregates: Ask[FindAggregates, AggregatesFound]) -> dict[str, str]:
    return {
        each.id: each.metadata[ZONE]
        async for page in every_aggregate(aggregates, FindAggregates())
        for each in page.aggregates
        if ZONE in each.metadata
    }


async def _rest(tree: KnownTree, trees: Ask[FindTrees, TreesFound]) -> Sequence[TreesFound]:
    root, had, more = tree.root or tree.providers[0].id, len(tree.providers), list[TreesFound]()
    while True:
        page = await trees(FindTrees(roots=(root,), skip=had))
        if not page.trees or not page.trees[0].providers:
            return more
        more.append(page)
        had += len(page.trees[0].providers)
        if not page.trees[0].left_out:
            return more


LONGEST_UNREAD = 300.0  # seconds after which all hosts are read again, not only changes
_MOST_CHANGES = 5000  # number of changes from which all hosts are read again
_BATCH = 500  # roots in one query


class FleetReader:
    def __init__(self, questions: Queries, clock: Clock) -> None:
        self._questions = questions
        self._clock = clock
        self._fleet: Fleet | None = None
        self._read = float("-inf")
        self._layouts = int(clock.now())

    async def read(self, _: None = None) -> Fleet:
        """Return all hosts for the heat map; after the first call, read only changes unless they are many."""
        if self._clock.monotonic() - self._read > LONGEST_UNREAD:
            self._fleet = None
        fleet = self._fleet = await (self._followed(self._fleet) if self._fleet else self._all())
        fleet.set_down(await self._down())
        self._read = self._clock.monotonic()
        return fleet

    async def _all(self) -> Fleet:
        """Read all hosts from placement, in pages. A host that changes during this read is read again by the
        next read of changes.
        """
        last = await self._questions.changes(FindChanges(after=MAX_ORDINAL, limit=1))
        self._layouts += 1_000_000  # greater than every layout number that a browser has received
        zones = await zones_by_aggregate(self._questions.aggregates)
        fleet = Fleet(number=last.last, layout=self._layouts, zones=zones)
        async for page in _every_page(self._questions.trees):
            fleet.take(page)
        return fleet

    async def _down(self) -> frozenset[str]:
        down = set[str]()
        with suppress(*NO_ANSWER):
            async for health in every_health(self._questions.health):
                if health.recorded:
                    down.add(health.root)
        return frozenset(down)

    async def _followed(self, fleet: Fleet) -> Fleet:
        number, roots = fleet.number, set[str]()
        while True:
            found = await self._questions.changes(FindChanges(after=number, limit=1000))
            missed = found.oldest > number + 1 and found.last > number
            unnamed = any(
                change.aggregates or not (change.changes or change.wakes) for change in found.changes
            )
            if missed or unnamed or found.last - fleet.number > _MOST_CHANGES:
                return await self._all()
            roots.update(change.root for changes in found.changes for change in changes.changes)
            if not found.changes:
                break
            number = found.changes[-1].number
        left = sorted(roots)
        while left:
            page = await self._questions.trees(FindTrees(roots=tuple(left[:_BATCH])))
            if not page.trees:
                break
            fleet.take(page, number)
            left = left[len(page.trees) :]
        fleet.number = number
        return fleet


@dataclass(frozen=True, kw_only=True)
class BusOperations:
    # returns the queues of the given cells' workers, and of the given agents (cell, agent)
    queues: Callable[[Collection[str], Collection[tuple[str, str]]], Awaitable[Sequence[QueueLoad]]]
    elsewhere: Sequence[str]  # cells with queues and dead letters on a separate broker
    transport: Transport  # reports queue depths and dead letters
    replay: Callable[[Collection[str]], Awaitable[tuple[int, Sequence[str]]]]  # number, reasons of failures
    drop: Callable[[Collection[str]], Awaitable[int]]


@dataclass(frozen=True, kw_only=True)
class Operations:
    # disable, enable, force-down or undo-force-down; root; cause. Returns the host's new state
    mark_host: Callable[[str, str, str], Awaitable[str]]
    # Ironic's nodes with placement's records: all (None), or the named nodes
    metal: Callable[[Sequence[str] | None], Awaitable[MetalNodes]]
    placement_changes: Callable[[], Awaitable[Listener[PlacementChanged]]]  # subscribes to later changes
    scores: Callable[[Record, str], Mapping[str, float]]
    replay: Callable[[str, Record], RecordedHost | None]
    bus: BusOperations
    # writes to the audit trail: caller, act, target, outcome, reason
    note: Callable[[Caller, str, str, Outcome, str], Awaitable[None]]
