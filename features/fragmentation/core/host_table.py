"""The free amounts of all hosts' providers as one array that follows changes: a slot for each host."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from bus.candidates import Bools, Floats, Ints, ProviderArrays

MOST_PROVIDERS = 64  # of a host; further ones are ignored
MOST_TRAITS = 256  # that are kept at once
NO_HOST = -1


@dataclass(eq=False)
class Layout:
    """The providers of hosts: `rows[slot, n]` is the row of the n-th provider in placement's index, the
    root first; NO_HOST if the host has fewer.
    """

    known: object
    slot_at: Ints  # by row of a root: its slot
    rows: Ints

    @classmethod
    def of(cls, providers: ProviderArrays) -> "Layout":
        host = providers.host
        used = np.flatnonzero(host >= 0)
        roots = used[host[used] == used]
        slot_at = np.full(len(host), NO_HOST, np.intp)
        slot_at[roots] = np.arange(roots.size)
        children = used[host[used] != used]
        children = children[slot_at[host[children]] >= 0]
        slots = slot_at[host[children]]
        order = np.argsort(slots, kind="stable")
        children, slots = children[order], slots[order]
        # the number of each child among the children of its host
        first = np.searchsorted(slots, slots, side="left")
        nth = np.arange(slots.size) - first + 1
        few = nth < MOST_PROVIDERS
        children, slots, nth = children[few], slots[few], nth[few]
        rows = np.full((roots.size, int(nth.max(initial=0)) + 1), NO_HOST, np.intp)
        rows[:, 0] = roots
        rows[slots, nth] = children
        return cls(providers.layout, slot_at, rows)


class HostTable:
    """The free amounts and capacities of hosts. Each host has a slot: its number in these arrays.

    `free[slot, n, c]` is what the n-th provider of a host has free of resource class c; n is 0 for the root.
    `whole` are the capacities.
    """

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.classes: tuple[str, ...] = ()
        self.traits: dict[str, Bools] = {}  # trait → [slot, n]: whether a provider has it
        self.free: Floats = np.zeros((0, 1, 0))
        self.whole: Floats = np.zeros((0, 1, 0))
        self.versions: Ints = np.zeros(0, np.intp)  # by slot: grows when the host changes
        self.rebuilt = 0  # counts new layouts, after which slots mean other hosts
        self.reshaped = 0  # counts changes of capacities and traits
        self._changes = 0
        self._shaped: object = None
        self._free: dict[str, Floats] = {}  # class → the array of the index at the last call of `follow`
        self._whole: dict[str, Floats] = {}
        self._masks: dict[str, Bools] = {}  # trait → likewise

    def follow(self, providers: ProviderArrays, classes: Collection[str], traits: Collection[str]) -> None:
        """Take over the present amounts of the given classes, and which providers have the given traits."""
        wanted = tuple(sorted({*self.classes, *classes}))
        if (
            self.layout is None
            or self.layout.known != providers.layout
            or wanted != self.classes
            or len(self.traits) > MOST_TRAITS
        ):
            self._begin(providers, wanted, traits)
            return
        for trait in traits:
            if trait not in self._masks:
                self._masks[trait] = providers.has(trait).copy()
                self.traits[trait] = self._having(self._masks[trait])
        changed = np.zeros(len(providers.host), np.bool_)
        for name, known in self._free.items():
            self._compare(self._free, name, known, _column(providers, name), changed)
        reshaped = np.zeros(len(providers.host), np.bool_)
        if self._shaped != providers.shaped:
            self._shaped = providers.shaped
            for name, known in self._whole.items():
                self._compare(self._whole, name, known, _column(providers, name, whole=True), reshaped)
            for trait, mask in self._masks.items():
                self._compare(self._masks, trait, mask, providers.has(trait), reshaped)
        if reshaped.any():
            self.reshaped += 1
            changed |= reshaped
            slots = self._slots(providers, reshaped)
            for number, name in enumerate(self.classes):
                self.whole[slots, :, number] = self._gathered(self._whole[name], slots)
            for trait, mask in self._masks.items():
                self.traits[trait] = self._having(mask)
        if changed.any():
            slots = self._slots(providers, changed)
            self._changes += 1
            self.versions[slots] = self._changes
            for number, name in enumerate(self.classes):
                self.free[slots, :, number] = self._gathered(self._free[name], slots)

    def _compare(self, columns: dict[str, Any], name: str, known: Any, now: Any, changed: Bools) -> None:
        """Mark the rows with other values than at the last call, and remember the present ones."""
        differs = now != known
        if differs.any():
            changed |= differs
            columns[name] = now.copy()

    def _slots(self, providers: ProviderArrays, rows: Bools) -> Ints:
        assert self.layout is not None
        roots = providers.host[np.flatnonzero(rows)]
        slots = np.unique(self.layout.slot_at[roots[roots >= 0]])
        return slots[slots >= 0]

    def _begin(self, providers: ProviderArrays, classes: tuple[str, ...], traits: Collection[str]) -> None:
        self.layout = layout = Layout.of(providers)
        self.classes = classes
        hosts, most = layout.rows.shape
        every = np.arange(hosts)
        self._shaped = providers.shaped
        self._free = {name: _column(providers, name).copy() for name in classes}
        self._whole = {name: _column(providers, name, whole=True).copy() for name in classes}
        self._masks = {trait: providers.has(trait).copy() for trait in sorted(traits)}
        self.free = np.zeros((hosts, most, len(classes)))
        self.whole = np.zeros((hosts, most, len(classes)))
        for number, name in enumerate(classes):
            self.free[:, :, number] = self._gathered(self._free[name], every)
            self.whole[:, :, number] = self._gathered(self._whole[name], every)
        self.traits = {trait: self._having(mask) for trait, mask in self._masks.items()}
        self._changes += 1
        self.rebuilt += 1
        self.versions = np.full(hosts, self._changes, np.intp)

    def _gathered(self, column: Floats, slots: Ints) -> Floats:
        assert self.layout is not None
        rows = self.layout.rows[slots]
        found: Floats = np.where(rows >= 0, column[rows], 0.0)
        return np.maximum(found, 0.0, out=found)

    def _having(self, mask: Bools) -> Bools:
        """Return which providers of hosts have a trait, given which rows of the index have it."""
        assert self.layout is not None
        found: Bools = (self.layout.rows >= 0) & mask[self.layout.rows]
        return found


def _column(providers: ProviderArrays, name: str, *, whole: bool = False) -> Floats:
    if name not in providers.classes():
        return np.zeros(len(providers.host))
    return providers.capacity(name) if whole else providers.free(name)
