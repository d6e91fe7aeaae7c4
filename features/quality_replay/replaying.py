"""Replays the requests of a past period with a policy: the real scheduler decides, on hosts in memory.

Instances that existed at the begin keep their hosts. Each later request gets a host by the policy, and keeps
it until its recorded end. Moves are not repeated.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import Any

from msgspec import structs

from berth.kit import InstantCloud, InstantPlacement, Settings, SteppedTime
from bus.claims import Claimed, ClaimRequested
from bus.host_health import DISABLED
from bus.protocol import Ask
from bus.replication import ProviderChange
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.topics import Query
from bus.vocabulary import Allocations, Id
from features.quality_replay.period import (
    Event,
    HostChange,
    HostsInUse,
    PeriodOutcome,
    RecordedArrival,
    RecordedEnd,
    RecordedPeriod,
    label_of,
    usual_lives,
)
from placement_worker.extension import Tree
from scheduler_worker.extension import ChoicePolicy, PlacementQueries


class ReplayedPlacement(InstantPlacement):
    """Placement as it would be in a replay: hosts that change, allocations by consumer, and the
    objects of repeated conditions."""

    def __init__(self, period: RecordedPeriod) -> None:
        super().__init__(period.cloud.index())
        self._trees: dict[str, Tree] = {tree.root: tree for tree in period.cloud.trees()}
        self._deleted: set[str] = set()  # roots of deleted hosts that still have instances
        self.held: dict[Id, Allocations] = {}
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by provider
        self.in_use = HostsInUse(self.index, period.begin)
        for consumer, state in period.cloud.consumers.items():
            self._hold(consumer, state.allocations)
            self.in_use.put(consumer, state.allocations, period.begin)
        self._objects = [each.replayed(period.earlier, self._hosts_of) for each in period.conditions]

    def _hold(self, consumer: Id, allocations: Allocations) -> None:
        self.held[consumer] = allocations
        for provider, amounts in allocations.items():
            self._used[provider].update(amounts)

    def put(self, consumer: Id, allocations: Allocations) -> None:
        """Give a consumer these allocations, in place of those that it has."""
        before = self.held.pop(consumer, {})
        for provider, amounts in before.items():
            self._used[provider].subtract(amounts)
        if allocations:
            self._hold(consumer, allocations)
        changes = []
        for provider in {*before, *allocations}:
            if (row := self.index.rows.get(provider)) is not None:
                used = {name: self._used[provider][name] for name in row.capacity}
                changes.append(ProviderChange(provider, row.root, row.generation + 1, used))
        self.index.accept(self.index.seen + 1, changes)

    def _grant(self, order: ClaimRequested) -> list[Claimed]:
        for claim in order.claims:
            self.put(claim.consumer, claim.choices[0].allocations)
            for objects in self._objects:
                objects.granted(claim)
        return [Claimed(choice=0, generation=1, number=self.index.seen) for _ in order.claims]

    def follow(self, change: HostChange) -> list[str]:
        """Apply a change of hosts, and return their roots. A deleted host keeps the instances that it has in
        the replay, but gets no further ones.
        """
        self._deleted -= change.trees.keys()
        trees = {root: self._with_our_use(root, tree) for root, tree in change.trees.items()}
        self._trees |= trees
        self.index.accept(self.index.seen + 1, (), trees, change.aggregates, change.cells)
        return list(trees)

    def _with_our_use(self, root: str, tree: Tree) -> Tree:
        known = self._trees.get(root)
        if not tree.providers and known is not None and self.in_use.consumers[root]:
            first, *others = known.providers
            self._deleted.add(root)
            closed = replace(first, traits=tuple(sorted({*first.traits, DISABLED})))
            tree = replace(known, providers=(closed, *others))
        providers = [
            replace(each, used={name: self._used[each.uuid][name] for name in each.inventories})
            for each in tree.providers
        ]
        return replace(tree, providers=tuple(providers))

    def drop_deleted(self) -> None:
        """Remove the deleted hosts that have no instances any more."""
        if empty := [root for root in self._deleted if not self.in_use.consumers[root]]:
            self.follow(HostChange(0.0, {root: Tree(root) for root in empty}))

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        found = [
            Consumer(
                id=id_, generation=1, project="", user="", type="INSTANCE", allocations=self.held[id_]
            )
            for id_ in question.consumers
            if id_ in self.held
        ]  # fmt: skip
        return AllocationsFound(consumers=tuple(found), generations={})

    async def providers(self, question: FindProviders) -> ProvidersFound:
        rows = [row for id_ in question.ids if (row := self.index.rows.get(id_)) is not None]
        found = [
            Provider(
                id=row.uuid, name=row.host, parent=row.parent, root=row.root, generation=row.generation,
                traits=row.traits, cell=row.cell, agent=row.agent, zone=row.zone, host=row.host,
            )
            for row in rows
        ]  # fmt: skip
        return ProvidersFound(providers=tuple(found))

    def _hosts_of(self, consumer: Id) -> Sequence[str]:
        rows = self.index.rows
        return sorted({rows[id_].root for id_ in self.held.get(consumer, ()) if id_ in rows})

    def queries(self) -> PlacementQueries:
        answers = {query.name: answer for objects in self._objects for query, answer in objects.answers}

        def ask(query: Query[Any, Any]) -> Ask[Any, Any]:
            return answers.get(query.name, self.unused)

        return replace(super().queries(), allocations=self.allocations, ask=ask)


class QualityReplay:
    """The replay of one period with one policy."""

    def __init__(self, period: RecordedPeriod, policy: ChoicePolicy, settings: Settings) -> None:
        self._period = period
        self._placement = ReplayedPlacement(period)
        self._time = SteppedTime(period.begin)
        self._cloud = InstantCloud(self._placement, policy, settings, time=self._time)
        self._lives = usual_lives(period)
        self._requested = self._refused = self._gained = self._lost = 0
        # estimated ends of instances that got a host only in the replay, a heap
        self._ends: list[tuple[float, Id]] = []
        self._unreported: set[str] = set()

    async def run(self, on_event: Callable[[], None] = lambda: None) -> PeriodOutcome:
        """Replay all events; call `on_event` after each."""
        await self._cloud.open()
        self._unreported.update(self._placement.in_use.consumers)
        self._cloud.scheduler.begin(list(self._period.earlier.values()))
        for event in self._period.events:
            self._end_gained(event.at)
            await self._apply(event)
            on_event()
        self._end_gained(self._period.end)
        outcome = self._placement.in_use.outcome(
            self._period.end, self._requested, self._refused, self._gained, self._lost
        )
        fits = {label_of(request.flavor): self._cloud.fitting(request) for request in self._period.usual}
        return replace(outcome, fits=fits)

    async def _apply(self, event: Event) -> None:
        if isinstance(event, HostChange):
            self._unreported.update(self._placement.follow(event))
        elif isinstance(event, RecordedEnd):
            self._end(event.consumer, event.at)
        else:
            placed = await self._place(event)
            self._requested += len(event.consumers)
            self._refused += len(event.consumers) - len(placed)
            if not event.is_refused:
                self._lost += len(event.consumers) - len(placed)
                return
            self._gained += len(placed)
            if (ends := event.at + self._lives(event.request.flavor)) < inf:
                for consumer in placed:
                    heappush(self._ends, (ends, consumer))

    def _end_gained(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            ends, consumer = heappop(self._ends)
            self._end(consumer, ends)

    def _end(self, consumer: Id, at: float) -> None:
        if consumer in self._placement.held:
            self._put(consumer, {}, at)
            self._placement.drop_deleted()

    def _put(self, consumer: Id, allocations: Allocations, at: float) -> None:
        self._placement.put(consumer, allocations)
        self._unreported |= self._placement.in_use.put(consumer, allocations, at)

    async def _place(self, event: RecordedArrival) -> list[Id]:
        """Choose hosts for an arrival; return the consumers that got one. A resized instance that fits
        nowhere remains as it is.
        """
        held = self._placement.held
        before = {consumer: held[consumer] for consumer in event.consumers if consumer in held}
        for consumer in before:
            self._put(consumer, {}, event.at)
        if self._unreported:
            on = self._placement.in_use.consumers
            await self._cloud.report({root: on[root] for root in self._unreported})
            self._unreported.clear()
        self._time.advance(event.at)
        request = structs.replace(event.request, request=self._cloud.clock.uuid(), instances=event.consumers)
        placed = [each.build for each in await self._cloud.place(request)]
        for consumer in placed:
            self._put(consumer, held[consumer], event.at)
        for consumer in before.keys() - set(placed):
            self._put(consumer, before[consumer], event.at)
        return placed
