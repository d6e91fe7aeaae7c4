"""Finds candidates for a scheduler in the index of the same process, less what the scheduler's tentative
choices take.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import ALIKE, Bools, Floats, FreeProvider, Ints, OnChange, OnWakes
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.domains import HOST
from bus.queries import Candidate, FindCandidates
from bus.reports import EXCLUDES_SIBLINGS
from bus.vocabulary import Allocations
from placement_worker.core.assignment import BREATH
from placement_worker.core.explain import explain, nearest
from placement_worker.core.explain_combinations import NEAREST, UNSEEN, UNSEEN_CODE
from placement_worker.core.fits import Fit, FitFinder
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.index_rows import Amounts, Row, RowSet, Sums, lone_candidate, sums
from placement_worker.core.row_table import IndexPacking
from placement_worker.core.search import PATIENCE, TOGETHER, at_once, candidate
from placement_worker.core.search_plan import SearchPlan, plan
from placement_worker.memory import PackedSnapshot

HOST_PATIENCE = 20_000  # steps without a result on one host, after which the search continues on other hosts
_DOUBLES = 4  # sets of allocations that were found before, for each set that is wanted


class HasIndex(Protocol):
    """The interface of an object with placement's index, which a reload replaces by a new index."""

    @property
    def index(self) -> Index:
        """The index, which may be replaced when it is loaded again."""

    def watch(self, on_change: OnChange) -> None:
        """Register a callback for changed hosts."""

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        """Register a callback for the keys that commits wake."""

    async def fresh(self) -> None:
        """Wait until the index has all changes committed before this call."""


class IndexedSource:
    """Finds candidates in an index, with one scheduler's tentative choices counted as used; implements
    `CandidateSource`.
    """

    def __init__(self, memory: HasIndex) -> None:
        self._memory = memory
        self.packing = IndexPacking()
        self._known: Index | None = None  # set at the first use: a replica may not be loaded yet
        self._before = 0  # sum of the `layout` counters of replaced indexes

    @property
    def seen(self) -> int:
        return self._memory.index.seen

    async def fresh(self) -> None:
        await self._memory.fresh()

    @property
    def layout(self) -> int:
        index = self._memory.index
        if index is not self._known:
            if self._known is not None:
                self._before += self._known.layout + 1
            self._known = index
        return self._before + index.layout

    @property
    def size(self) -> int:
        return self._memory.index.high

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        return self._memory.index.aggregate_facts

    @property
    def cells(self) -> Mapping[str, RegisteredCell]:
        return self._memory.index.cell_facts

    def position(self, root: str) -> int | None:
        row = self._memory.index.rows.get(root)
        return row.position if row is not None and row.parent is None else None

    def named(self, host: str) -> Sequence[str]:
        if self.position(host) is not None:
            return (host,)
        return tuple(sorted(self._memory.index.called.get(host, ())))

    def hosts(self) -> Sequence[Row]:
        index = self._memory.index
        rows = [index.at[position] for position in np.flatnonzero(index.roots[: index.high]).tolist()]
        return [row for row in rows if row is not None]

    def labels(self, level: str) -> tuple[Ints, Sequence[str]]:
        index = self._memory.index
        high = index.high
        if level == HOST:
            roots = index.roots[:high]
            names = ["", *("" if row is None else row.uuid for row in index.at[:high])]
            return np.where(roots, np.arange(1, high + 1), 0), names
        column = index.labels.get(level)
        if column is None:
            return np.zeros(high, np.intp), [""]
        return column.ids[:high], column.names

    def search(self, question: FindCandidates, *, empty: bool = False) -> "HostSearch":
        return HostSearch(self._memory.index, self.packing, question, empty=empty)

    def free(self, root: str) -> Mapping[str, int]:
        index = self._memory.index
        members = index.trees.get(root, ())
        if len(members) == 1:
            return index.rows[root].free
        return sums([index.rows[uuid] for uuid in members])[0]

    def having(self, resource_class: str, amount: int) -> int:
        kind = self._memory.index.classes.get(resource_class)
        return 0 if kind is None else int(np.count_nonzero(kind.top >= amount))

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        index = self._memory.index
        found: dict[str, set[str]] = {}
        for position in set[int]().union(*index.sharers.values()) if index.sharers else ():
            row = index.at[position]
            if row is not None:
                found.setdefault(row.root, set()).update(row.capacity)
        return found

    def tree_of(self, provider: str) -> Sequence[Row]:
        index = self._memory.index
        row = index.rows.get(provider)
        return () if row is None else [index.rows[uuid] for uuid in index.trees.get(row.root, ())]

    def watch(self, on_change: OnChange) -> None:
        self._memory.watch(on_change)

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        self._memory.watch_wakes(on_wakes)

    def watch_for_more(self, on_change: OnChange) -> None:
        known: Index | None = None
        reported = 0

        def some(roots: Sequence[str], described: Sequence[str]) -> None:
            nonlocal known, reported
            index = self._memory.index
            if index is known:
                roots = [root for root in roots if index.gave.get(root, 0) > reported]
            known, reported = index, index.gives
            if roots or described:
                on_change(roots, described)

        self._memory.watch(some)


class AsIfEmpty(Snapshot):
    """The provider trees of the index as if no consumer had allocations."""

    def alter(self, row: Row) -> Row:
        return replace(row, amounts={}, summary=None, known_free=None, excluded=False)

    def top(self, name: str) -> Amounts | Sums:
        kind = self.index.classes[name]
        if not kind.capped:
            return kind.whole
        most = kind.whole.copy()
        for position in np.flatnonzero(kind.there).tolist():
            row = self.index.at[position]
            if row is not None:
                most[position] = min(most[position], row.inventories[name].max_unit)
        return most


class HostSearch:
    """One query for candidates, evaluated for all hosts of an index; implements `CandidateSearch`."""

    def __init__(self, index: Index, packing: IndexPacking, question: FindCandidates, *, empty: bool) -> None:
        self._index = index
        self._packing = packing
        self._packed = PackedSnapshot(index, packing)
        self._trees: Snapshot = AsIfEmpty(index) if empty else self._packed
        self._plan = made = plan(self._trees, question, named=True)
        self._finder = FitFinder(self._trees, made)
        self._lone = not made.slots  # each host has only one possible set of allocations, on its root
        self._asked = tuple(made.query.groups[0].resources.items())  # only used for hosts of one provider
        self.considered = made.considered
        self.positions: Ints = np.flatnonzero(self._finder.anchors)
        self._free: dict[str, Floats] = {}
        self._without: set[int] = set()  # indices of hosts where no allocation was found
        self._unseen: set[int] = set()  # indices of hosts whose search was stopped early
        self._spent = 0  # number of search steps without a result on all hosts, limited by PATIENCE

    def any_of(self, resource_class: str) -> bool:
        kind = self._index.classes.get(resource_class)
        return kind is not None and kind.providers > 0

    def free(self, resource_class: str) -> Floats:
        free = self._free.get(resource_class)
        if free is None:
            free = self._packed.free_of_trees(resource_class).take(self.positions)
            self._free[resource_class] = free
            free.flags.writeable = False  # callers share the array
        return free

    def capacity(self, resource_class: str) -> Floats:
        return self._index.capacity_of_trees(resource_class).take(self.positions)

    def has(self, trait: str) -> Bools:
        return self._among(self._index.traits.get(trait))

    def within(self, aggregate: str) -> Bools:
        return self._among(self._index.aggregates.get(aggregate))

    def _among(self, rows: RowSet | None) -> Bools:
        if rows is None:
            return np.zeros(len(self.positions), np.bool_)
        return rows.mask(self._index.high).take(self.positions)

    def providers(self) -> "PackedProviders":
        return PackedProviders(self._index, self._packed)

    def tree(self, position: int) -> Sequence[FreeProvider]:
        trees, index, uuid = self._trees, self._index, self.host(position).uuid
        if trees is self._packed and not self._packed.excludes:  # faster than altered rows
            rows = [index.rows[each] for each in index.trees[uuid]]
            free = [self._free_now(row) for row in rows]
        else:
            rows = trees.rows_of(uuid)
            free = [row.free for row in rows]
        return [
            FreeProvider(row.position, row.uuid, row.parent, left, row.capacity, row.traits)
            for row, left in zip(rows, free, strict=True)
        ]

    def host(self, position: int) -> Row:
        row = self._index.at[position]
        if row is None:
            raise LookupError(f"there is no host at {position}")
        return row

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        index, row = self._index, self.host(position)
        if not index.children or len(index.trees[row.uuid]) == 1:
            return self._free_now(row), row.capacity
        return sums(self._trees.rows_of(row.uuid))

    def _free_now(self, row: Row) -> dict[str, int]:
        free, taken = row.known_free or row.free, self._packing.taken.get(row.uuid)
        return {name: left - taken.get(name, 0) for name, left in free.items()} if taken else free

    def ways(
        self, position: int, most: int, within: Sequence[Allocations] = (), *, distinct: bool = False
    ) -> Sequence[Candidate]:
        finder = self._finder
        row = self._index.at[position]
        if row is None or not finder.anchors.item(position):
            return ()
        if self._lone or finder.alone(row):  # only check again whether choices have taken the capacity
            free = self._free_now(row)
            for name, asked in self._asked:
                if free[name] < asked:
                    self._without.add(position)
                    return ()
            return (lone_candidate(row, self._plan.query.groups[0], free),)
        anchor = self._trees.row_at(position)
        if anchor is None:
            return ()
        key_of = _AlikeProviders(self._trees.rows_of(anchor.uuid)).key if distinct else _key
        return self._candidates(anchor, self._fits(anchor, most, within, key_of))

    def _candidates(self, anchor: Row, fits: tuple[list[Fit], bool]) -> Sequence[Candidate]:
        position, (found, whole) = anchor.position, fits
        self._unseen.discard(position)
        if not found:
            if whole:
                self._without.add(position)
            elif position not in self._without:
                self._unseen.add(position)
            return ()
        free, capacity = sums(self._trees.rows_of(anchor.uuid))
        return [candidate(fit, free, capacity, capacities=len(found) > 1) for fit in found]

    def _fits(
        self,
        anchor: Row,
        most: int,
        within: Sequence[Allocations],
        key_of: Callable[[Allocations], Hashable | None],
    ) -> tuple[list[Fit], bool]:
        """Return up to `most` sets of allocations that fit on a host, with different keys, and whether the
        search was complete.
        """
        found: list[Fit] = []
        seen: set[Hashable] = set()
        if self._spent >= 2 * PATIENCE:
            return found, False
        patience, spent, doubles = HOST_PATIENCE if self._spent < PATIENCE else 0, 0, 0
        fits = (self._finder.fits(anchor, check_again=True, within=each) for each in within or (None,))
        for fit in chain.from_iterable(fits):
            if fit is not None:
                key = key_of(fit.allocations)
                if key is None or key in seen:
                    doubles += 1  # such as sets of groups that can exchange their providers
                    if doubles > _DOUBLES * most:
                        break
                    continue
                found.append(fit)
                seen.add(key)
                if len(found) == most:
                    break
            else:
                spent += BREATH
                if spent > patience:
                    break
        self._spent += spent
        return found, spent <= patience

    def removals(self) -> Sequence[Removal]:
        """Return how many hosts each part of a query (resource, trait, aggregate, ...) removed. If some host
        fits, the rules about combined providers count only those hosts on which a search has already found
        nothing.
        """
        made = self._as_it_is()
        fitting = self._fitting(made)
        if not fitting:
            return at_once(explain(self._trees, made))[0]
        removals = tuple(made.removals)
        unseen = self._not_known(made)
        if fitting + unseen < made.count:
            removed, left = made.count - fitting - unseen, fitting + unseen
            removals += (Removal(constraint=TOGETHER, removed=removed, left=left, code="together"),)
        if unseen:
            removals += (Removal(constraint=UNSEEN, removed=unseen, left=fitting, code=UNSEEN_CODE),)
        return removals

    def nearest(self, roots: Collection[str] = (), most: int = NEAREST) -> Sequence[NearMiss]:
        made = self._as_it_is()
        if roots:
            return nearest(self._trees, made, roots, most)
        if self._fitting(made):
            return ()
        return at_once(explain(self._trees, made))[1] if made.count else nearest(self._trees, made, (), most)

    def _as_it_is(self) -> SearchPlan:
        """Return the plan of the search over the present index and choices."""
        if isinstance(self._trees, PackedSnapshot):
            if self._trees is self._packed and self._packed.current:
                return self._plan
            self._trees = PackedSnapshot(self._index, self._packing)
        return plan(self._trees, self._plan.query, named=True)

    def _fitting(self, made: SearchPlan) -> int:
        """Return how many hosts of a plan fit, without those that have no candidate."""
        left = made.left & self._finder.anchors
        # Search these hosts again: choices may have been released since.
        self._without = {host for host in self._without if not left[host] or not self.ways(host, 1)}
        without = sum(bool(left[position]) for position in self._without) + self._not_known(made)
        return made.count - without if int(np.count_nonzero(left)) > without else 0

    def _not_known(self, made: SearchPlan) -> int:
        return sum(bool(made.left[position]) for position in self._unseen)


class PackedProviders:
    """The rows of an index with a scheduler's choices; implements `ProviderArrays`."""

    def __init__(self, index: Index, packed: PackedSnapshot) -> None:
        self._index = index
        self._packed = packed
        self.layout = index, packed.packing, index.layout
        self.shaped = index, index.shaped
        self.uses = index.uses

    @property
    def host(self) -> Ints:
        return self._index.root_of[: self._index.high]

    def used_since(self, uses: int) -> Ints | None:
        # A choice of one provider also takes the siblings that it excludes.
        rows = None if self._index.traits.get(EXCLUDES_SIBLINGS) else self._index.used_since(uses)
        return None if rows is None else np.array(sorted(set(rows)), np.intp)

    def any_of(self, resource_class: str) -> bool:
        kind = self._index.classes.get(resource_class)
        return kind is not None and kind.providers > 0

    def free(self, resource_class: str) -> Floats:
        return self._packed.left(resource_class)[: self._index.high]

    def capacity(self, resource_class: str) -> Floats:
        return self._index.classes[resource_class].whole[: self._index.high]

    def has(self, trait: str) -> Bools:
        rows = self._index.traits.get(trait)
        return np.zeros(self._index.high, np.bool_) if rows is None else rows.mask(self._index.high)

    def shared(self, resource_class: str) -> Bools:
        index, served = self._index, np.zeros(self._index.high, np.bool_)
        for position in set[int]().union(*index.sharers.values()):
            row = index.at[position]
            if row is not None and resource_class in row.inventories:
                served[index.reach(position)] = True
        return served


class _AlikeProviders:
    """Finds sets of allocations of a host that differ only by providers which are alike."""

    def __init__(self, rows: Sequence[Row]) -> None:
        parents = {row.parent for row in rows}
        kinds: dict[Hashable, int] = {}
        self._kind: dict[str, int] = {}  # provider → number of its kind; providers of one kind are alike
        for row in rows:
            kind: Hashable = row.uuid
            if row.uuid not in parents and row.parent is not None:  # a device without devices of its own
                # equal inventories of the index share one object
                kind = row.parent, id(row.inventories), (*row.free.values(),), row.traits, row.aggregates
            self._kind[row.uuid] = kinds.setdefault(kind, len(kinds))
        self._seen: dict[Hashable, int] = {}

    def key(self, allocations: Allocations) -> Hashable | None:
        """Return the key of a set of allocations; None if ALIKE sets that are like it were found."""
        of_kinds = Counter(
            [(self._kind.get(uuid, uuid), *sorted(asked.items())) for uuid, asked in allocations.items()]
        )
        kind = frozenset(of_kinds.items())
        self._seen[kind] = count = self._seen.get(kind, 0) + 1
        return None if count > ALIKE else _key(allocations)


def _key(allocations: Allocations) -> Hashable:
    return frozenset([(uuid, *sorted(asked.items())) for uuid, asked in allocations.items()])
