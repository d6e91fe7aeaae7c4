"""The value of hosts' free amounts for the usual requests: how much of them these requests could still use.

All amounts are measured in average hosts: 1.0 is the mean over the resource classes of what an average host
has of each. The value of a host is the mean over the usual shapes, by their frequency, of the amounts that
copies of the shape could use until one resource runs out. To this is added:

- on a host with devices, such as GPUs: a cost of the devices for which no processor or memory is left;
- on another host: the value for requests of unknown shapes, which are a part of all requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.extension import Shape, ShapeGroup

STRANDED = 0.25  # cost of a host's devices that lack processor or memory, as part of their share
UNKNOWN = 0.1  # part of the requests that have unknown shapes
# What copies of a shape that needs the part x of a host use of it, as the mean of x·floor(1/x) over all x
USED_BY_RANDOM = np.pi**2 / 12
UNLIMITED = 1e9
ROUNDING = 1e-9  # so that 3 × (1 ÷ 3) is one copy


@dataclass(eq=False)
class UsableParts:
    """The free amounts of some hosts: `free[h, n, c]` of class c of the n-th provider, the root first."""

    free: Floats
    whole: Floats  # capacities, as `free`
    eligible: Bools  # [g, h, n]: whether the traits of a provider fit those of group g of a `ShapeTable`
    has_devices: Bools  # [h]: whether it has providers of classes that its root lacks, such as GPUs
    admitted: Bools  # [s, h]: whether the traits of a host permit a shape

    def of(self, hosts: Ints) -> "UsableParts":
        """Return some of the hosts, perhaps repeatedly."""
        return UsableParts(
            self.free[hosts],
            self.whole[hosts],
            self.eligible[:, hosts],
            self.has_devices[hosts],
            self.admitted[:, hosts],
        )

    def with_free(self, free: Floats) -> "UsableParts":
        return replace(self, free=free)


@dataclass(frozen=True, eq=False)
class ShapeTable:
    """The usual shapes as arrays. Groups with equal amounts and traits are one row of `groups`."""

    classes: tuple[str, ...]
    parts: Floats  # [s]: part of the requests
    sizes: Floats  # [s]: in average hosts
    split: Floats  # [s, c]: amounts that any providers of the host may supply
    groups: tuple[ShapeGroup, ...]
    amounts: Floats  # [g, c]: amounts of each provider for a group
    # each: a group, how many providers it needs, and whether they must be different
    needs: tuple[tuple[int, int, bool], ...]
    need_of: Ints  # [k, s]: the k-th need of a shape; -1: it has fewer
    is_selective: bool  # whether a shape requires traits of the host itself
    scale: Floats  # [c]: converts amounts to average hosts, as part of the mean over classes

    @classmethod
    def of(
        cls,
        shapes: Sequence[Shape],
        parts: Sequence[float],
        hosts: int,
        classes: Sequence[str],
        capacity: Mapping[str, float],
    ) -> "ShapeTable":
        """Return the table of shapes. `capacity` has the capacity of all hosts of each class."""
        number = {name: c for c, name in enumerate(classes)}
        asked = {name for shape in shapes for name in shape.amounts if capacity.get(name, 0.0) > 0}
        scale = np.array([hosts / capacity[name] / len(asked) if name in asked else 0.0 for name in classes])
        groups: dict[ShapeGroup, int] = {}
        split, sizes = np.zeros((len(shapes), len(classes))), np.zeros(len(shapes))
        needs: dict[tuple[int, int, bool], int] = {}
        needs_of: list[list[int]] = []
        for s, shape in enumerate(shapes):
            needs_of.append([])
            for group in shape.groups:
                amounts = _vector(group.resources, number)
                sizes[s] += float((amounts * scale).sum()) * group.count
                if group.is_split:
                    split[s] += amounts
                else:
                    number_of_group = groups.setdefault(_one(group), len(groups))
                    need = number_of_group, group.count, shape.apart
                    needs_of[s].append(needs.setdefault(need, len(needs)))
        listed = [_vector(group.resources, number) for group in groups]
        return cls(
            classes=tuple(classes),
            parts=np.array(parts),
            sizes=sizes,
            split=split,
            groups=tuple(groups),
            amounts=np.array(listed).reshape(len(listed), len(classes)),
            needs=tuple(needs),
            need_of=_padded(needs_of),
            is_selective=any(group.is_split and group.traits for each in shapes for group in each.groups),
            scale=scale,
        )

    def units(self, hosts: UsableParts) -> Floats:
        """Return [g, h, n]: how often a group fits on a provider."""
        found = np.full((len(self.groups), *hosts.free.shape[:2]), UNLIMITED)
        for g in range(len(self.groups)):
            for c in np.flatnonzero(self.amounts[g]).tolist():
                np.minimum(found[g], hosts.free[:, :, c] / self.amounts[g, c], out=found[g])
        np.floor(found, out=found)
        found *= hosts.eligible
        return found

    def copies(self, hosts: UsableParts, units: Floats) -> Floats:
        """Return [s, h]: how many instances of a shape fit on a host that has no others."""
        together = hosts.free[:, 0] if hosts.free.shape[1] == 1 else hosts.free.sum(axis=1)
        found: Floats = np.full((len(self.parts), len(together)), UNLIMITED)
        for c in range(len(self.classes)):
            asking = np.flatnonzero(self.split[:, c])
            if not asking.size:
                continue
            limits = np.multiply.outer(1.0 / self.split[asking, c], together[:, c])
            if asking.size == len(found):
                np.minimum(found, limits, out=found)
            else:
                found[asking] = np.minimum(found[asking], limits)
        found += ROUNDING
        np.floor(found, out=found)
        if self.needs:
            of_need = self._copies_of_needs(units)
            for first in self.need_of:  # one array, unless shapes have groups of several kinds
                asking = np.flatnonzero(first >= 0)
                found[asking] = np.minimum(found[asking], of_need[first[asking]])
        if self.is_selective:
            found *= hosts.admitted
        return found

    def _copies_of_needs(self, units: Floats) -> Floats:
        """Return [need, h]: how many instances fit that have only this need."""
        numbers = np.array([(g, count) for g, count, _ in self.needs])
        found: Floats = np.floor(units.sum(axis=2)[numbers[:, 0]] / numbers[:, 1, np.newaxis])
        for number, (g, count, apart) in enumerate(self.needs):
            if apart and count > 1:
                found[number] = copies_apart(units[g], count)
        return found

    def values(self, hosts: UsableParts) -> Floats:
        """Return the value of each host."""
        units = self.units(hosts)
        copies = self.copies(hosts, units)
        value: Floats = (self.parts * self.sizes) @ copies
        devices = hosts.has_devices
        if devices.any():
            value -= STRANDED * self._stranded(hosts)
        if not devices.all():
            unknown = UNKNOWN / (1 - UNKNOWN) * USED_BY_RANDOM * self._for_any_shape(hosts)
            value += np.where(devices, 0.0, unknown)
        return value

    def _stranded(self, hosts: UsableParts) -> Floats:
        """Return by how much the free share of a host's devices exceeds the free shares of its root."""
        root, root_whole = hosts.free[:, 0], hosts.whole[:, 0]
        least = np.where(root_whole > 0, root / np.maximum(root_whole, 1e-9), 1.0).min(axis=1, initial=1.0)
        whole = np.where(root_whole > 0, 0.0, hosts.whole[:, 1:].sum(axis=1))
        free = np.where(root_whole > 0, 0.0, hosts.free[:, 1:].sum(axis=1))
        share = (free * self.scale).sum(axis=1) / np.maximum((whole * self.scale).sum(axis=1), 1e-9)
        return np.where(hosts.has_devices, np.maximum(share - least, 0.0), 0.0)

    def _for_any_shape(self, hosts: UsableParts) -> Floats:
        """Return the amounts that are free for shapes of any proportion: the product over the classes of the
        least free share of a provider.
        """
        whole = hosts.whole
        shares = np.where(whole > 0, hosts.free / np.maximum(whole, 1e-9), 1.0).min(axis=1)
        shares[:, self.scale == 0] = 1.0  # classes that no usual shape asks for
        sizes = (whole.sum(axis=1) * self.scale).sum(axis=1)
        found: Floats = shares.prod(axis=1) * sizes
        return found


def copies_apart(units: Floats, count: int) -> Floats:
    """Return for each host how many instances fit that need `count` different providers each, such as GPUs.
    `units[h, n]` is how often the amounts for one provider fit on the n-th provider of a host.
    """
    # c copies fit if sum(min(units, c)) >= count × c. So c is at most the sum of all but the j largest,
    # divided by count − j, for each j.
    ordered = np.sort(units, axis=1)[:, ::-1]
    rest = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]  # rest[:, j]: the sum without the j largest
    found = np.full(len(units), np.inf)
    for j in range(min(count, units.shape[1])):
        np.minimum(found, np.floor(rest[:, j] / (count - j)), out=found)
    if count > units.shape[1]:
        found[:] = 0.0
    return found


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    """Return the rows as columns of one array, filled with -1."""
    found = np.full((max(map(len, rows), default=0), len(rows)), -1, np.intp)
    for number, row in enumerate(rows):
        found[: len(row), number] = row
    return found


def _one(group: ShapeGroup) -> ShapeGroup:
    return ShapeGroup(
        resources=group.resources,
        required=group.required,
        required_any=group.required_any,
        forbidden=group.forbidden,
    )


def _vector(resources: Sequence[tuple[str, int]], number: Mapping[str, int]) -> Floats:
    found = np.zeros(len(number))
    for name, amount in resources:
        if name in number:
            found[number[name]] = amount
    return found
