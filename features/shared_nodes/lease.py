"""Renews a bare-metal agent's lease on nodes continuously, and checks it before every write to Ironic."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bus.clock import Clock
from bus.errors import AnswerRefused, Unavailable
from bus.protocol import Ask
from bus.vocabulary import portions
from bus.worker import WorkerRows
from features.shared_nodes.messages import (
    LEASE,
    REPORT_NODES,
    LeaseAnswered,
    LeaseAsked,
    NodesReported,
    NodesTaken,
)
from ironic_sync.extension import (
    IronicApi,
    IronicRefused,
    Malformed,
    NodeRight,
    NodeSelection,
    Standing,
    from_rest,
)

NEVER = float("-inf")


class LeasedNodes:
    """The bare-metal nodes that are leased to this agent by the cell conductor's answers, and until when."""

    def __init__(self) -> None:
        self.epoch = 0
        self.version = 0  # of the list of leased nodes
        self.until = NEVER
        self.tells = False
        self._nodes: dict[str, int] = {}  # node → epoch
        self._known_at = NEVER  # when the renewal was sent whose answer completed this list of nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def answered(self, asked_at: float, answer: LeaseAnswered) -> Collection[str]:
        """Store the conductor's answer to a lease renewal sent at the monotonic time `asked_at`; return the
        nodes lost or leased under a new epoch.
        """
        if answer.refused or answer.epoch < self.epoch:
            return ()
        lost: set[str] = set()
        if answer.epoch != self.epoch:
            lost = set(self._nodes)
            self._nodes = {}
        self.epoch, self.version, self.tells = answer.epoch, answer.version, answer.tells
        for lent in answer.nodes:
            if self._nodes.get(lent.root, 0) != lent.epoch:
                lost.add(lent.root)
            if lent.epoch:
                self._nodes[lent.root] = lent.epoch
            else:
                self._nodes.pop(lent.root, None)
        self.until = asked_at + answer.seconds
        if not answer.more:
            self._known_at = asked_at
        return lost

    def good(self, now: float) -> bool:
        """Return whether the agent's lease on nodes is still valid at the monotonic time `now`."""
        return now < self.until

    def standing(self, root: str, epoch: int, since: float, now: float) -> Standing:
        """Return "ours" if this agent may execute an order for a node now, "over" if it never may execute the
        order, and "not yet" if it may later.

        `epoch`: the order's epoch, 0 if its sender knew of no lease; `since`: the order's arrival time. A
        node is leased before its order is sent: the reply to a renewal sent after `since` includes the lease.
        """
        if not self.good(now):
            return "not yet"
        ours = self._nodes.get(root, 0)
        if ours and (epoch == 0 or ours == epoch):
            return "ours"
        if ours > epoch:
            return "over"
        return "over" if self._known_at > since else "not yet"


log = logging.getLogger(__name__)

ASKS = 4  # renewals in the duration of a lease
UNREPORTED_SECONDS = 0.5  # longest pause between two renewals
SHORTEST_PAUSE = 0.1
REPORT_SECONDS = 60.0  # seconds between two lists of all nodes
REPORT_PAGE = 5000  # nodes in one message

ListNodes = Callable[[], Awaitable[Sequence[str]]]  # lists the nodes of our pool in Ironic


class NotLeased(Unavailable):
    """Error: the agent has no lease on a bare-metal node, so it must not change the node in Ironic."""


@dataclass(eq=False, repr=False)
class NodeLease(NodeRight):
    """Renews the lease of an agent in a pool, and permits it to change only nodes that are leased to it."""

    agent: str
    pool: str
    cell: str
    ask: Ask[LeaseAsked, LeaseAnswered]
    clock: Clock
    report_nodes: Ask[NodesReported, NodesTaken] | None = None
    list_nodes: ListNodes | None = None

    def __post_init__(self) -> None:
        # called when the agent got or lost the lease of nodes
        self.changed: Callable[[], None] = lambda: None
        self._run = self.clock.uuid()
        self._lent = LeasedNodes()
        self._writing: Counter[str] = Counter()  # writes in progress by node
        self._stopping: set[str] = set()  # nodes lost during a write
        self._seen = 0  # version of the last list of leased nodes whose receipt this agent has confirmed
        self._refused = False
        self._address: dict[str, Any] = {"cell": self.cell, "agent": self.agent, "pool": self.pool}

    def rows(self, changed: Callable[[], None]) -> WorkerRows:
        self.changed = changed
        return WorkerRows(asks=[LEASE, REPORT_NODES], runs=[self.run], stops=[self.leave])

    def standing(self, root: str, epoch: int, since: float) -> Standing:
        return self._lent.standing(root, epoch, since, self.clock.monotonic())

    def good(self) -> bool:
        return self._lent.good(self.clock.monotonic())

    @asynccontextmanager
    async def writing(self, root: str, epoch: int) -> AsyncIterator[None]:
        """Run a block that changes a node in Ironic, for an order with this epoch. Raise NotLeased if the
        node is not leased, or the lease ends during the block.
        """
        now = self.clock.monotonic()
        if self._lent.standing(root, epoch, now, now) != "ours":
            raise NotLeased(f"agent {self.agent} may not act on node {root} now")
        self._writing[root] += 1
        try:
            async with asyncio.timeout(self._lent.until - now):
                yield
        except TimeoutError:
            raise NotLeased(f"the lease of agent {self.agent} ended while it wrote to node {root}") from None
        finally:
            self._writing[root] -= 1
            if not self._writing[root]:
                del self._writing[root]
                self._stopping.discard(root)

    async def run(self) -> None:
        """Renew the agent's lease on bare-metal nodes until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_repeatedly())
            if self.report_nodes is not None and self.list_nodes is not None:
                group.create_task(self._report_periodically(self.report_nodes, self.list_nodes))

    async def leave(self) -> None:
        """Release the agent's lease on nodes, so that other agents can act on the nodes immediately."""
        question = LeaseAsked(**self._address, run=self._run, leaves=True)
        self._lent = LeasedNodes()
        with suppress(Unavailable, AnswerRefused):
            await self.ask(question)

    async def _renew_repeatedly(self) -> None:
        while True:
            began = self.clock.monotonic()
            more = await self._renew()
            if not more:
                left = self._lent.until - began if self.good() else UNREPORTED_SECONDS * ASKS
                pause = min(max(left / ASKS, SHORTEST_PAUSE), UNREPORTED_SECONDS)
                await asyncio.sleep(max(began + pause - self.clock.monotonic(), 0.0))

    async def _renew(self) -> bool:
        if not self._stopping:
            self._seen = self._lent.version
        asked_at, was_good = self.clock.monotonic(), self.good()
        question = LeaseAsked(**self._address, run=self._run, epoch=self._lent.epoch, seen=self._seen)
        try:
            answer = await self.ask(question)
        except (Unavailable, AnswerRefused) as problem:
            if was_good and not self.good():
                log.warning("agent %s has no lease any more: %s", self.agent, problem)
            return False
        if answer.refused:
            if not self._refused:
                log.warning("agent %s has no lease: %s", self.agent, answer.refused)
            self._refused = True
            return False
        self._refused = False
        lost = self._lent.answered(asked_at, answer)
        self._stopping |= {root for root in lost if self._writing[root]}
        if lost or not was_good:
            log.info("agent %s may act on %d nodes", self.agent, len(self._lent))
            self.changed()
        return answer.more

    async def _report_periodically(
        self, report_nodes: Ask[NodesReported, NodesTaken], list_nodes: ListNodes
    ) -> None:
        while True:
            if self._lent.tells and self.good():
                try:
                    await self._report_all(report_nodes, sorted(await list_nodes()))
                except (Unavailable, AnswerRefused) as problem:
                    log.warning("agent %s cannot list its nodes: %s", self.agent, problem)
                    await asyncio.sleep(UNREPORTED_SECONDS)
                    continue
                await asyncio.sleep(REPORT_SECONDS)
            await asyncio.sleep(UNREPORTED_SECONDS)

    async def _report_all(self, report_nodes: Ask[NodesReported, NodesTaken], roots: Sequence[str]) -> None:
        after = ""
        for page in [*portions(roots, REPORT_PAGE)] or [()]:
            upto = page[-1] if page and page[-1] != roots[-1] else ""
            await report_nodes(NodesReported(**self._address, nodes=page, after=after, upto=upto))
            after = upto


def nodes_of(api: IronicApi, selection: NodeSelection, cell: str, pool: str) -> ListNodes:
    """Return a function that lists the Ironic nodes of the given cell and pool of agents."""

    filters: dict[str, Any] = {**selection.filters()}

    async def listed() -> Sequence[str]:
        found = []
        try:
            async for page in api.nodes(fields=selection.fields(), **filters):
                for fields in page:
                    try:
                        node = from_rest(fields)
                    except Malformed as problem:  # the first order for the node will report the problem
                        log.warning("a node that cannot be read is left out: %s", problem)
                        continue
                    place = selection.place(node)
                    if place is not None and (place.cell, place.agent) == (cell, pool):
                        found.append(node.uuid)
        except IronicRefused as problem:
            raise NotLeased(f"Ironic does not list its nodes: {problem}") from None
        return found

    return listed
