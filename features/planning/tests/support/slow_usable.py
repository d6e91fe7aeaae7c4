"""Values of hosts of one provider for the usual requests, computed for one host after the other."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.candidates import Floats
from bus.packing import RowPacking
from features.planning.core.moved_cloud import CloudState, MovableInstance
from features.planning.core.usable_after import UsableAfterMoves
from scheduler_worker.core.extension import AlteredHost, Shape, ShapeGroup


@dataclass(frozen=True, eq=False)
class SlowUsable:
    """Equally usual shapes; implements `UsableCapacity`. The value of a host is the mean over the shapes of
    the amounts that copies of one could use, as parts of an average host.
    """

    packing: RowPacking
    usual: Sequence[Shape]

    def values(self, hosts: Sequence[AlteredHost]) -> Floats:
        return np.array([self._value(self._free(host)) for host in hosts])

    def costs(self, shape: Shape) -> Floats:
        rows = range(len(self.packing))
        return self.values([AlteredHost(row) for row in rows]) - self.values(
            [AlteredHost(row, added=(shape,)) for row in rows]
        )

    def wasted(self) -> Floats:
        return self._size(self.packing.free) - self.values(
            [AlteredHost(row) for row in range(len(self.packing))]
        )

    def instances(self, hosts: Sequence[AlteredHost]) -> Floats:
        sizes = np.array([self._size(self._vector(shape)) for shape in self.usual])
        fits = [[self._copies(shape, self._free(host)) for shape in self.usual] for host in hosts]
        found: Floats = np.array(fits).reshape(len(hosts), len(sizes)) @ sizes / sizes.sum()
        return found

    def _free(self, host: AlteredHost) -> Floats:
        free: Floats = self.packing.free[host.position].copy()
        for held in host.without:
            for row, name, amount in held:
                assert row == host.position
                free[self.packing.classes.index(name)] += amount
        for shape in host.added:
            free -= self._vector(shape)
        return free

    def _value(self, free: Floats) -> float:
        if (free < 0).any():
            return -np.inf
        used = [self._copies(shape, free) * self._size(self._vector(shape)) for shape in self.usual]
        return float(np.mean(used))

    def _copies(self, shape: Shape, free: Floats) -> float:
        asked = self._vector(shape)
        return float((free[asked > 0] // asked[asked > 0]).min())

    def _vector(self, shape: Shape) -> Floats:
        return self.packing.vector(shape.amounts)

    def _size(self, amounts: Floats) -> Floats:
        found: Floats = (amounts / self.packing.whole.mean(axis=0)).mean(axis=-1)
        return found


def a_shape(amounts: Mapping[str, int]) -> Shape:
    return Shape(groups=(ShapeGroup(resources=tuple(sorted(amounts.items())), is_split=True),))


def with_usable(cloud: CloudState, usual: Collection[Mapping[str, int]]) -> CloudState:
    """Return a cloud of which it is known what the usual requests could use."""
    classes, instances = cloud.packing.classes, dict[int, list[MovableInstance]]()
    for host, some in cloud.instances.items():
        instances[host] = []
        for each in some:
            amounts = {name: int(amount) for name, amount in zip(classes, each.amounts, strict=True)}
            held = tuple([(host, name, amount) for name, amount in amounts.items()])
            instances[host].append(replace(each, held=held, shape=a_shape(amounts)))
    slow = SlowUsable(cloud.packing, [a_shape(amounts) for amounts in usual])
    return replace(cloud, instances=instances, usable=UsableAfterMoves(slow))
