"""Bare-metal nodes as read from Ironic: all nodes periodically, and a node immediately after a message about
it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from bus.clock import Clock
from bus.errors import Unavailable
from control_room.background import Beside
from control_room.core.metal import MetalSeen, NodeOnBoard
from control_room.operations import MetalMeans
from control_room.page_refresh import MetalNews, Pace
from control_room.periodic_queries import TIMES
from control_room.shared_queries import SPACED

MOST = 40  # nodes that are read by themselves at a time
_ALONE = 3.0  # seconds that an answer is kept without messages
_AGAIN = 1.0  # seconds, until placement is listened to again where the bus was away


class MetalLooks:
    """One for all pages that are open."""

    def __init__(
        self, means: MetalMeans, clock: Clock, news: MetalNews, beside: Beside, seconds: float
    ) -> None:
        self._means = means
        self._beside = beside
        self._clock = clock
        self._seconds = seconds
        self._reading = asyncio.Lock()  # of all nodes
        self._turn = asyncio.Lock()  # of some
        self._next = float("-inf")  # when some may be read again
        self._seen: MetalSeen | None = None
        self._read = self._good_until = float("-inf")
        self._known: set[str] = set()
        self._since: dict[str, NodeOnBoard | None] = {}  # read by themselves while all were being read
        self._background: asyncio.Task[None] | None = None
        self._open = 0
        self._following: asyncio.Task[None] | None = None
        self.news = news
        self.pace = Pace()

    async def at(self) -> MetalSeen:
        """For a page that is loaded."""
        async with self._reading:
            now = self._clock.monotonic()
            alone = not self._open and now >= self._read + _ALONE
            if self._seen is None or self.news.all or alone or now >= self._good_until:
                return self._show(await self._all())
            return self._seen

    async def latest(self) -> MetalSeen:
        """Return the nodes for an open page, after nodes with a message were read again."""
        if self._seen is None:
            return await self.at()
        due = self._clock.monotonic() >= self._good_until or self.news.all
        if due and (self._background is None or self._background.done()):
            self._background = self._beside.begin(self.at())
            self._background.add_done_callback(lambda _: self.news.stir())
        async with self._turn:  # what another page has begun to read is waited for
            if self.news.nodes:
                await self._some()
        return self._seen

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Receive placement's changes of nodes within the block, while a page is open."""
        self._open += 1
        if self._following is None:
            self._following = self._beside.begin(self._follow())
        try:
            yield
        finally:
            self._open -= 1
            if not self._open and self._following is not None:
                self._following.cancel()
                self._following = None

    def _show(self, seen: MetalSeen) -> MetalSeen:
        self._seen, self._known = seen, {node.id for node in seen.nodes}
        return seen

    async def _all(self) -> MetalSeen:
        self._since.clear()
        self.news.nodes.clear()
        self.news.all = False
        began = self._clock.monotonic()
        seen = await self._means.read(None)
        now = self._read = self._clock.monotonic()
        self._good_until = now + max(self._seconds, TIMES * (now - began))
        return _with(seen, self._since)

    async def _some(self) -> None:
        if (pause := self._next - self._clock.monotonic()) > 0:
            await asyncio.sleep(pause)
        some = list(self.news.nodes)[:MOST]
        for one in some:
            del self.news.nodes[one]
        with self.pace.asking():
            read = await self._means.read(some)
        self._next = self._clock.monotonic() + max(SPACED, self.pace.pause)
        if read.problem:  # the problem is reported when all nodes are read
            self._good_until = float("-inf")
            return
        found = {node.id: node for node in read.nodes}
        changed = {one: found.get(one) for one in some}
        self._since.update(changed)
        if self._seen is not None:
            self._show(_with(self._seen, changed))
        if self.news.nodes:
            self.news.stir()

    async def _follow(self) -> None:
        while True:
            with suppress(Unavailable):
                ear = await self._means.changes()
                try:
                    while True:
                        self._heard(await ear.get())
                finally:
                    await ear.stop()
            await asyncio.sleep(_AGAIN)

    def _heard(self, changes: Iterable[tuple[str, bool]]) -> None:
        """Record changes as (root, whether more than its usage changed). An unknown root may be a new
        node.
        """
        nodes = [root for root, reshaped in changes if reshaped or root in self._known]
        if nodes:
            self.news.heard(nodes)


def _with(seen: MetalSeen, nodes: dict[str, NodeOnBoard | None]) -> MetalSeen:
    if not nodes:
        return seen
    kept = [nodes.get(node.id, node) for node in seen.nodes]
    known = {node.id for node in seen.nodes}
    new = [board for id_, board in nodes.items() if id_ not in known]
    return replace(seen, nodes=tuple(board for board in (*kept, *new) if board is not None))
