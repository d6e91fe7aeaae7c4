"""Compares all or the recently changed nodes of Ironic with their providers in placement."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bus.messages import InventoryReported
from bus.protocol import Ask
from bus.resources import FindProviders, Provider, ProvidersFound, is_node
from bus.vocabulary import portions
from ironic_sync.api import WITH_ALL
from ironic_sync.core.difference import NodeDifference, compare, name_of
from ironic_sync.core.known_state import KnownStateRules, Moment
from ironic_sync.core.node import IronicNode, Malformed, Place, from_rest, seconds
from ironic_sync.core.rule import Invalid, deletion_report, sequence_at
from ironic_sync.core.selection import NodeSelection
from ironic_sync.reader import NodeReads

log = logging.getLogger(__name__)

PAGE = 250  # decoding a larger page would delay events for too long
PROVIDERS_A_QUESTION = 200  # providers in one query, so that the answer fits into one message
READS_AT_ONCE = 8
NODES_IN_A_ROW = 50  # then other tasks may run
CHANGES_A_PAGE = 100
MOST_CHANGES = 1000  # from so many changes on, reading everything is cheaper
LATE_SECONDS = 2.0  # Ironic's times may be in whole seconds and become visible a little later
CHANGED = ("updated_at", "created_at")  # a node that was never updated has no `updated_at`

PARTS: Final = ("inventories", "traits", "aggregates", "owner")
Raw = Mapping[str, Any]  # a node as the API returns it
Horizon = Mapping[str, float]  # for each of `CHANGED`, the newest time seen


class ReadAll(Exception):
    """Error: Ironic cannot list recently changed nodes, or so many changed that reading all is cheaper."""


class SurveyedNode(NamedTuple):
    """A node as it was read from Ironic, with its provider in placement and their differences."""

    uuid: str
    node: IronicNode | None  # empty: deleted in Ironic
    began: Moment  # when the read began
    provider: Provider | None  # empty: not in placement
    differences: tuple[NodeDifference, ...]

    @property
    def gone(self) -> bool:
        """Return whether Ironic does not have the node."""
        return self.node is None

    @property
    def repairable(self) -> bool:
        """Return whether a report to placement removes a difference of the node."""
        return any(not difference.stays for difference in self.differences)

    def report(self, rules: KnownStateRules) -> InventoryReported | None:
        """Return a report of the node's state as read from Ironic; None if the node must not be reported."""
        known = self.provider.sequence if self.provider is not None else -1
        sequence = max(sequence_at(self.began.at), known + 1)
        if self.node is not None:
            place = rules.place(self.node)
            has = self.provider is not None and not self.provider.gone
            return None if place is None else rules.report(self.node, place, sequence, has=has)
        if self.provider is None:
            return None
        return deletion_report(self.uuid, Place.of(self.provider), sequence)


@dataclass(eq=False, repr=False)
class Survey:
    """Compares Ironic's nodes with their providers in placement; changes nothing in either."""

    api: NodeReads
    find: Ask[FindProviders, ProvidersFound]
    selection: NodeSelection
    rules: KnownStateRules
    moment: Callable[[], Moment]
    page: int = PAGE

    def __post_init__(self) -> None:
        self._filters: dict[str, Any] = dict(self.selection.filters())
        self._fields = [name for name in self.selection.fields() if name not in WITH_ALL]

    async def placed(self) -> dict[str, Provider]:
        """Return all providers of the selected nodes in placement, by id."""
        found: dict[str, Provider] = {}
        last = ""
        while True:
            answer = await self._ask(
                agents=self.selection.all_agents(), after=last, limit=PROVIDERS_A_QUESTION
            )
            found.update((provider.id, provider) for provider in answer if is_node(provider))
            if len(answer) < PROVIDERS_A_QUESTION:
                return found
            last = answer[-1].id

    async def placed_now(self, uuids: Iterable[str]) -> dict[str, Provider]:
        """Return these providers as placement has them now."""
        found: dict[str, Provider] = {}
        for some in portions(uuids, PROVIDERS_A_QUESTION):
            found.update((provider.id, provider) for provider in await self._ask(ids=some))
        return found

    async def placed_of(self, uuids: Sequence[str]) -> dict[str, Provider]:
        """Return the providers with the given ids that are Ironic nodes of the selection's agents, by id."""
        agents = self.selection.all_agents()
        found = await self.placed_now(uuids)
        ours = (provider for provider in found.values() if provider.agent in agents)
        return {provider.id: provider for provider in ours if is_node(provider)}

    async def _ask(self, **conditions: Any) -> tuple[Provider, ...]:
        return (await self.find(FindProviders(parts=PARTS, **conditions))).providers

    async def everything(
        self, placed: Mapping[str, Provider], read: dict[str, str | None]
    ) -> AsyncIterator[list[SurveyedNode]]:
        """Yield, for each page of Ironic's nodes, the nodes that differ from their providers (`placed`, by
        id). Add all listed nodes to `read`: uuid → instance.
        """
        pages = self.api.nodes(fields=self._fields, limit=self.page, **self._filters)
        while True:
            began = self.moment()
            page = await anext(pages, None)
            if page is None:
                return
            read.update((str(raw.get("uuid")), raw.get("instance_uuid")) for raw in page)
            yield await self.judged([(raw, began) for raw in page], placed)

    def unread(self, placed: Mapping[str, Provider], read: Collection[str]) -> list[str]:
        """Return placement's nodes that Ironic did not list, except nodes already reported as deleted."""
        return [uuid for uuid, provider in placed.items() if uuid not in read and not provider.gone]

    async def instances(self, uuids: Iterable[str]) -> dict[str, str | None]:
        """Read the nodes from Ironic; return each node's instance id, or None if the node has no instance or
        does not exist.
        """
        found: dict[str, str | None] = {}
        for some in portions(uuids, READS_AT_ONCE):
            reads = await asyncio.gather(*(self.api.node(uuid, self._fields) for uuid in some))
            for uuid, raw in zip(some, reads, strict=True):
                found[uuid] = None if raw is None else raw.get("instance_uuid")
        return found

    async def each(
        self, uuids: Iterable[str], placed: Mapping[str, Provider], most_gone: int | None = None
    ) -> list[SurveyedNode]:
        """Read the given nodes from Ironic; return nodes that differ from placement or are deleted.

        Stop when more than `most_gone` nodes are deleted.
        """
        found: list[SurveyedNode] = []
        for some in portions(uuids, READS_AT_ONCE):
            began = self.moment()
            reads = await asyncio.gather(*(self.api.node(uuid, self._fields) for uuid in some))
            for uuid, raw in zip(some, reads, strict=True):
                if raw is None and uuid in placed:
                    missing = (NodeDifference(uuid, "gone", name=name_of(placed[uuid])),)
                    found.append(SurveyedNode(uuid, None, began, placed[uuid], missing))
            found += await self.judged([(raw, began) for raw in reads if raw is not None], placed)
            if most_gone is not None and sum(node.gone for node in found) > most_gone:
                break
        return found

    async def horizon(self) -> Horizon | None:
        """Return the newest update and creation time of all nodes; None if Ironic cannot sort by time."""
        found = dict.fromkeys(CHANGED, 0.0)
        try:
            for key in CHANGED:
                async for _, timed in self._newest_first(key):
                    found[key] = max((at for _, at in timed), default=0.0)
                    break
        except ReadAll:
            return None
        return found

    async def read_changed(self, horizon: Horizon) -> tuple[list[tuple[Raw, Moment]], Horizon]:
        """Return the nodes created or updated since `horizon`, each with the time at which its read began,
        and the next horizon (newest times read).

        Raise ReadAll if too many nodes changed, or Ironic cannot sort by time.
        """
        found: dict[str, tuple[Raw, Moment]] = {}
        reached = dict(horizon)
        for key in CHANGED:
            since = horizon[key] - LATE_SECONDS
            async for began, timed in self._newest_first(key):
                changed = [(raw, at) for raw, at in timed if at >= since]
                found.update((str(raw["uuid"]), (raw, began)) for raw, _ in changed)
                reached[key] = max([reached[key], *(at for _, at in changed)])
                if len(found) > MOST_CHANGES:
                    raise ReadAll(f"more than {MOST_CHANGES} nodes changed")
                if len(changed) < len(timed):
                    break
        return list(found.values()), reached

    async def _newest_first(self, key: str) -> AsyncIterator[tuple[Moment, list[tuple[Raw, float]]]]:
        """Yield pages of nodes that have the time field `key`, latest time first, with the times; raise
        ReadAll if Ironic cannot sort by this field.
        """
        pages = self._by_time(key, "desc", CHANGES_A_PAGE)
        while True:
            began = self.moment()
            page = await anext(pages, None)
            if page is None:
                return
            timed = [(raw, seconds(str(raw[key]))) for raw in page if raw.get(key) is not None]
            others_first = any(raw.get(key) is None for raw in page[: len(timed)])
            # A full page without the time field: check whether any node has it.
            if not timed and len(page) == CHANGES_A_PAGE:
                oldest: Sequence[Raw] = await anext(self._by_time(key, "asc", 1), [])
                others_first = any(raw.get(key) is not None for raw in oldest)
            # PostgreSQL sorts nodes without the field first, and then lists some nodes on no page.
            if others_first:
                raise ReadAll(f"Ironic's database cannot sort by {key}")
            yield began, timed
            if len(timed) < len(page):
                return

    def _by_time(self, key: str, direction: str, limit: int) -> AsyncIterator[Sequence[Raw]]:
        fields = [*self._fields, *CHANGED]
        return self.api.nodes(fields=fields, limit=limit, sort_key=key, sort_dir=direction, **self._filters)

    async def judged(
        self, reads: Sequence[tuple[Raw, Moment]], placed: Mapping[str, Provider]
    ) -> list[SurveyedNode]:
        """Return the nodes read from Ironic that differ from their providers (`placed`, by id)."""
        found = []
        for position, (raw, began) in enumerate(reads):
            if position % NODES_IN_A_ROW == 0:
                await asyncio.sleep(0)  # let waiting events be handled
            try:
                node = from_rest(raw)
            except Malformed as problem:
                log.warning("a node of Ironic's cannot be read: %s", problem)
                continue
            provider = placed.get(node.uuid)
            if differences := self._differences(node, provider):
                found.append(SurveyedNode(node.uuid, node, began, provider, differences))
        return found

    def still_different(
        self, found: Iterable[SurveyedNode], now: Mapping[str, Provider]
    ) -> list[SurveyedNode]:
        """Return the nodes that still differ from their current providers (`now`, by id) in a way that a
        report can repair.
        """
        again = []
        for node in found:
            provider = now.get(node.uuid)
            if node.node is None:
                differences = node.differences if provider is not None and not provider.gone else ()
            else:
                differences = self._differences(node.node, provider)
            again.append(node._replace(provider=provider, differences=differences))
        return [node for node in again if node.repairable]

    def _differences(self, node: IronicNode, provider: Provider | None) -> tuple[NodeDifference, ...]:
        name = node.name or ""
        place = self.rules.place(node)
        if place is None:
            why = self.selection.reason_not_selected(node)
            known = provider is not None and not provider.gone
            return (NodeDifference(node.uuid, "not ours", ironic=why, name=name),) if known else ()
        has = provider is not None and not provider.gone
        try:
            report = self.rules.report(node, place, has=has)
        except Invalid as problem:
            return (NodeDifference(node.uuid, "bad", ironic=str(problem), name=name),)
        differences = () if report is None else compare(report, provider, name)
        if node.resource_class is None:
            return (NodeDifference(node.uuid, "no class", name=name), *differences)
        return differences
