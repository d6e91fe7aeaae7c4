"""The arrays of the index, a row for each provider: its tree, resource classes, traits and
aggregates.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from functools import cache
from itertools import islice
from operator import attrgetter, lt
from typing import Any

import numpy as np

from bus.aggregates import Aggregate
from bus.domains import NO_LABELS
from bus.packing import NOTHING, ProviderPacking
from bus.reports import EXCLUDES_SIBLINGS, SHARES
from bus.vocabulary import Allocations
from placement_worker.core.index_rows import BEYOND_COUNTING, Bools, ClassArrays, Ints, Row, RowSet, Sums
from placement_worker.core.labels import LabelColumn, effective_labels, has_labels
from placement_worker.core.trees import ProviderState, Tree

FIRST_ROWS = 1024
INTERNED = 100_000
USES = 8192  # changes of used amounts whose rows are kept

_PLACE = attrgetter("root", "parent", "host", "cell", "agent")
_NOWHERE = np.zeros(0, np.intp)


class RowTable:
    """The providers of the index, each at a position that all arrays share; free positions are used again."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.trees: dict[str, tuple[str, ...]] = {}  # root → its providers, the root first
        self.at: list[Row | None] = [None] * FIRST_ROWS
        self.high = 0  # all rows in use are below this row
        self._free_rows: list[int] = []
        self.roots: Bools = np.zeros(FIRST_ROWS, np.bool_)
        self.below: Bools = np.zeros(FIRST_ROWS, np.bool_)  # providers with a parent
        self.children = 0  # number of providers with a parent
        self.root_of: Ints = np.full(FIRST_ROWS, -1, np.intp)
        self.classes: dict[str, ClassArrays] = {}
        self.cells = defaultdict[str, RowSet](RowSet)
        self.zones = defaultdict[str, RowSet](RowSet)  # zone → roots whose agents report this zone
        self.traits = defaultdict[str, RowSet](RowSet)
        self.aggregates = defaultdict[str, RowSet](RowSet)
        self.called: dict[str, tuple[str, ...]] = {}  # name of a host → roots with this host name
        self.aggregate_facts: dict[str, Aggregate] = {}  # names and metadata of aggregates
        self.labels: dict[str, LabelColumn] = {}  # level → labels of roots
        self.sharers: dict[str, set[int]] = {}  # aggregate → its sharing providers
        self._reach: dict[int, Ints] = {}  # sharing provider → roots of the other trees that can use it
        self._interned: dict[Any, Any] = {}
        self.layout = 0  # grows when a provider is added, removed, or gets another tree, cell, host or agent
        self.shaped = 0  # grows when anything except the usage of a provider changes
        self.uses = 0  # grows when the usage of a provider changes, or what tentative choices take of it
        self._used = deque[int](maxlen=USES)  # the rows of the latest of these changes

    def reach(self, position: int) -> Ints:
        """Return the index rows of the roots of other trees that may use the resources of the sharing
        provider at the row `position`.
        """
        roots = self._reach.get(position)
        if roots is None:
            row = self.at[position]
            members = [self.aggregates[uuid].rows() for uuid in row.aggregates] if row is not None else []
            served = np.zeros(self.high, np.bool_)
            served[self.root_of[np.concatenate(members)] if members else _NOWHERE] = True
            served[self.root_of[position]] = False
            roots = self._reach[position] = np.flatnonzero(served)
        return roots

    def capacity_of_trees(self, name: str) -> Sums:
        """Return the total capacity of a resource class in each provider tree, in an array at the row of the
        tree's root provider.
        """
        kind = self.classes.get(name)
        if kind is None:
            return np.zeros(self.high)
        if not self.children:
            return kind.whole[: self.high]
        rows = np.flatnonzero(kind.there[: self.high])
        return self.sum_of_trees(rows, kind.whole[rows])

    def sum_of_trees(self, rows: Ints, amounts: Sums) -> Sums:
        """Return for each root the sum of amounts over the rows of its tree, limited so that sums remain
        exact.
        """
        total = np.bincount(self.root_of[rows], weights=amounts, minlength=self.high)
        return np.minimum(total, float(BEYOND_COUNTING))

    def hosts_in(self, aggregate: str) -> int:
        """Return the number of hosts in an aggregate: its members that are root providers."""
        members = self.aggregates.get(aggregate)
        return 0 if members is None else int(np.count_nonzero(self.roots[members.rows()]))

    def excluded_by(self, row: Row) -> list[Row]:
        """Return the siblings with the trait EXCLUDES_SIBLINGS: while such a sibling is in use, the provider
        may not be, and vice versa.
        """
        tree = (self.rows.get(uuid) for uuid in self.trees.get(row.root, ()))
        siblings = [
            sibling
            for sibling in tree
            if sibling is not None and sibling is not row and sibling.parent == row.parent
        ]
        return [sibling for sibling in siblings if EXCLUDES_SIBLINGS in sibling.traits]

    def _shape(self, was: Row | None, tree: Tree, provider: ProviderState) -> Row:
        if was is not None:
            position = was.position
        elif self._free_rows:
            position = self._free_rows.pop()
        else:
            if self.high == len(self.at):
                self._grow()
            position, self.high = self.high, self.high + 1
        uuid = provider.uuid if was is None else was.uuid
        inventories = self._same(provider.inventories)
        capacity = {name: inventory.capacity for name, inventory in inventories.items()}
        row = Row(
            position=position,
            uuid=uuid,
            parent=provider.parent,
            root=tree.root if provider.parent is not None else uuid,
            host=tree.host or provider.name,
            cell=self._same(tree.cell),
            agent=self._same(tree.agent),
            zone=self._same(tree.zone),
            generation=provider.generation,
            shape=provider.shape,
            inventories=inventories,
            capacity=self._same(capacity),
            traits=self._same(provider.traits),
            aggregates=self._same(provider.aggregates),
            number=0,
            shaped=0,
            amounts=(),
            labels=NO_LABELS if provider.parent is not None or tree.labels == NO_LABELS else tree.labels,
        )
        self.shaped += 1
        if was is None or _PLACE(was) != _PLACE(row):
            self.layout += 1
        linked = was is not None and _links(was) == _links(row)
        if was is not None:
            self._clear(was)
            if not linked:
                self._unlink(was)
        self.rows[uuid] = row
        self.at[position] = row
        self._mark(row)
        if not linked:
            self._link(row)
        return row

    def _mark(self, row: Row) -> None:
        position, size = row.position, len(self.at)
        self.cells[row.cell].add(position, size)
        if row.parent is None:
            self.called[row.host] = (*self.called.get(row.host, ()), row.uuid)
            if row.zone:
                self.zones[row.zone].add(position, size)
            self._label(row)
        for trait in row.traits:
            self.traits[trait].add(position, size)
        for name, inventory in row.inventories.items():
            kind = self.classes.get(name)
            if kind is None:
                kind = self.classes[name] = ClassArrays(size)
            kind.mark(position, inventory, row.capacity[name])

    def _clear(self, row: Row) -> None:
        position = row.position
        self.cells[row.cell].discard(position)
        if row.parent is None:
            self.called[row.host] = tuple([uuid for uuid in self.called[row.host] if uuid != row.uuid])
            if not self.called[row.host]:
                del self.called[row.host]
            if row.zone:
                self.zones[row.zone].discard(position)
            for level in row.domains:
                self.labels[level].put(position, "")
        for trait in row.traits:
            self.traits[trait].discard(position)
        for name, inventory in row.inventories.items():
            self.classes[name].clear(position, inventory, row.capacity[name])

    def _label(self, row: Row) -> None:
        """Compute a root's labels by level, and store them in the arrays of the levels."""
        facts, labels = self.aggregate_facts, self.labels
        metadata = [facts[uuid].metadata for uuid in row.aggregates if uuid in facts]
        domains = self._same(effective_labels(row.labels, row.cell, row.zone, metadata))
        for level in row.domains:
            if level not in domains:
                labels[level].put(row.position, "")
        for level, label in domains.items():
            if level not in labels:
                labels[level] = LabelColumn(len(self.at))
            labels[level].put(row.position, label)
        row.domains = domains

    def _relabel_members(self, was: Aggregate | None, now: Aggregate) -> None:
        """Compute the labels of an aggregate's hosts again if its metadata gave or gives them any."""
        if not has_labels(now.metadata) and (was is None or not has_labels(was.metadata)):
            return
        members = self.aggregates.get(now.id)
        for position in members.rows().tolist() if members is not None else ():
            row = self.at[position]
            if row is not None and row.parent is None:
                self._label(row)
        self.layout += 1

    def _link(self, row: Row) -> None:
        position, size = row.position, len(self.at)
        self.roots[position] = row.parent is None
        self.below[position] = row.parent is not None
        self.children += row.parent is not None
        self.root_of[position] = self.rows[row.root].position if row.root in self.rows else position
        for uuid in row.aggregates:
            self.aggregates[uuid].add(position, size)
            if SHARES in row.traits:
                self.sharers.setdefault(uuid, set()).add(position)
        self._unreach(row)

    def _unlink(self, row: Row) -> None:
        position = row.position
        self._unreach(row)
        self.roots[position] = self.below[position] = False
        self.children -= row.parent is not None
        self.root_of[position] = -1
        for uuid in row.aggregates:
            self.aggregates[uuid].discard(position)
            sharers = self.sharers.get(uuid)
            if sharers is not None:
                sharers.discard(position)
                if not sharers:
                    del self.sharers[uuid]

    def _unreach(self, row: Row) -> None:
        if self.sharers and self._reach:
            for uuid in row.aggregates:
                for position in self.sharers.get(uuid, ()):
                    self._reach.pop(position, None)

    def _set_free(self, row: Row, used: Mapping[str, int]) -> bool:
        position, classes, inventories, capacity = row.position, self.classes, row.inventories, row.capacity
        amounts = [used.get(name, 0) for name in capacity]
        for (name, total), amount in zip(capacity.items(), amounts, strict=True):
            left = min(total - amount, 0) if row.excluded else total - amount
            most, kind = inventories[name].max_unit, classes[name]
            kind.left[position] = left
            kind.top[position] = most if most < left else left if left > 0 else 0
        was = row.amounts
        if used.keys() <= capacity.keys():
            row.amounts = tuple(amounts) if any(amounts) else _nothing(len(amounts))
        else:
            row.amounts = used
        row.summary = row.known_free = None
        self.note_used((position,))
        if EXCLUDES_SIBLINGS in row.traits:
            self._exclude(row)
        return not isinstance(was, tuple) or any(map(lt, amounts, was))

    def note_used(self, positions: Collection[int]) -> None:
        """Record that the free amounts of the providers in these rows changed, because of their usage or of
        tentative choices.
        """
        self.uses += len(positions)
        self._used.extend(positions)

    def used_since(self, uses: int) -> list[int] | None:
        """Return the rows whose free amounts changed after `uses` had the given value, some several times;
        None: they are too many to be recorded.
        """
        several = self.uses - uses
        return None if several > len(self._used) else list(islice(reversed(self._used), several))

    def _exclude(self, row: Row) -> None:
        together = [row, *self.excluded_by(row)]
        used = [row for row in together if row.in_use]
        for row in together:
            excluded = any(other is not row for other in used)
            if excluded != row.excluded:
                row.excluded = excluded
                self._set_free(row, row.used)

    def _drop(self, row: Row) -> None:
        del self.rows[row.uuid]
        self._clear(row)
        self._unlink(row)
        self.layout += 1
        self.at[row.position] = None
        self._free_rows.append(row.position)

    def _grow(self) -> None:
        more = len(self.at)
        self.at.extend([None] * more)
        for flags in (self.cells, self.zones, self.traits, self.aggregates):
            for values in flags.values():
                values.grow(len(self.at))
        falses = np.zeros(more, np.bool_)
        self.roots = np.concatenate([self.roots, falses])
        self.below = np.concatenate([self.below, falses])
        self.root_of = np.concatenate([self.root_of, np.full(more, -1, np.intp)])
        for kind in self.classes.values():
            kind.grow(more)
        for column in self.labels.values():
            column.grow(more)

    def _same(self, value: Any) -> Any:
        if len(self._interned) > INTERNED:
            self._interned.clear()
        key = (type(value), tuple(value.items()) if isinstance(value, dict) else value)
        return self._interned.setdefault(key, value)


@cache
def _nothing(classes: int) -> tuple[int, ...]:
    return (0,) * classes


def _links(row: Row) -> tuple[object, ...]:
    return row.root, row.parent, row.aggregates, SHARES in row.traits


class IndexPacking(ProviderPacking):
    """The amounts that one scheduler's tentative choices take, also as arrays over the rows of an index. A
    negative amount counts as free although it is allocated.
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[str, Sums] = {}
        self._count = Counter[str]()  # class → number of rows with taken amounts in its array
        # class → providers whose taken amount has changed, but not yet in `_arrays`
        self._unwritten: defaultdict[str, set[str]] = defaultdict(set)
        self._index: RowTable | None = None
        self._layout = -1

    def _apply(self, sign: int, allocations: Allocations) -> None:
        super()._apply(sign, allocations)
        unwritten = self._unwritten
        for uuid, resources in allocations.items():
            for name in resources:
                unwritten[name].add(uuid)

    def arrays(self, index: "RowTable") -> Mapping[str, Sums]:
        """Return, for each resource class, an array of the taken amounts, with one element for each row of
        the index.
        """
        if index is not self._index or index.layout != self._layout:
            self._index, self._layout = index, index.layout
            self._arrays.clear()
            self._count.clear()
            self._unwritten.clear()
            for uuid, taken in self.taken.items():
                for name in taken:
                    self._unwritten[name].add(uuid)
        for name, uuids in self._unwritten.items():
            self._write(index, name, uuids)
        self._unwritten.clear()
        return self._arrays

    def _write(self, index: "RowTable", name: str, uuids: Collection[str]) -> None:
        taken, rows = self.taken, index.rows
        present = [uuid for uuid in uuids if uuid in rows]
        positions = [rows[uuid].position for uuid in present]
        index.note_used(positions)
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = np.zeros(len(index.at))
        before = np.count_nonzero(array[positions])
        array[positions] = [taken.get(uuid, NOTHING).get(name, 0) for uuid in present]
        self._count[name] += int(np.count_nonzero(array[positions]) - before)
        if not self._count[name]:
            del self._arrays[name]
