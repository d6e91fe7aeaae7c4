"""The scarcity of each usual shape: from 0 (many more copies fit than will be missed) to 1.

A lost copy of a shape costs nothing while instances could use about as much again as all instances use now:
until then, capacity returns. So a shape begins to be scarce when the share of its copies that still fits is
less than LASTS × the used share of the cloud, and is scarce when it is half of that. Used is what is used of
the scarcest class that a tenth of the usual requests ask for.

A shape with groups for single providers, such as GPUs or NUMA nodes, is always scarce. A device has no
neighbours, so spreading gains nothing; and of hosts that are cut in such parts few fit large shapes.
"""

from collections.abc import Sequence

import numpy as np

from bus.candidates import Bools, Floats
from features.fragmentation.core.host_table import HostTable
from features.fragmentation.core.usable import ShapeTable, UsableParts
from scheduler_worker.core.extension import Shape, UsualShapes

LASTS = 1.3  # how often what is used now must fit again, so that a shape is not scarce
STEEPNESS = 2.0  # a shape is scarce when the part 1 ÷ STEEPNESS of that is missing
COMMON = 0.1  # part of the usual requests that ask for a common class
RECOUNTED = 32  # copies are counted again when one of so many hosts has changed
CHANGED = 0.05  # part of the demand whose scarcity must have changed until hosts are valued anew
OF_NETWORKS = "NET_"  # begin of the classes of which the ports of many instances share a provider


def needs_parts(shape: Shape) -> bool:
    """Return whether a shape has a request group for one device or NUMA node."""
    return any(
        not group.is_split and not any(name.startswith(OF_NETWORKS) for name, _ in group.resources)
        for group in shape.groups
    )


class Scarcity:
    """The scarcity of each usual shape, which follows the free amounts of all hosts."""

    def __init__(self, usual: UsualShapes, shapes: ShapeTable, table: HostTable) -> None:
        self._usual = usual
        self._shapes = shapes
        self._table = table
        self._always = np.array([needs_parts(shape) for shape in usual.shapes], np.bool_)
        self._common = self._common_classes()
        # by shape: its weight in `overall`, which is 0 if it asks for a class that is not common
        common = {name for name, c in table.number.items() if self._common[c]}
        self._weights = shapes.weights * [shape.amounts.keys() <= common for shape in usual.shapes]
        self._parts: Sequence[UsableParts] = ()
        self._copies: list[Floats] = []  # [s, h] by group of hosts
        self.fitting: Floats = np.zeros(0)  # by shape: copies that fit now
        self._possible: Floats = np.zeros(0)  # by shape: copies that fit on empty hosts
        self._counted = 0  # the last change of hosts that is counted
        self._counted_hosts = 0
        self.of_shapes: Floats = np.zeros(len(usual.shapes))  # as hosts are valued now
        self.sentence = ""  # which shape is scarcest
        self.overall = 0.0  # the mean over shapes of common classes, by how much is requested

    def _common_classes(self) -> Bools:
        """Return which classes a good part of the usual requests ask for."""
        asked = np.zeros(len(self._table.classes))
        for shape, part in zip(self._usual.shapes, self._usual.parts, strict=True):
            for name in shape.amounts:
                if name in self._table.number:
                    asked[self._table.number[name]] += part
        return asked >= COMMON

    def begin(self, parts: Sequence[UsableParts]) -> None:
        """Count the copies on all hosts, given their parts by group of hosts."""
        self._parts, table = parts, self._table
        self._possible = np.zeros(len(self._usual.shapes))
        self._copies = [np.zeros((len(self._usual.shapes), len(of_group.free))) for of_group in parts]
        for of_group, copies in zip(parts, self._copies, strict=True):
            for some in of_group.portions():
                of_some = of_group.of(some)
                copies[:, some] = self._shapes.copies(of_some)
                self._possible += self._shapes.copies(of_some.empty()).sum(axis=1)
        self.fitting = sum((of_group.sum(axis=1) for of_group in self._copies), np.zeros(len(self._possible)))
        self._counted, self._counted_hosts = table.changes, table.changed_hosts
        self._take_over(self._present())

    def has_changed(self) -> bool:
        """Count the copies on changed hosts, and return whether `of_shapes` has changed."""
        table = self._table
        if (table.changed_hosts - self._counted_hosts) * RECOUNTED < max(len(table.versions), 1):
            return False
        assert table.layout is not None
        slots = np.unique(table.changed_since(self._counted))
        self._counted, self._counted_hosts = table.changes, table.changed_hosts
        for number, _, hosts in table.layout.by_group(slots):
            copies, now = self._copies[number], self._shapes.copies(self._parts[number].of(hosts))
            self.fitting += (now - copies[:, hosts]).sum(axis=1)
            copies[:, hosts] = now
        present = self._present()
        if not self._differs(present):
            return False
        self._take_over(present)
        return True

    def _differs(self, present: Floats) -> bool:
        weights = self._shapes.weights
        return float(np.abs(present - self.of_shapes) @ weights) >= max(CHANGED * float(weights.sum()), 1e-12)

    def _take_over(self, present: Floats) -> None:
        weights = self._weights
        self.of_shapes = present
        self.overall = float(present @ weights) / max(float(weights.sum()), 1e-12)
        self.sentence = self._sentence()

    def _present(self) -> Floats:
        lasting = max(LASTS * self._used(), 1e-9)
        share = self.fitting / np.maximum(self._possible, 1.0)
        scarce = np.clip(STEEPNESS * (1.0 - share / lasting), 0.0, 1.0)
        scarce[self._possible < 1.0] = 0.0  # fits on no host: nothing can be kept for it
        scarce[self._always] = 1.0
        return scarce

    def _used(self) -> float:
        """Return the used share of the cloud, of the common class of which most is used."""
        table = self._table
        counted = self._common & (table.total_whole > 0)
        shares = 1.0 - table.total_free[counted] / table.total_whole[counted]
        return max(float(shares.max(initial=0.0)), 0.0)

    def _sentence(self) -> str:
        """Return which shape is scarcest, by what its loss costs; "" if none is that is not always scarce."""
        costs = np.where(self._always, 0.0, self.of_shapes * self._shapes.weights)
        if not costs.any():
            return ""
        scarcest = int(np.argmax(costs))
        amounts = sorted(self._usual.shapes[scarcest].amounts.items())
        asked = ", ".join(f"{amount} {name}" for name, amount in amounts)
        return f"scarce: {asked} ({self.fitting[scarcest]:.0f} more fit)"
