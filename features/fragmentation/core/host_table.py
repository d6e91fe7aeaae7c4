"""The free amounts of all hosts' providers as arrays that follow changes: a slot for each host.

Slots are sorted by the number of a host's providers, so that hosts with about equally many providers share
arrays (`SlotArrays`), and a host with many devices does not widen those of the others.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from bus.candidates import Bools, Floats, Ints, ProviderArrays

MOST_DEVICES = 64  # of a host; further ones are ignored
MOST_TRAITS = 256  # that are kept at once
LOGGED = 32  # changes whose hosts are kept; for more, comparing all hosts is faster
NO_HOST = -1


@dataclass(frozen=True, eq=False)
class Layout:
    """The providers of hosts: `rows[k][slot, n]` is the row of the n-th provider in placement's index, the
    root first; NO_HOST if the host has fewer. The slots of group k of hosts begin at `first[k]`.
    """

    known: object
    slot_at: Ints  # by row of a root: its slot
    first: Ints
    rows: tuple[Ints, ...]

    @classmethod
    def of(cls, providers: ProviderArrays) -> "Layout":
        host = providers.host
        used = np.flatnonzero(host >= 0)
        roots = used[host[used] == used]
        children = used[host[used] != used]
        of_root = np.bincount(host[children], minlength=len(host))[roots]
        sizes = np.ceil(np.log2(np.maximum(np.minimum(of_root, MOST_DEVICES), 0.5))).astype(np.intp)
        order = np.argsort(sizes, kind="stable")
        roots, sizes = roots[order], sizes[order]
        slot_at = np.full(len(host), NO_HOST, np.intp)
        slot_at[roots] = np.arange(roots.size)
        children = children[slot_at[host[children]] >= 0]
        slots = slot_at[host[children]]
        order = np.argsort(slots, kind="stable")
        children, slots = children[order], slots[order]
        # the number of each child among the children of its host
        nth = np.arange(slots.size) - np.searchsorted(slots, slots, side="left") + 1
        known = nth <= MOST_DEVICES
        children, slots, nth = children[known], slots[known], nth[known]
        first = np.flatnonzero(np.diff(sizes, prepend=-2))
        rows = []
        for low, high in zip(first, (*first[1:], roots.size), strict=True):
            here = (slots >= low) & (slots < high)
            of_group = np.full((high - low, int(nth[here].max(initial=0)) + 1), NO_HOST, np.intp)
            of_group[:, 0] = roots[low:high]
            of_group[slots[here] - low, nth[here]] = children[here]
            rows.append(of_group)
        return cls(providers.layout, slot_at, first, tuple(rows))

    @cached_property
    def is_lone(self) -> bool:
        """Return whether each host is one provider. Then slots have the order of the rows of the index."""
        return len(self.rows) == 1 and self.rows[0].shape[1] == 1

    def by_group(self, slots: Ints) -> Iterator[tuple[int, Any, Ints]]:
        """Yield the number of each group with some of the slots, which of them are in it, and their numbers
        there.
        """
        if len(self.rows) == 1:
            yield 0, slice(None), slots
            return
        group_of = np.searchsorted(self.first, slots, side="right") - 1
        for group in np.unique(group_of).tolist():
            here = np.flatnonzero(group_of == group)
            yield group, here, slots[here] - self.first[group]


@dataclass(eq=False)
class SlotArrays:
    """The amounts of one group of hosts: `free[h, n, c]` is what the n-th provider has free of class c."""

    rows: Ints
    free: Floats
    whole: Floats  # capacities
    traits: dict[str, Bools]  # trait → [h, n]: whether a provider has it
    shared: Bools  # [h, c]: whether a sharing provider supplies a class of which the host has nothing


class HostTable:
    """The free amounts and capacities of hosts, by slot."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.classes: tuple[str, ...] = ()
        self.number: dict[str, int] = {}  # class → its number in `classes`
        self.groups: list[SlotArrays] = []
        self.total_free: Floats = np.zeros(0)  # by class, of all hosts
        self.total_whole: Floats = np.zeros(0)
        self.versions: Ints = np.zeros(0, np.intp)  # by slot: grows when the host changes
        self.rebuilt = 0  # counts new layouts, after which slots mean other hosts
        self.reshaped = 0  # counts changes of capacities and traits
        self.changes = 0  # counts the calls of `follow` that found changed hosts
        self.changed_hosts = 0  # counts the hosts that they found
        self._log: deque[Ints] = deque(maxlen=LOGGED)  # the hosts of the latest changes
        self._shaped: object = None
        self._uses = 0
        # [row, c]: amounts in the rows of the index at the last call of `follow`
        self._free: Floats = np.zeros((0, 0))
        self._whole: Floats = np.zeros((0, 0))
        self._masks: dict[str, Bools] = {}  # trait → its rows, likewise
        self._pooled: dict[str, Bools] = {}  # class → likewise: the hosts that can use a sharing provider

    def follow(self, providers: ProviderArrays, classes: Collection[str], traits: Collection[str]) -> None:
        """Take over the present amounts of those of the given classes that any provider has, and which
        providers have the given traits.
        """
        wanted = tuple(sorted({*self.classes, *filter(providers.any_of, classes)}))
        if (
            self.layout is None
            or self.layout.known != providers.layout
            or wanted != self.classes
            or len(self._masks) > MOST_TRAITS + len(traits)
        ):
            self._begin(providers, tuple(filter(providers.any_of, wanted)), traits)
            return
        for trait in traits:
            if trait not in self._masks:
                self._masks[trait] = providers.has(trait).copy()
                for group in self.groups:
                    group.traits[trait] = _having(group.rows, self._masks[trait])
        self.follow_amounts(providers)

    def follow_amounts(self, providers: ProviderArrays) -> None:
        """Take over the present amounts of the classes, and who has the traits, of the last call of `follow`.
        The providers of hosts must be those of that time.
        """
        reshaped = self._shaped != providers.shaped
        rows = None if reshaped else providers.used_since(self._uses)
        self._uses = providers.uses
        changed = self._copy_free(providers, np.arange(len(providers.host)) if rows is None else rows)
        if reshaped:
            changed = np.union1d(changed, self._reshape(providers))
        if changed.size:
            self._take_over(self._slots(providers, changed))

    def changed_since(self, change: int) -> Ints:
        """Return the slots of the hosts that changed after a change, given its number; some several times."""
        several = self.changes - change
        if several > len(self._log):
            return np.flatnonzero(self.versions > change)
        latest = list(islice(reversed(self._log), several))
        return np.concatenate(latest) if latest else np.zeros(0, np.intp)

    def _copy_free(self, providers: ProviderArrays, rows: Ints) -> Ints:
        """Copy the present free amounts of some rows, and return the rows whose amounts have changed."""
        if not rows.size:
            return rows
        now = np.array([_column(providers, name).take(rows) for name in self.classes]).T
        differs = (now != self._free.take(rows, axis=0)).any(axis=1)
        self._free[rows] = now
        return rows.compress(differs)

    def _reshape(self, providers: ProviderArrays) -> Ints:
        """Copy the present capacities and traits, and return the rows in which they have changed."""
        self._shaped = providers.shaped
        whole = _columns(providers, self.classes, whole=True)
        reshaped: Bools = (whole != self._whole).any(axis=1)
        self._whole = whole
        for trait, mask in self._masks.items():
            self._compare(self._masks, trait, mask, providers.has(trait), reshaped)
        for name, pooled in self._pooled.items():
            self._compare(self._pooled, name, pooled, providers.shared(name), reshaped)
        if not reshaped.any():
            return np.zeros(0, np.intp)
        self.reshaped += 1
        for group in self.groups:
            group.whole = _gathered(self._whole, group.rows)
            group.shared = self._shared(group)
            group.traits = {trait: _having(group.rows, mask) for trait, mask in self._masks.items()}
        self.total_whole = self._total(group.whole for group in self.groups)
        return np.flatnonzero(reshaped)

    def _compare(self, columns: dict[str, Any], name: str, known: Any, now: Any, changed: Bools) -> None:
        """Mark the rows with other values than at the last call, and remember the present ones."""
        differs = now != known
        if differs.any():
            changed |= differs
            columns[name] = now.copy()

    def _slots(self, providers: ProviderArrays, rows: Ints) -> Ints:
        assert self.layout is not None
        if self.layout.is_lone:
            slots = self.layout.slot_at.take(rows)
            return slots.compress(slots >= 0)
        roots = providers.host.take(rows)
        slots = self.layout.slot_at.take(roots[roots >= 0])
        slots = np.sort(slots[slots >= 0])
        # as np.unique, which takes longer for the few hosts of one choice
        return slots[np.diff(slots, prepend=NO_HOST) > 0]

    def _take_over(self, slots: Ints) -> None:
        """Take over the present free amounts of some hosts."""
        assert self.layout is not None
        self.changes += 1
        self.changed_hosts += slots.size
        self.versions[slots] = self.changes
        self._log.append(slots)
        for number, _, hosts in self.layout.by_group(slots):
            group = self.groups[number]
            now = _gathered(self._free, group.rows[hosts])
            self.total_free += (now - group.free[hosts]).sum(axis=(0, 1))
            group.free[hosts] = now

    def _begin(self, providers: ProviderArrays, classes: tuple[str, ...], traits: Collection[str]) -> None:
        self.layout = layout = Layout.of(providers)
        self.classes, self.number = classes, {name: c for c, name in enumerate(classes)}
        self._shaped = providers.shaped
        self._uses = providers.uses
        self._free = _columns(providers, classes)
        self._whole = _columns(providers, classes, whole=True)
        self._masks = {trait: providers.has(trait).copy() for trait in sorted(traits)}
        self._pooled = {name: providers.shared(name) for name in classes}
        self.groups = [
            SlotArrays(
                rows=rows,
                free=_gathered(self._free, rows),
                whole=_gathered(self._whole, rows),
                traits={trait: _having(rows, mask) for trait, mask in self._masks.items()},
                shared=np.zeros((len(rows), len(classes)), np.bool_),
            )
            for rows in layout.rows
        ]
        for group in self.groups:
            group.shared = self._shared(group)
        self.total_free = self._total(group.free for group in self.groups)
        self.total_whole = self._total(group.whole for group in self.groups)
        self.changes += 1
        self.rebuilt += 1
        self._log.clear()
        self.versions = np.full(sum(map(len, layout.rows)), self.changes, np.intp)

    def balances(self, rows: Ints) -> Floats:
        """Return the free amounts of providers, which are negative if they are overcommitted."""
        return _of_providers(self._free, rows)

    def _total(self, amounts: Iterable[Floats]) -> Floats:
        """Return the sum of each class over all hosts."""
        return sum((of_group.sum(axis=(0, 1)) for of_group in amounts), np.zeros(len(self.classes)))

    def _shared(self, group: SlotArrays) -> Bools:
        """Return which classes sharing providers supply to the hosts of a group, which have none of them."""
        shared: Bools = np.all(group.whole <= 0, axis=1)
        for number, name in enumerate(self.classes):
            shared[:, number] &= self._pooled[name][group.rows[:, 0]]
        return shared


def _of_providers(amounts: Floats, rows: Ints) -> Floats:
    found: Floats = amounts[rows]
    found[rows < 0] = 0.0
    return found


def _gathered(amounts: Floats, rows: Ints) -> Floats:
    found = _of_providers(amounts, rows)
    return np.maximum(found, 0.0, out=found)


def _having(rows: Ints, mask: Bools) -> Bools:
    """Return which providers of hosts have a trait, given which rows of the index have it."""
    found: Bools = (rows >= 0) & mask[rows]
    return found


def _columns(providers: ProviderArrays, classes: Sequence[str], *, whole: bool = False) -> Floats:
    found = np.zeros((len(providers.host), len(classes)))
    for number, name in enumerate(classes):
        found[:, number] = _column(providers, name, whole=whole)
    return found


def _column(providers: ProviderArrays, name: str, *, whole: bool = False) -> Floats:
    if not providers.any_of(name):
        return np.zeros(len(providers.host))
    return providers.capacity(name) if whole else providers.free(name)
