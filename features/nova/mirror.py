"""Keeps berth's cells, hosts and aggregates equal to Nova's, and publishes heartbeats for Nova's hosts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from bus.aggregates import (
    Aggregate,
    AggregateEditAnswered,
    AggregateEdited,
    AggregateEditRequested,
    AggregatesFound,
    FindAggregates,
    every_aggregate,
    refusal_reason,
)
from bus.cells import CellEditAnswered, CellEditRequested, CellsFound, FindCells
from bus.clock import Clock
from bus.errors import AnswerRefused, NoAnswer, Unavailable
from bus.messages import HostReported
from bus.protocol import Ask
from bus.resources import (
    FindProviders,
    OwnerEditAnswered,
    OwnerEditRequested,
    OwnerGiven,
    Provider,
    ProvidersFound,
)
from bus.vocabulary import portions
from features.nova.core.cloud import DISCOVER, NovaCloud
from features.nova.core.differences import AGENT, aggregate_edits, cell_edits, owner_edits
from features.nova.databases import NovaDatabases

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0  # between two reads of Nova's databases
COMPARE_SECONDS = 30.0  # between two comparisons with placement without a change in Nova
HEARTBEAT_SECONDS = 10.0
HOSTS_A_MESSAGE = 500
PROVIDERS_ASKED = 500
AGGREGATES_ASKED = 1000


@dataclass(frozen=True, kw_only=True)
class MirrorQueries:
    """The queries to placement that read and edit berth's copies of Nova's cells, hosts and aggregates."""

    cells: Ask[FindCells, CellsFound]
    edit_cell: Ask[CellEditRequested, CellEditAnswered]
    providers: Ask[FindProviders, ProvidersFound]
    edit_owner: Ask[OwnerEditRequested, OwnerEditAnswered]
    aggregates: Ask[FindAggregates, AggregatesFound]
    edit_aggregate: Ask[AggregateEditRequested, AggregateEditAnswered]


class Mirror:
    """Reads Nova's databases periodically, and copies cells, hosts and aggregates to berth."""

    def __init__(
        self,
        databases: NovaDatabases,
        queries: MirrorQueries,
        publish: Callable[..., Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._databases = databases
        self._queries = queries
        self._publish = publish
        self._clock = clock
        self.cloud = NovaCloud()
        self._compared = -COMPARE_SECONDS
        self._refreshing = asyncio.Lock()
        self._run = clock.uuid()
        self._sequence = 0
        self._complaint = ""

    async def run(self) -> None:
        """Copy Nova's cells, hosts and aggregates to berth every second; publish heartbeats for all hosts."""
        beat = -HEARTBEAT_SECONDS
        while True:
            try:
                await self.refresh()
                if self._clock.monotonic() - beat >= HEARTBEAT_SECONDS:
                    beat = self._clock.monotonic()
                    await self._report(list(self.cloud.nodes))
                self._complaint = ""
            except (Unavailable, NoAnswer, AnswerRefused) as problem:
                if str(problem) != self._complaint:
                    log.warning("berth is not up to date with nova: %s; trying again", problem)
                self._complaint = str(problem)
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read Nova's databases, and copy cells, hosts and aggregates to berth if they have changed or were
        not compared for some time. Publish the states of hosts that differ from the previous read.
        """
        async with self._refreshing:
            before, now = self.cloud, await self._databases.read()
            self.cloud = replace(now, other_cells=before.other_cells)
            is_due = self._clock.monotonic() - self._compared >= COMPARE_SECONDS
            if is_due or _placement_differs(before, now):
                await self._compare(now)
                self._compared = self._clock.monotonic()
            changed = [root for root, host in now.nodes.items() if before.nodes.get(root) != host]
            if new := now.unmapped.keys() - before.unmapped.keys():
                log.warning("%s: %s", ", ".join(sorted(now.unmapped[root].host for root in new)), DISCOVER)
            if before.hosts:
                await self._report(changed)

    async def _compare(self, cloud: NovaCloud) -> None:
        found = await self._queries.cells(FindCells())
        others = {cell.name for cell in found.cells}.union(found.hosts) - cloud.berth_names
        self.cloud = replace(cloud, other_cells=tuple(sorted(others)))
        for edit in cell_edits(cloud, found.cells):
            await self._queries.edit_cell(CellEditRequested(edit=edit))
        providers = await self._providers(list(cloud.nodes))
        for order in owner_edits(cloud, providers):
            answer = await self._queries.edit_owner(order)
            if not isinstance(answer.result, OwnerGiven):
                log.info("host %s is not assigned to cell %s yet: %s", order.host, order.cell, answer.result)
        at_berth = {aggregate.id: aggregate for aggregate in await self._aggregates()}
        for change in aggregate_edits(cloud, at_berth, providers):
            result = (await self._queries.edit_aggregate(AggregateEditRequested(edit=change))).result
            if not isinstance(result, AggregateEdited):
                log.warning("nova's aggregate %s: %s", change.aggregate, refusal_reason(result))

    async def _providers(self, roots: Sequence[str]) -> dict[str, Provider]:
        found: dict[str, Provider] = {}
        for some in portions(roots, PROVIDERS_ASKED):
            question = FindProviders(ids=tuple(some), parts=("owner", "aggregates"))
            found |= {
                provider.id: provider for provider in (await self._queries.providers(question)).providers
            }
        return found

    async def _aggregates(self) -> list[Aggregate]:
        pages = every_aggregate(self._queries.aggregates, FindAggregates(limit=AGGREGATES_ASKED))
        return [aggregate async for page in pages for aggregate in page.aggregates]

    async def _report(self, roots: Sequence[str]) -> None:
        by_cell: dict[str, list[str]] = {}
        nodes = self.cloud.nodes
        for root in roots:
            by_cell.setdefault(self.cloud.cells[nodes[root].cell].berth_name, []).append(root)
        messages = []
        for cell, some in by_cell.items():
            for part in portions(some, HOSTS_A_MESSAGE):
                self._sequence += 1
                messages.append(
                    HostReported(
                        cell=cell,
                        agent=AGENT,
                        sequence=self._sequence,
                        run=self._run,
                        period=HEARTBEAT_SECONDS,
                        partial=True,
                        hosts=tuple(nodes[root].state for root in part),
                    )
                )
        if messages:
            await self._publish(*messages)


def _placement_differs(before: NovaCloud, now: NovaCloud) -> bool:
    """Return whether data of Nova that placement stores (cells, aggregates, name and cell of each host)
    changed between two reads of Nova's databases.
    """

    def stored(cloud: NovaCloud) -> object:
        hosts = {root: (host.host, host.cell) for root, host in cloud.nodes.items()}
        return cloud.cells, hosts, cloud.aggregates

    return stored(before) != stored(now)
