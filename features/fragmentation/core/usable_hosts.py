"""Values hosts as they would be without some instances and with others, for planners of moves."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Floats, Ints, ProviderArrays
from features.fragmentation.core.usable import AT_ONCE, ShapeTable, UsableParts
from features.fragmentation.core.values import HostValues
from scheduler_worker.core.extension import AlteredHost, Held, Shape, UsualShapes

NOT_FITTING = -np.inf


@dataclass(eq=False)
class _Supposed:
    """Some hosts of one group as they would be."""

    number: int  # of the group
    hosts: Ints  # their numbers in the group
    free: Floats  # negative amounts: overcommitted
    parts: UsableParts
    fits: Bools  # whether all added instances fit

    def measured(self) -> UsableParts:
        return self.parts.with_free(np.maximum(self.free, 0.0))


class UsableHosts:
    """A copy of the hosts of one moment; implements `UsableCapacity`."""

    def __init__(self, providers: ProviderArrays, usual: UsualShapes, shapes: Collection[Shape]) -> None:
        self._values = values = HostValues(0.0)
        values.follow(providers, usual, *shapes)
        assert values.table.layout is not None and values.shapes is not None
        self._layout = values.table.layout
        self._shapes: ShapeTable = values.shapes
        self._balances = [values.table.balances(group.rows) for group in values.table.groups]

    def values(self, hosts: Sequence[AlteredHost]) -> Floats:
        found = np.zeros(len(hosts))
        for those, supposed in self._supposed(hosts):
            of_these = self._values.values_of(supposed.measured())
            found[those] = np.where(supposed.fits, of_these, NOT_FITTING)
        return found

    def costs(self, shape: Shape) -> Floats:
        by_slot = np.full(len(self._values.table.versions), np.inf)
        for number, first in enumerate(self._layout.first.tolist()):
            for some in self._values.parts[number].portions():
                supposed = self._at(number, some)
                before = self._values.values_of(supposed.measured())
                after = self._add(shape, supposed, np.arange(len(some)))
                by_slot[first + some] = np.where(supposed.fits, before - after, np.inf)
        return self._by_row(by_slot, np.inf)

    def wasted(self) -> Floats:
        by_slot = np.zeros(len(self._values.table.versions))
        for number, first in enumerate(self._layout.first.tolist()):
            hosts = np.arange(len(self._layout.rows[number]))
            parts = self._at(number, hosts).measured()
            free = parts.free.sum(axis=1) @ self._shapes.scale
            by_slot[first + hosts] = free - self._values.values_of(parts)
        return self._by_row(by_slot, 0.0)

    def instances(self, hosts: Sequence[AlteredHost]) -> Floats:
        found, weights = np.zeros(len(hosts)), self._shapes.weights
        total = max(float(weights.sum()), 1e-9)
        for those, supposed in self._supposed(hosts):
            parts = supposed.measured()
            found[those] = weights @ self._shapes.copies(parts) / total
        return found

    def _by_row(self, by_slot: Floats, otherwise: float) -> Floats:
        slots = self._layout.slot_at
        found: Floats = np.full(len(slots), otherwise)
        found[slots >= 0] = by_slot[slots[slots >= 0]]
        return found

    def _at(self, number: int, hosts: Ints) -> _Supposed:
        parts = self._values.parts[number].of(hosts)
        return _Supposed(number, hosts, self._balances[number][hosts], parts, np.ones(len(hosts), np.bool_))

    def _supposed(self, hosts: Sequence[AlteredHost]) -> Iterator[tuple[Ints, _Supposed]]:
        """Yield, for each group of hosts, the indices of those in it, and the hosts as they would be."""
        slots = self._layout.slot_at[[each.position for each in hosts]]
        for number, here, of_group in self._layout.by_group(slots):
            those = np.arange(len(hosts))[here]
            for low in range(0, len(those), AT_ONCE):
                some = those[low : low + AT_ONCE]
                supposed = self._at(number, of_group[low : low + AT_ONCE])
                self._change(supposed, [hosts[each] for each in some.tolist()])
                yield some, supposed

    def _change(self, supposed: _Supposed, hosts: Sequence[AlteredHost]) -> None:
        rows = self._layout.rows[supposed.number][supposed.hosts]
        for at, host in enumerate(hosts):
            for held in host.without:
                self._release(supposed.free[at], rows[at], held)
        for nth in range(max((len(host.added) for host in hosts), default=0)):
            by_shape: dict[Shape, list[int]] = {}
            for at, host in enumerate(hosts):
                if nth < len(host.added):
                    by_shape.setdefault(host.added[nth], []).append(at)
            for shape, those in by_shape.items():
                self._add(shape, supposed, np.array(those))

    def _release(self, free: Floats, rows: Ints, held: Held) -> None:
        number = self._values.table.number
        for row, name, amount in held:
            if name in number:
                free[rows == row, number[name]] += amount

    def _add(self, shape: Shape, supposed: _Supposed, those: Ints) -> Floats:
        """Add an instance of a shape to some of the hosts, each in its best way, and return their values."""
        free, parts = supposed.free[those], supposed.parts.of(those)
        way_of, taken = self._values.ways(shape, supposed.number, supposed.hosts[those], free)
        after = free[way_of] - taken
        fits = ((after >= 0) | (taken <= 0)).all(axis=(1, 2))
        way_of, after = way_of[fits], after[fits]
        values = self._values.values_of(parts.of(way_of).with_free(np.maximum(after, 0.0)))
        order = np.lexsort((-values, way_of))
        first = order[np.diff(way_of[order], prepend=-1) > 0]  # the best way of each host
        found = np.full(len(those), NOT_FITTING)
        found[way_of[first]] = values[first]
        supposed.free[those[way_of[first]]] = after[first]
        supposed.fits[those[found == NOT_FITTING]] = False
        return found
