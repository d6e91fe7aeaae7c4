"""A copy (replica) of placement's index in another process, which is loaded and updated over the bus only."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from bus import topics
from bus.aggregates import Aggregate, AggregatesFound, FindAggregates, every_aggregate
from bus.cells import CellsFound, FindCells, RegisteredCell
from bus.clock import Clock
from bus.errors import Unavailable
from bus.protocol import Ask
from bus.replication import ChangesFound, FindChanges, FindTrees, PlacementChanged, TreesFound
from bus.vocabulary import Message
from bus.worker import Worker, every, on_many
from placement_worker.core.trees import Tree, unpacked
from placement_worker.memory import HistoryChanged, Memory, Take, check_history

log = logging.getLogger(__name__)

Q = TypeVar("Q", bound=Message)
T = TypeVar("T", bound=Message)

TREES_A_QUESTION = 2000
BREATH_SECONDS = 0.02
POLL_SECONDS = 1.0  # without a message, until a query for changes that no message reported
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 2.0


@dataclass
class BusReader:
    """Reads placement's state over the bus. While placement is unreachable, queries are retried, and the
    outage is logged once.
    """

    ask_trees: Ask[FindTrees, TreesFound]
    ask_changes: Ask[FindChanges, ChangesFound]
    ask_aggregates: Ask[FindAggregates, AggregatesFound]
    ask_cells: Ask[FindCells, CellsFound]
    _away: bool = False

    async def changes(self, after: int, most: int) -> ChangesFound:
        return await self._answer(self.ask_changes, FindChanges(after=after, limit=most))

    async def trees(self, roots: Collection[str], history: str) -> Mapping[str, Tree]:
        found: dict[str, Tree] = {}
        missing = list(roots)
        while missing:
            answer = await self._answer(self.ask_trees, FindTrees(roots=tuple(missing[:TREES_A_QUESTION])))
            check_history(answer.history, history)
            for part, left_out in unpacked(answer):
                found[part.root] = await self._whole(part, left_out)
            missing = [root for root in missing if root not in found]
        return {root: found[root] for root in roots}

    async def facts(self) -> Iterable[Aggregate | RegisteredCell]:
        ask = partial(self._answer, self.ask_aggregates)
        described = [
            aggregate
            async for page in every_aggregate(ask, FindAggregates())
            for aggregate in page.aggregates
            if aggregate.name or aggregate.metadata
        ]
        return [*described, *(await self._answer(self.ask_cells, FindCells(counted=False))).cells]

    async def each(self, take: Take, history: str) -> None:
        """Call the function `take` with each page of provider trees, while the next one is being fetched."""
        try:
            await self._each(take, history)
        except BaseExceptionGroup as group:  # `except*` would raise a group, not HistoryChanged
            changed = group.subgroup(HistoryChanged)
            if changed is None:
                raise
            raise HistoryChanged(str(changed.exceptions[0])) from None

    async def _each(self, take: Take, history: str) -> None:
        async with asyncio.TaskGroup() as group:
            more: int | None = 0
            coming = group.create_task(self._answer(self.ask_trees, FindTrees(limit=TREES_A_QUESTION)))
            while more is not None:
                answer = await coming
                check_history(answer.history, history)
                more = answer.more
                if more is not None:
                    question = FindTrees(after=more, limit=TREES_A_QUESTION)
                    coming = group.create_task(self._answer(self.ask_trees, question))
                await take([await self._whole(part, left_out) for part, left_out in unpacked(answer)])

    async def _whole(self, tree: Tree, left_out: int) -> Tree:
        """Return a tree from a message, completed with the providers that did not fit into the message."""
        while left_out:
            question = FindTrees(roots=(tree.root,), skip=len(tree.providers))
            ((part, left_out),) = unpacked(await self._answer(self.ask_trees, question))
            tree = replace(tree, providers=tree.providers + part.providers)
        return tree

    async def _answer(self, ask: Ask[Q, T], question: Q) -> T:
        wait = SHORTEST_WAIT
        while True:
            try:
                answer = await ask(question)
            except Unavailable as condition:
                if not self._away:
                    self._away = True
                    log.warning("placement does not answer; its replica is not updated: %s", condition)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            if self._away:
                self._away = False
                log.info("placement answers again")
            return answer


class Replica(Memory):
    """A copy of placement's index in another process, updated by `placement.changed` messages. A lost message
    is detected by the gap in the change numbers, or by a query after POLL_SECONDS without a message.
    """

    def __init__(self, reader: BusReader, clock: Clock) -> None:
        super().__init__(reader)
        self._clock = clock
        self._received_at = clock.monotonic()
        self._asked_at = -BREATH_SECONDS  # time of the last query for reshaped trees

    async def load(self) -> None:
        """Load the whole index from placement; retry until placement answers."""
        await self.reload()
        rows, seen = len(self.index.rows), self.index.seen
        log.info("placement's memory here: %d providers, as of change %d", rows, seen)

    async def handle_many(self, messages: Sequence[PlacementChanged]) -> Sequence[None]:
        self._received_at = now = self._clock.monotonic()
        bare = [message.changes for message in messages if message.trees is None]
        if any(change.reshaped for changes in bare for change in changes):
            # Wait, so that the trees of several reports are read by one query.
            await asyncio.sleep(self._asked_at + BREATH_SECONDS - now)
            self._asked_at = self._clock.monotonic()
        await super().handle_many(messages)
        if self.loads and not self.index.whole:
            await self.fresh()  # a message was lost
        return [None] * len(messages)

    async def check(self) -> None:
        """Query placement for missed changes if no `placement.changed` message arrived for POLL_SECONDS."""
        if self.loads and self._clock.monotonic() - self._received_at >= POLL_SECONDS:
            await self.fresh()


def replica(reader: BusReader, clock: Clock) -> tuple[Replica, Worker]:
    """Return a replica, and the worker that updates it, which must be served in the same process."""
    replicated = Replica(reader, clock)
    worker = Worker(
        "replica",
        consumes=[
            on_many(topics.PLACEMENT_CHANGED, replicated.handle_many, private=True, batch=256, concurrency=1)
        ],
        asks=[topics.TREES, topics.CHANGES, topics.AGGREGATES, topics.CELLS],
        timers=[every(POLL_SECONDS, replicated.check)],
        runs=[replicated.load],
    )
    return replicated, worker
