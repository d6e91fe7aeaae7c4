"""Finds candidates for a scheduler in the index of the same process, less the scheduler's reservations."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import Bools, Floats, Ints, OnChange, OnWakes, kind_of
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.domains import HOST
from bus.queries import Candidate, FindCandidates
from bus.reports import EXCLUDES_SIBLINGS
from bus.vocabulary import Allocations
from placement_worker.core.explain import NEAREST, UNSEEN, UNSEEN_CODE, explain, nearest
from placement_worker.core.fits import BREATH, Fit, FitFinder, SearchPlan, plan
from placement_worker.core.forms import form_of, node_of
from placement_worker.core.index import (
    Amounts,
    Index,
    ReservedAmounts,
    Row,
    RowSet,
    Snapshot,
    Sums,
    Tops,
    lone_candidate,
    sums,
)
from placement_worker.core.search import HOST_PATIENCE, PATIENCE, TOGETHER, at_once, candidate

# Placement's index with the reservations of one scheduler.


class ReservedSnapshot(Snapshot):
    """The index with a scheduler's reservations counted as used. Searches in it must not pause."""

    def __init__(self, index: Index, reserved_amounts: ReservedAmounts) -> None:
        super().__init__(index)
        self._reserved_amounts = reserved_amounts
        high = index.high  # number of rows in use; the arrays of resource classes are longer
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - reserved[:high]
            for name, reserved in reserved_amounts.arrays(index).items()
            if name in index.classes
        }
        # class → row → largest amount of one claim, for rows with a negative reservation
        self._raised: dict[str, dict[int, int]] = {}
        for uuid, name in reserved_amounts.negative:
            row = index.rows.get(uuid)
            if row is not None and name in row.inventories:
                self._raised.setdefault(name, {})[row.position] = row.inventories[name].max_unit
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        self._excluded = self._excluded_by_reservations() if excluding else frozenset()
        self._changes = reserved_amounts.changes

    def _excluded_by_reservations(self) -> frozenset[str]:
        index, excluded = self.index, set[str]()
        for uuid in self._reserved_amounts.of:
            row = index.rows.get(uuid)
            if row is None or EXCLUDES_SIBLINGS not in row.traits:
                continue
            for sibling in index.excluded_by(row):
                excluded.add(sibling.uuid)
                for name in sibling.capacity:
                    if name not in self._left:
                        self._left[name] = index.classes[name].left[: index.high].copy()
                    self._left[name][sibling.position] = min(self._left[name][sibling.position], 0)
        return frozenset(excluded)

    @property
    def current(self) -> bool:
        """Return whether the scheduler's reservations are unchanged since this snapshot was made."""
        return self._reserved_amounts.changes == self._changes

    def top(self, name: str) -> Tops:
        left = self._left.get(name)
        return self.index.classes[name].top if left is None else np.minimum(self._most(name, len(left)), left)

    def gives(self, name: str, asked: int) -> Bools:
        left = self._left.get(name)
        if left is None:
            return super().gives(name, asked)
        met: Bools = left >= asked
        if self.index.classes[name].capped:
            met &= self._most(name, len(left)) >= asked
        return met

    def _most(self, name: str, rows: int) -> Tops:
        """Return, for each of the first `rows` rows of the index, the largest amount that one claim can get.
        Positive reservations are not subtracted; a provider with a negative reservation has its `max_unit`.
        """
        top = self.index.classes[name].top[:rows]
        if raised := self._raised.get(name):
            top = top.copy()
            for position, amount in raised.items():
                top[position] = amount
        return top

    def left(self, name: str) -> Sums:
        left = self._left.get(name)
        return self.index.classes[name].left if left is None else left

    def alter(self, row: Row) -> Row:
        if row.uuid in self._excluded:
            row = replace(row, summary=None, known_free=None, excluded=True)
        reserved: Mapping[str, int] | None = self._reserved_amounts.of.get(row.uuid)
        if not reserved:
            return row
        used = row.used  # may contain removed resource classes that are still in use
        amounts = {name: used.get(name, 0) + reserved.get(name, 0) for name in {**used, **reserved}}
        return replace(row, amounts=amounts, summary=None, known_free=None)


_DOUBLES = 4  # sets of allocations that were found before, for each set that is wanted


class HasIndex(Protocol):
    """The interface of an object with placement's index, which a reload replaces by a new index."""

    @property
    def index(self) -> Index: ...

    def watch(self, on_change: OnChange) -> None: ...

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    async def fresh(self) -> None: ...


class IndexedSource:
    """Finds candidates in an index, with one scheduler's reservations counted as used; implements
    `CandidateSource`.
    """

    def __init__(self, memory: HasIndex) -> None:
        self._memory = memory
        self._reserved_amounts = ReservedAmounts()
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
        return HostSearch(self._memory.index, self._reserved_amounts, question, empty=empty)

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

    def form(self, allocations: Allocations) -> Hashable | None:
        index = self._memory.index
        root = next((row.root for uuid in allocations if (row := index.rows.get(uuid)) is not None), None)
        if root is None or root not in index.rows:
            return None
        rows = [index.rows[uuid] for uuid in index.trees.get(root, ())]
        form = form_of(allocations, root, node_of(rows) if len(rows) > 1 else None)
        return None if form is None else (kind_of(index.rows[root], index.aggregate_facts), form)

    def reserve(self, allocations: Allocations) -> None:
        self._reserved_amounts.add(allocations)

    def withdraw(self, allocations: Allocations) -> None:
        self._reserved_amounts.add(allocations, -1)

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

    def __init__(
        self, index: Index, reserved_amounts: ReservedAmounts, question: FindCandidates, *, empty: bool
    ) -> None:
        self._index = index
        self._reserved_amounts = reserved_amounts
        self._reserved_snapshot = ReservedSnapshot(index, reserved_amounts)
        self._trees: Snapshot = AsIfEmpty(index) if empty else self._reserved_snapshot
        self._plan = made = plan(self._trees, question, named=True)
        self._finder = FitFinder(self._trees, made, 0)
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
            free = self._reserved_snapshot.free_of_trees(resource_class).take(self.positions)
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
        free, reserved = row.known_free or row.free, self._reserved_amounts.of.get(row.uuid)
        return {name: left - reserved.get(name, 0) for name, left in free.items()} if reserved else free

    def ways(self, position: int, most: int, within: Sequence[Allocations] = ()) -> Sequence[Candidate]:
        finder = self._finder
        row = self._index.at[position]
        if row is None or not finder.anchors.item(position):
            return ()
        if self._lone or finder.alone(row):  # only check again whether reservations have taken the capacity
            free = self._free_now(row)
            for name, asked in self._asked:
                if free[name] < asked:
                    self._without.add(position)
                    return ()
            return (lone_candidate(row, self._plan.query.groups[0], free),)
        anchor = self._trees.row_at(position)
        if anchor is None:
            return ()
        found, whole = self._fits(anchor, most, within)
        self._unseen.discard(position)
        if not found:
            if whole:
                self._without.add(position)
            elif position not in self._without:
                self._unseen.add(position)
            return ()
        free, capacity = sums(self._trees.rows_of(anchor.uuid))
        return [candidate(fit, free, capacity, capacities=len(found) > 1) for fit in found]

    def _fits(self, anchor: Row, most: int, within: Sequence[Allocations]) -> tuple[list[Fit], bool]:
        """Return up to `most` different sets of allocations that fit on a host, and whether the search was
        complete.
        """
        found: list[Fit] = []
        seen: set[Hashable] = set()
        if self._spent >= 2 * PATIENCE:
            return found, False
        patience, spent, doubles = HOST_PATIENCE if self._spent < PATIENCE else 0, 0, 0
        fits = (self._finder.fits(anchor, check_again=True, within=each) for each in within or (None,))
        for fit in chain.from_iterable(fits):
            if fit is not None:
                key = _key(fit.allocations)
                if key in seen:
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
        if isinstance(self._trees, ReservedSnapshot):
            if self._trees is self._reserved_snapshot and self._reserved_snapshot.current:
                return self._plan
            self._trees = ReservedSnapshot(self._index, self._reserved_amounts)
        return plan(self._trees, self._plan.query, named=True)

    def _fitting(self, made: SearchPlan) -> int:
        left = made.left & self._finder.anchors
        # Search these hosts again: reservations may have been withdrawn since.
        self._without = {host for host in self._without if not left[host] or not self.ways(host, 1)}
        without = sum(bool(left[position]) for position in self._without) + self._not_known(made)
        return made.count - without if int(np.count_nonzero(left)) > without else 0

    def _not_known(self, made: SearchPlan) -> int:
        return sum(bool(made.left[position]) for position in self._unseen)


def _key(allocations: Allocations) -> Hashable:
    return frozenset([(uuid, *sorted(asked.items())) for uuid, asked in allocations.items()])
