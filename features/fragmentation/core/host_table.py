"""The free amounts of all hosts' providers as one array that follows changes: a slot for each host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Floats, Ints, ProviderArrays

MOST_PROVIDERS = 64  # of a host; further ones are ignored
NO_HOST = -1


@dataclass(eq=False)
class Layout:
    """The providers of hosts: `rows[slot, n]` is the row of the n-th provider in placement's index, the
    root first; NO_HOST if the host has fewer.
    """

    version: object
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
        return cls(providers.version, slot_at, rows)


class HostTable:
    """`free[slot, n, c]` is the free amount of class c of the n-th provider of a host."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.classes: tuple[str, ...] = ()
        self.free: Floats = np.zeros((0, 1, 0))
        self.whole: Floats = np.zeros((0, 1, 0))
        self.versions: Ints = np.zeros(0, np.intp)  # by slot: grows when the host changes
        self.changes = 0
        self.rebuilt = 0  # counts new layouts, after which slots mean other hosts
        self._known: dict[str, Floats] = {}  # class → the array of the index at the last call of `follow`

    def follow(self, providers: ProviderArrays, classes: Sequence[str]) -> None:
        """Take over the present amounts of the given classes; `versions` has the hosts that changed."""
        new = tuple(sorted({*self.classes, *classes}))
        if self.layout is None or self.layout.version != providers.version or new != self.classes:
            self._begin(providers, new)
            return
        changed = np.zeros(len(providers.host), np.bool_)
        for name, known in self._known.items():
            now = _column(providers, name)
            differs = now != known
            if differs.any():
                changed |= differs
                self._known[name] = now.copy()
        if not changed.any():
            return
        roots = providers.host[np.flatnonzero(changed)]
        slots = np.unique(self.layout.slot_at[roots[roots >= 0]])
        slots = slots[slots >= 0]
        self.changes += 1
        self.versions[slots] = self.changes
        for number, name in enumerate(self.classes):
            self.free[slots, :, number] = self._gathered(self._known[name], slots)

    def _begin(self, providers: ProviderArrays, classes: tuple[str, ...]) -> None:
        self.layout = layout = Layout.of(providers)
        self.classes = classes
        hosts, most = layout.rows.shape
        every = np.arange(hosts)
        self._known = {name: _column(providers, name).copy() for name in classes}
        self.free = np.zeros((hosts, most, len(classes)))
        self.whole = np.zeros((hosts, most, len(classes)))
        for number, name in enumerate(classes):
            self.free[:, :, number] = self._gathered(self._known[name], every)
            self.whole[:, :, number] = self._gathered(_column(providers, name, whole=True), every)
        self.changes += 1
        self.rebuilt += 1
        self.versions = np.full(hosts, self.changes, np.intp)

    def _gathered(self, column: Floats, slots: Ints) -> Floats:
        assert self.layout is not None
        rows = self.layout.rows[slots]
        found: Floats = np.where(rows >= 0, column[rows], 0.0)
        return np.maximum(found, 0.0, out=found)

    def having(self, mask: Bools) -> Bools:
        """Return, for each provider of each host, whether it is in a mask of rows of the index."""
        assert self.layout is not None
        found: Bools = (self.layout.rows >= 0) & mask[self.layout.rows]
        return found


def _column(providers: ProviderArrays, name: str, *, whole: bool = False) -> Floats:
    if name not in providers.classes():
        return np.zeros(len(providers.host))
    return providers.capacity(name) if whole else providers.free(name)
