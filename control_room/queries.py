"""Sends the control room's queries with a time limit, and reads the state of the cloud with them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bus.audit_trail import Outcome
from bus.cells import CellsFound, FindCells
from bus.clock import Clock
from bus.decisions import Record, RecordedHost
from bus.delivery.recording import Caller
from bus.delivery.runner import Listener
from bus.host_health import FindHostHealth, HostHealth, HostHealthFound, every_health
from bus.problems import KnownProblem
from bus.protocol import Transport
from bus.queries import FindInstances, FindWaiting, InstancesFound, WaitingFound
from bus.replication import FindChanges, FindTrees, PlacementChanged
from bus.vocabulary import MAX_ORDINAL
from control_room.bus_load import QueueLoad
from control_room.core.hosts import Fleet
from control_room.core.metal import MetalNodes
from control_room.kit.host_reading import _every_page, zones_by_aggregate
from control_room.kit.queries import NO_ANSWER, Queries, query
from control_room.kit.replies import Reply
from control_room.kit.shared_data import BackgroundTasks, SharedData

STATUS_SECONDS = 4.0  # age up to which the read state of the cloud is used


COUNT_TIMES = 25.0  # placement's counts are used for this multiple of the time that counting took


@dataclass(frozen=True)
class CloudStatus:
    """The answers of all workers for the first page."""

    cells: Reply[CellsFound] = field(default_factory=lambda: Reply("placement"))
    counts: CellsFound | None = None  # numbers of hosts and instances
    waiting: Reply[WaitingFound] = field(default_factory=lambda: Reply("the scheduler"))
    building: dict[str, Reply[InstancesFound]] = field(default_factory=dict)  # by cell
    health: Reply[HostHealthFound] = field(default_factory=lambda: Reply("a scheduler"))

    @property
    def replies(self) -> list[Reply[Any]]:
        return [self.cells, self.waiting, *self.building.values()]


class StatusReader:
    """Reads the status of the cloud, shared by all pages."""

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
        """Return the names of all cells, registered or configured."""
        return self.cell_names(await self.status())

    def cell_names(self, status: CloudStatus) -> list[str]:
        """Return the names of all cells in a status: registered, with hosts, or configured."""
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


LONGEST_UNREAD = 300.0  # seconds after which all hosts are read again, not only changes


_MOST_CHANGES = 5000  # number of changes from which all hosts are read again


_BATCH = 500  # roots in one query


class FleetReader:
    """Reads all hosts once, and then follows placement's changes."""

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
        fleet.set_health(await self._health())
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

    async def _health(self) -> dict[str, HostHealth]:
        found = dict[str, HostHealth]()
        with suppress(*NO_ANSWER):
            async for health in every_health(self._questions.health):
                found[health.root] = health
        return found

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
    """Reads and changes of the control room at the broker."""

    # returns the queues of the given cells' workers, and of the given agents (cell, agent)
    queues: Callable[[Collection[str], Collection[tuple[str, str]]], Awaitable[Sequence[QueueLoad]]]
    elsewhere: Sequence[str]  # cells with queues and dead letters on a separate broker
    transport: Transport  # reports queue depths and dead letters
    replay: Callable[[Collection[str]], Awaitable[tuple[int, Sequence[str]]]]  # number, reasons of failures
    drop: Callable[[Collection[str]], Awaitable[int]]


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Reads and changes of the control room that composition provides."""

    # disable, enable, force-down or undo-force-down; root; cause. Returns the host's new state
    mark_host: Callable[[str, str, str], Awaitable[str]]
    # Ironic's nodes with placement's records: all (None), or the named nodes
    metal: Callable[[Sequence[str] | None], Awaitable[MetalNodes]]
    placement_changes: Callable[[], Awaitable[Listener[PlacementChanged]]]  # subscribes to later changes
    scores: Callable[[Record, str], Mapping[str, float]]
    replay: Callable[[str, Record], RecordedHost | None]
    bus: BusOperations
    # the list of problems that all surfaces show, the most severe first
    problems: Callable[[], Awaitable[Sequence[KnownProblem]]]
    # writes to the audit trail: caller, act, target, outcome, reason
    note: Callable[[Caller, str, str, Outcome, str], Awaitable[None]]
