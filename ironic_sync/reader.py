"""Reads single nodes from Ironic to confirm their states, with retries while Ironic is unreachable.

If very many nodes must be read, because very many have become available, they are read in pages.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol

from bus.clock import Clock, monotonic
from bus.errors import Unavailable
from ironic_sync.api import IronicRefused
from ironic_sync.core.known_state import Moment
from ironic_sync.core.node import FIELDS, IronicNode, Malformed, from_rest
from ironic_sync.notifications import READ_SECONDS, READS, UNRESOLVED

log = logging.getLogger(__name__)

AT_ONCE = 16
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds between retries while Ironic is unreachable
REFUSED_PAUSE = 30.0  # seconds until a node is read again after Ironic refused to return it

MANY = 64  # from this number of requested nodes on, pages of nodes are read
# tasks that read single nodes while pages are read, so that no node waits for all pages
SINGLE_READERS = 2
PAGE = 250
FRUITLESS_PAGES = 3  # after this number of pages without a requested node, no further page is read
FRUITLESS_PAUSE = 1.0  # seconds after reading pages without a requested node
NODES_IN_A_ROW = 50  # then other tasks may run


class NodeReads(Protocol):
    """The two read methods of a client of Ironic's API: for one node, and for a list of nodes."""

    def node(self, uuid: str, fields: Sequence[str] | None = None) -> Awaitable[Mapping[str, Any] | None]:
        """Read one node; None if Ironic does not have it."""

    def nodes(
        self, *, fields: Sequence[str], limit: int, **filters: Any
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Read all nodes that match the filters, page by page."""


class NodeRead(NamedTuple):
    """The result of a read of a node that began at `began`; `node` is None if Ironic has no such node."""

    uuid: str
    node: IronicNode | None
    began: Moment


Take = Callable[[Sequence[NodeRead]], Awaitable[None]]


@dataclass(eq=False, repr=False)
class Reader:
    """Reads requested nodes from Ironic; several requests for a node before the read cause one read."""

    api: NodeReads
    clock: Clock
    _: KW_ONLY
    at_once: int = AT_ONCE
    fields: Sequence[str] = FIELDS
    filters: Mapping[str, Any] = field(default_factory=dict)  # of listings
    closed: Callable[[str], bool] = lambda uuid: False  # whether a node is reported as unavailable

    def __post_init__(self) -> None:
        # Recently updated nodes come first: requested nodes have just changed.
        self._listing = {
            **self.filters, "provision_state": "available", "sort_key": "updated_at", "sort_dir": "desc"
        }  # fmt: skip
        self._requests = 0
        self._waiting: dict[str, int] = {}  # in the order of requests, each with the number of its request
        self._reading: set[str] = set()
        self._again: set[str] = set()  # requested while being read
        self._refused: dict[str, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._many = asyncio.Event()
        self._no_pages = asyncio.Event()  # set while no pages are being read
        self._no_pages.set()
        self._pause = 0.0  # the last pause; 0 while Ironic answers
        self._resume_at = 0.0

    @property
    def unresolved(self) -> int:
        """Return how many nodes wait for a read, are being read, or could not be read."""
        return len(self._waiting) + len(self._reading) + len(self._refused)

    def request(self, uuid: str) -> None:
        """Request a read of a node. The read begins after this call, even if the node is being read now."""
        if uuid in self._reading:
            self._again.add(uuid)
            return
        if uuid in self._refused:
            self._refused.pop(uuid).cancel()
        self._requests += 1
        self._waiting[uuid] = self._requests
        self._wake.set()
        if len(self._waiting) >= MANY:
            self._many.set()
        UNRESOLVED.set(self.unresolved)

    async def run(self, moment: Callable[[], Moment], take: Take) -> None:
        """Read requested nodes from Ironic until the task is cancelled; call `take` with the results.
        `moment` returns the mark of the time at which a read begins.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_pages(moment, take))
                for index in range(self.at_once):
                    group.create_task(self._read_singly(moment, take, in_parallel=index < SINGLE_READERS))
        finally:
            for handle in self._refused.values():
                handle.cancel()

    async def _read_singly(self, moment: Callable[[], Moment], take: Take, *, in_parallel: bool) -> None:
        while True:
            uuid = await self._next(in_parallel)
            self._reading.add(uuid)
            retry = True
            try:
                retry = await self._read(uuid, moment(), take)
            finally:
                self._reading.discard(uuid)
                if retry or uuid in self._again:
                    self._again.discard(uuid)
                    self.request(uuid)
                UNRESOLVED.set(self.unresolved)

    async def _read(self, uuid: str, began: Moment, take: Take) -> bool:
        started = monotonic()
        try:
            answer = await self.api.node(uuid, self.fields)
            node = None if answer is None else from_rest(answer)
        except Unavailable as problem:
            READS.labels("unavailable").inc()
            self._pauses(problem)
            return True
        except IronicRefused as problem:
            READS.labels("refused").inc()
            log.error("cannot read node %s: %s", uuid, problem)
            self._refused[uuid] = asyncio.get_running_loop().call_later(REFUSED_PAUSE, self.request, uuid)
            return False
        except Malformed as problem:
            READS.labels("unreadable").inc()
            log.error("Ironic's data of node %s is invalid: %s", uuid, problem)
            return False
        READS.labels("gone" if node is None else "found").inc()
        READ_SECONDS.observe(monotonic() - started)
        self._pause = self._resume_at = 0.0
        await take([NodeRead(uuid, node, began)])
        return False

    async def _read_pages(self, moment: Callable[[], Moment], take: Take) -> None:
        while True:
            await self._many.wait()
            self._many.clear()
            await self._ironic_is_there()
            self._no_pages.clear()
            failed_roots = False
            try:
                failed_roots = not await self._read_round(moment, take)
            except Unavailable as problem:
                self._pauses(problem)
            except IronicRefused as problem:
                log.warning("nodes are read one by one because listing failed: %s", problem)
                return
            finally:
                self._no_pages.set()
            if failed_roots:
                await asyncio.sleep(FRUITLESS_PAUSE)
            if len(self._waiting) >= MANY:
                self._many.set()

    async def _read_round(self, moment: Callable[[], Moment], take: Take) -> int:
        """Read pages of available nodes until all requested nodes are read, or three pages in a row contain
        no node for `take`.

        Return the number of nodes passed to `take`.
        """
        pages = self.api.nodes(fields=self.fields, limit=PAGE, **self._listing)

        async def following() -> tuple[int, Moment, Sequence[Mapping[str, Any]] | None]:
            requested, began = self._requests, moment()
            return requested, began, await anext(pages, None)

        taken = vain = 0
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(following())
                while self._waiting and vain < FRUITLESS_PAGES:
                    requested, began, page = await reading
                    if page is None:
                        break
                    # read the next page while the present page is handled
                    reading = group.create_task(following())
                    count = await self._take_page(page, requested, began, take)
                    taken, vain = taken + count, 0 if count else vain + 1
                reading.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return taken

    async def _take_page(
        self, page: Sequence[Mapping[str, Any]], requested: int, began: Moment, take: Take
    ) -> int:
        """Call `take` with the page's nodes that were requested or last reported as reserved.

        Return the number of nodes passed to `take`. `requested` is the number of the last request at the time
        when the read of the page began; a node requested later stays waiting for another read.
        """
        found: list[NodeRead] = []
        for position, raw in enumerate(page):
            if position % NODES_IN_A_ROW == 0:
                await asyncio.sleep(0)
            uuid = str(raw.get("uuid"))
            if uuid in self._waiting:
                if self._waiting[uuid] > requested:
                    continue
            elif uuid in self._reading or not self.closed(uuid):
                continue
            try:
                found.append(NodeRead(uuid, from_rest(raw), began))
            except Malformed:
                continue  # the single read will report the problem
            self._waiting.pop(uuid, None)
            READS.labels("found").inc()
        await take(found)
        UNRESOLVED.set(self.unresolved)
        return len(found)

    async def _next(self, in_parallel: bool) -> str:
        while True:
            await self._ironic_is_there()
            if not in_parallel:
                await self._no_pages.wait()
            if self._waiting:
                break
            self._wake.clear()
            await self._wake.wait()
        uuid = next(iter(self._waiting))
        del self._waiting[uuid]
        return uuid

    def _pauses(self, problem: Unavailable) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._resume_at:
            return  # another read has just set the pause
        if not self._pause:
            log.warning("nodes wait to be read: %s", problem)
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        self._resume_at = now + self._pause * (0.5 + self.clock.chance.random() / 2)

    async def _ironic_is_there(self) -> None:
        loop = asyncio.get_running_loop()
        while (wait := self._resume_at - loop.time()) > 0:
            await asyncio.sleep(wait)
