"""The index: all providers with their free amounts as arrays, in which searches find candidates.

Each provider has a row; a tree is identified by its root's row. The index may be a few milliseconds behind
the database; so a claim checks capacity again, in the database.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import attrgetter, lt
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bus.aggregates import ZONE as ZONE_KEY
from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.domains import BUILT_IN_LEVELS, CELL, METADATA_PREFIX, NO_LABELS, ZONE, HostLabels, Labels
from bus.packing import NOTHING, ProviderPacking
from bus.queries import Candidate
from bus.replication import ProviderChange
from bus.reports import EXCLUDES_SIBLINGS, SHARES, Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from placement_worker.core.trees import ProviderState, Tree

# Section: rows of the index (one for each provider), sets of rows, arrays of one resource class, and
# tentative choices.


BEYOND_COUNTING = 2**62  # larger sums count as this, so that int64 does not overflow
_NOTHING: dict[str, Any] = {}  # an empty dict for many rows; never change it


@dataclass(slots=True, eq=False)
class Row:
    """A provider's row in the index. A dict of a row is replaced, never changed, because candidates refer to
    it.

    There may be 100,000 rows, so equal values are shared, and rarely used values are computed on demand.
    """

    position: int
    uuid: str
    parent: str | None
    root: str
    host: str
    cell: str
    agent: str
    zone: str
    generation: int
    shape: int
    inventories: dict[str, Inventory]
    capacity: dict[str, int]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    number: int  # last change number that the row includes
    shaped: int  # last change number that changed more than the usage
    amounts: tuple[int, ...] | Mapping[str, int]  # used amounts; a tuple has the order of `capacity`
    summary: Any = None  # a cache for the HTTP API, which every change resets
    known_free: dict[str, int] | None = None
    excluded: bool = False  # must not be claimed, because of the use of a sibling with EXCLUDES_SIBLINGS
    labels: HostLabels = NO_LABELS  # for a root: labels by source
    domains: Mapping[str, str] = field(default_factory=dict)  # for a root: level → label that applies

    @property
    def shapes(self) -> dict[str, int]:
        return {self.uuid: self.shape}

    @property
    def used(self) -> Mapping[str, int]:
        amounts = self.amounts
        return dict(zip(self.capacity, amounts, strict=True)) if isinstance(amounts, tuple) else amounts

    @property
    def in_use(self) -> bool:
        amounts = self.amounts
        return any(amounts if isinstance(amounts, tuple) else amounts.values())

    @property
    def free(self) -> dict[str, int]:
        if (free := self.known_free) is None:
            amounts, capacity = self.amounts, self.capacity
            if self.excluded:
                free = dict.fromkeys(capacity, 0)
            elif isinstance(amounts, tuple):
                free = {name: capacity[name] - used for name, used in zip(capacity, amounts, strict=True)}
            else:
                free = {name: most - amounts.get(name, 0) for name, most in capacity.items()}
            self.known_free = free
        return free


def lone_candidate(row: Row, group: ResourceGroup, free: dict[str, int] | None = None) -> Candidate:
    return Candidate(
        row.uuid,
        row.host,
        row.cell,
        row.agent,
        row.zone,
        {row.uuid: group.resources},
        {row.uuid: row.shape},
        (row.known_free or row.free) if free is None else free,  # `known_free` is a cache of `free`
        row.capacity,
        row.traits,
        {group.suffix: (row.uuid,)} if group.suffix else _NOTHING,
        _NOTHING,
        row.aggregates,
    )


def sums(rows: list[Row]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the free and the total amounts of a provider tree, each by resource class; `rows` are the index
    rows of all its providers. In a tree of several providers, an overcommitted provider counts as 0.
    """
    if len(rows) == 1:
        return rows[0].free, rows[0].capacity
    free: dict[str, int] = {}
    capacity: dict[str, int] = {}
    for row in rows:
        for name, amount in row.capacity.items():
            free[name] = min(free.get(name, 0) + max(row.free[name], 0), BEYOND_COUNTING)
            capacity[name] = min(capacity.get(name, 0) + amount, BEYOND_COUNTING)
    return free, capacity


Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

FEW = 512  # up to one row in so many, a Python set is smaller than an array


class RowSet:
    """A set of rows of the index, such as all with a trait: a Python set if small, else a boolean array."""

    __slots__ = ("_few", "_many", "count")

    def __init__(self) -> None:
        self.count = 0
        self._few: set[int] = set()  # the rows, as long as they are few
        self._many: Bools | None = None

    def add(self, row: int, size: int) -> None:
        self.count += 1
        if self._many is not None:
            self._many[row] = True
        else:
            self._few.add(row)
            if self.count * FEW > size:
                self._many, self._few = self.mask(size), set()

    def discard(self, row: int) -> None:
        self.count -= 1
        if self._many is not None:
            self._many[row] = False
        else:
            self._few.discard(row)

    def grow(self, size: int) -> None:
        if self._many is None:
            return
        if self.count * FEW > size:
            self._many = np.concatenate([self._many, np.zeros(size - len(self._many), np.bool_)])
        else:
            self._few, self._many = set(np.flatnonzero(self._many).tolist()), None

    def rows(self) -> Ints:
        if self._many is not None:
            return np.flatnonzero(self._many)
        return np.fromiter(self._few, np.intp, len(self._few))

    def mask(self, high: int) -> Bools:
        """Return an array: for each index row below `high`, whether it is in the set. Do not write to it."""
        if self._many is not None:
            return self._many[:high]
        mask = np.zeros(high, np.bool_)
        if self._few:
            mask[list(self._few)] = True
        return mask


Amounts = npt.NDArray[np.int32]  # amounts of one claim, which are at most 2³¹ − 1
Sums = npt.NDArray[np.float64]  # capacities and free amounts, which may be larger: floats are exact to 2⁵³


class ClassArrays:
    """The amounts of one resource class, as arrays with an element for each row of the index. `picky` counts
    providers with a min_unit or step_size other than 1, `capped` providers with a max_unit.
    """

    __slots__ = ("capped", "least", "left", "picky", "providers", "step", "there", "top", "whole")

    def __init__(self, size: int) -> None:
        self.top: Amounts = np.zeros(size, np.int32)  # maximum amount of one claim now: free, up to max_unit
        self.there: Bools = np.zeros(size, np.bool_)  # rows with an inventory of the class
        self.left: Sums = np.zeros(size)  # the free amount; negative if overcommitted
        self.whole: Sums = np.zeros(size)  # the capacity
        self.least: Amounts | None = None  # min_unit, if it is not 1 at every provider
        self.step: Amounts | None = None
        self.providers = 0
        self.picky = 0
        self.capped = 0

    def mark(self, position: int, inventory: Inventory, capacity: int) -> None:
        self.there[position] = True
        self.providers += 1
        self.whole[position] = capacity
        self.capped += inventory.max_unit < capacity
        if inventory.min_unit > 1 or inventory.step_size > 1:
            if self.least is None or self.step is None:
                self.least, self.step = np.ones(len(self.top), np.int32), np.ones(len(self.top), np.int32)
            self.picky += 1
            self.least[position] = inventory.min_unit
            self.step[position] = inventory.step_size

    def clear(self, position: int, inventory: Inventory, capacity: int) -> None:
        self.top[position] = 0
        self.left[position] = self.whole[position] = 0.0
        self.there[position] = False
        self.providers -= 1
        self.capped -= inventory.max_unit < capacity
        if self.least is not None and self.step is not None:
            self.least[position] = self.step[position] = 1
            self.picky -= inventory.min_unit > 1 or inventory.step_size > 1

    def grow(self, more: int) -> None:
        none, minima = np.zeros(more), np.ones(more, np.int32)
        self.top = np.concatenate([self.top, np.zeros(more, np.int32)])
        self.there = np.concatenate([self.there, np.zeros(more, np.bool_)])
        self.left = np.concatenate([self.left, none])
        self.whole = np.concatenate([self.whole, none])
        if self.least is not None and self.step is not None:
            self.least = np.concatenate([self.least, minima])
            self.step = np.concatenate([self.step, minima])


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


# Section: computes the labels of hosts by level from what operators, agents, aggregates' metadata and Ironic
# set; stores the labels as arrays for the index.


_decode = msgspec.json.Decoder(HostLabels).decode
_encode_labels = msgspec.json.Encoder(order="deterministic").encode


def stored_labels(text: str) -> HostLabels:
    return _decode(text) if text else NO_LABELS


def as_stored(labels: HostLabels) -> str:
    return "" if labels == NO_LABELS else _encode_labels(labels).decode()


def has_labels(metadata: Mapping[str, str]) -> bool:
    """Return whether an aggregate's metadata gives its hosts a label or an availability zone."""
    return any(key == ZONE_KEY or key.startswith(METADATA_PREFIX) for key in metadata)


def effective_labels(
    labels: HostLabels, cell: str, zone: str, of_aggregates: Iterable[Mapping[str, str]] = ()
) -> dict[str, str]:
    """Return a host's label for each level, by precedence: the operator, the host's agent, the metadata of
    its aggregates, Ironic's fields. Of several aggregates the first one decides.
    """
    found: dict[str, str] = {**labels.of_fields}
    by_metadata: dict[str, str] = {}
    for metadata in of_aggregates:
        for key, value in metadata.items():
            if key.startswith(METADATA_PREFIX) and value:
                by_metadata.setdefault(key.removeprefix(METADATA_PREFIX), value)
            elif key == ZONE_KEY and value and not zone:
                zone = value
    found |= by_metadata | labels.reported | labels.of_operator
    for level in BUILT_IN_LEVELS:
        found.pop(level, None)
    if cell:
        found[CELL] = cell
    if zone:
        found[ZONE] = zone
    return found


def reserved_level(levels: Iterable[str]) -> str:
    """Return the first of the given levels that operators cannot label (host, cell, zone), or ""."""
    return next((level for level in levels if level in BUILT_IN_LEVELS), "")


def edited_labels(before: Labels, set_: Labels, unset: Sequence[str]) -> Labels:
    return {level: label for level, label in {**before, **set_}.items() if level not in unset}


class LabelColumn:
    """The labels of one level: for each row of the index the number of its label; 0 is no label."""

    __slots__ = ("_numbers", "ids", "names")

    def __init__(self, size: int) -> None:
        self.ids: Ints = np.zeros(size, np.intp)
        self.names: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def put(self, position: int, label: str) -> None:
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self.names)
            self.names.append(label)
        self.ids[position] = number

    def grow(self, more: int) -> None:
        self.ids = np.concatenate([self.ids, np.zeros(more, np.intp)])


# Section: the arrays of the index, a row for each provider: its tree, resource classes, traits and
# aggregates.


FIRST_ROWS = 1024
INTERNED = 100_000
USES = 8192  # changes of used amounts whose rows are kept

_PLACE = attrgetter("root", "parent", "host", "cell", "agent")
_NOWHERE = np.zeros(0, np.intp)


class RowTable:
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


class Index(RowTable):
    def __init__(self, seen: int = 0, history: str = "") -> None:
        super().__init__()
        self.seen = seen  # the index includes all changes up to this number
        self.history = history  # id of the database's commits; empty: unknown
        self._ahead: set[int] = set()  # numbers above `seen` of applied changes; numbers between are missing
        # changes of providers that are not in the index yet, with their change numbers above `seen`
        self._early: dict[str, tuple[ProviderChange, int]] = {}
        self._put_at: dict[str, int] = {}  # root → change number above `seen` at which its tree was stored
        self.cell_facts: dict[str, RegisteredCell] = {}  # states of registered cells
        # (type, aggregate or cell) → number of its last change, if above `seen`
        self._described_at: dict[tuple[type, str], int] = {}
        # root → the last change number at which capacity grew or traits changed
        self.gave: dict[str, int] = {}
        self.gives = 0  # counts increases of free capacity, and created, changed or deleted providers
        self.snapshots: list[Callable[[str], None]] = []  # called with a root before a change of its tree

    # Changes can be applied in any order: an older change never undoes a newer one.

    def is_of(self, history: str) -> bool:
        """Return whether the index may be a copy of the database with this history id, which a fail-over
        changes. Return True if this id or the index's id is empty, which means unknown.
        """
        return not history or not self.history or history == self.history

    def knows(self, number: int) -> bool:
        return number <= self.seen or number in self._ahead

    @property
    def whole(self) -> bool:
        """Return whether the index is complete: no change before the newest received one is missing."""
        return not self._ahead

    def accept(
        self,
        number: int,
        changes: Iterable[ProviderChange],
        trees: Mapping[str, Tree] | None = None,
        aggregates: Iterable[Aggregate] = (),
        cells: Iterable[RegisteredCell] = (),
    ) -> Collection[str]:
        """Apply the commit with this change number to the index; `trees` are the trees that it created or
        reshaped, by root. Return the roots of the changed trees. Commits may arrive in any order, and
        repeatedly.
        """
        touched: dict[str, None] = {}
        if self.knows(number):
            return touched.keys()
        facts: tuple[Aggregate | RegisteredCell, ...] = (*aggregates, *cells)
        for fact in facts:
            self.describe(fact, number)
        trees = trees or {}
        for tree in trees.values():
            touched[tree.root] = None
            uuids = (provider.uuid for provider in tree.providers)
            known = [self.rows[uuid].root for uuid in uuids if uuid in self.rows]
            touched.update(dict.fromkeys(known))
            self.put(tree, number)
            self._gives(tree.root, *known)
        for change in changes:
            touched[change.root] = None
            if change.root not in trees and (self.use(change, number) or change.reshaped):
                self._gives(change.root)
        self._ahead.add(number)
        if self.seen + 1 not in self._ahead:
            return touched.keys()
        while self.seen + 1 in self._ahead:
            self.seen += 1
            self._ahead.remove(self.seen)
        if self._described_at:
            self._described_at = {key: at for key, at in self._described_at.items() if at > self.seen}
        if self._early:
            self._early = {key: known for key, known in self._early.items() if known[1] > self.seen}
        if self._put_at:
            self._put_at = {root: put for root, put in self._put_at.items() if put > self.seen}
        return touched.keys()

    def describe(self, fact: Aggregate | RegisteredCell, number: int) -> None:
        facts: dict[str, Any] = self.aggregate_facts if isinstance(fact, Aggregate) else self.cell_facts
        was: Aggregate | None = self.aggregate_facts.get(fact.id) if isinstance(fact, Aggregate) else None
        name = fact.id if isinstance(fact, Aggregate) else fact.name
        if number < self._described_at.get((type(fact), name), 0):
            return
        if number > self.seen:
            self._described_at[type(fact), name] = number
        if fact.gone:
            facts.pop(name, None)
        else:
            facts[name] = fact
        if isinstance(fact, Aggregate):
            self._relabel_members(was, fact)

    def use(self, change: ProviderChange, number: int) -> bool:
        """Set the used amounts of a provider from the commit `number`, unless the index has a later state of
        the provider; return whether the provider's free capacity may have increased.
        """
        row = self.rows.get(change.provider)
        if row is None:
            known = self._early.get(change.provider)
            if number > self.seen and (known is None or known[1] < number):
                self._early[change.provider] = change, number
            return True
        if row.number >= number:
            return False
        row.number = number
        row.generation = change.generation
        return self._set_free(row, change.used)

    def _gives(self, *roots: str) -> None:
        self.gives += 1
        for root in roots:
            self.gave[root] = self.gives

    def put(self, tree: Tree, number: int) -> None:
        """Store a provider tree in the index in the state after the commit `number`, unless the index has a
        later state: create, change and delete the rows of its providers.
        """
        if number < self._put_at.get(tree.root, 0):
            return
        if number > self.seen:  # not needed if `number` is up to `seen`: no older change can arrive any more
            self._put_at[tree.root] = number
        for preserve in self.snapshots:
            preserve(tree.root)
            for provider in tree.providers:
                if (row := self.rows.get(provider.uuid)) is not None:
                    preserve(row.root)
        # Leave out providers that a later change has moved to another tree.
        providers = [
            provider
            for provider in tree.providers
            if (row := self.rows.get(provider.uuid)) is None or row.root == tree.root or row.shaped <= number
        ]
        provider_ids = {provider.uuid for provider in providers}
        for uuid in self.trees.pop(tree.root, ()):
            row = self.rows.get(uuid)
            if uuid not in provider_ids and row is not None and row.root == tree.root:
                if row.number > number:  # a later change is applied: the provider moves to another tree
                    known = ProviderChange(uuid, row.root, row.generation, dict(row.used))
                    self._early[uuid] = known, row.number
                self._drop(row)
        for provider in providers:
            row = self.rows.get(provider.uuid)
            if row is not None and row.root != tree.root:  # the provider moves here from another tree
                left = tuple(uuid for uuid in self.trees.pop(row.root, ()) if uuid != row.uuid)
                if left:
                    self.trees[row.root] = left
        if provider_ids:
            self.trees[tree.root] = tuple([provider.uuid for provider in providers])
        for provider in providers:
            self._put(tree, provider, number)

    def _put(self, tree: Tree, provider: ProviderState, number: int) -> None:
        row = self.rows.get(provider.uuid)
        later = row if row is not None and row.number > number else None  # the row includes later claims
        if row is None or not self._is(row, tree, provider):
            row = self._shape(row, tree, provider)
        row.shaped = number
        if later is None:
            row.number, row.generation = number, provider.generation
            self._set_free(row, provider.used)
        elif later is not row:
            row.number, row.generation = later.number, later.generation
            self._set_free(row, later.used)
        else:
            return
        if provider.uuid in self._early:
            self.use(*self._early[provider.uuid])

    def _is(self, row: Row, tree: Tree, provider: ProviderState) -> bool:
        return (
            row.shape == provider.shape
            and row.root == tree.root
            and row.parent == provider.parent
            and row.host == (tree.host or provider.name)
            and (row.cell, row.agent, row.zone) == (tree.cell, tree.agent, tree.zone)
            and row.traits == provider.traits
            and row.aggregates == provider.aggregates
            and row.inventories == provider.inventories
        )


Tops = Amounts | Sums


class Snapshot:
    """The provider trees as they were when a search began, but always with the newest free amounts. While the
    `with` block of `held` runs, the index calls `save` with the root of a tree before it changes the tree.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.sharers: Mapping[str, set[int]] = index.sharers
        self._trees: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, Row] = {}
        self.kept_at: dict[int, Row] = {}  # position → state of a changed row before its change

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the `with` block runs, this snapshot does not change with the index, so that a search in the
        block may pause.
        """
        self.sharers = {uuid: set(positions) for uuid, positions in self.index.sharers.items()}
        self.index.snapshots.append(self.save)
        try:
            yield
        finally:
            self.index.snapshots.remove(self.save)

    def save(self, root: str) -> None:
        if root in self._trees:
            return
        self._trees[root] = self.index.trees.get(root, ())
        for uuid in self._trees[root]:
            row = self._rows.setdefault(uuid, self.index.rows[uuid])
            self.kept_at.setdefault(row.position, row)

    def rows_of(self, root: str) -> list[Row]:
        """Return the rows of the index for a provider tree, the root first; [] if there is no such root."""
        preserved, rows = self._rows, self.index.rows
        return [self.alter(preserved.get(uuid) or rows[uuid]) for uuid in self.members(root)]

    def members(self, root: str) -> tuple[str, ...]:
        preserved = self._trees.get(root)
        return self.index.trees.get(root, ()) if preserved is None else preserved

    def top(self, name: str) -> Tops:
        """Return, for each row of the index, the largest amount of this resource class that a single claim
        can get now: the free amount, at most `max_unit`."""
        return self.index.classes[name].top

    def gives(self, name: str, asked: int) -> Bools:
        """Return a new array: for each provider of the index, whether one claim can get the amount `asked` of
        the resource class `name` now.
        """
        met: Bools = self.top(name)[: self.index.high] >= asked
        return met

    def left(self, name: str) -> Sums:
        """Return an array of the index: the free amount of a resource class in each row (may be below 0). Do
        not write to it."""
        return self.index.classes[name].left

    def free_of_trees(self, name: str) -> Sums:
        """Return an array with the free amount of a resource class in each whole tree, at the root's row of
        the index; valid until the index changes. In a tree of several providers, an overcommitted provider
        counts as 0. Do not write to the array.
        """
        index, high = self.index, self.index.high
        kind = index.classes.get(name)
        if kind is None:
            return np.zeros(high)
        left = self.left(name)[:high]
        if not index.children:
            return left
        several = np.zeros(high, np.bool_)
        several[index.root_of[np.flatnonzero(index.below[:high])]] = True
        rows = np.flatnonzero(kind.there[:high])
        amounts = left[rows]
        overcommitted = several[index.root_of[rows]]
        return index.sum_of_trees(rows, np.where(overcommitted, np.maximum(amounts, 0), amounts))

    def row_at(self, position: int) -> Row | None:
        row = self.kept_at.get(position) or self.index.at[position]
        return None if row is None else self.alter(row)

    def find(self, uuid: str) -> Row | None:
        row = self._rows.get(uuid) or self.index.rows.get(uuid)
        return None if row is None else self.alter(row)

    def alter(self, row: Row) -> Row:
        """Return a row of the index as this snapshot shows it; subclasses may count tentative choices as used
        amounts.
        """
        return row
