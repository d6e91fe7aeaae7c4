"""The value of hosts' free amounts for the usual requests: how much of them these requests could still use.

All amounts are measured in average hosts: 1.0 is the mean over the resource classes of what an average host
has of each. The value of a host is the mean over the usual shapes, by their frequency, of the amounts that
copies of the shape could use until one resource runs out. To this is added:

- on a host with devices, such as GPUs: a cost of the devices for which no processor or memory is left;
- on another host: the value for requests of unknown shapes, which are a part of all requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.extension import Shape, ShapeGroup

STRANDED = 0.5  # cost of a host's devices that lack processor or memory, as part of their share
UNKNOWN = 0.1  # part of the requests that have unknown shapes
# What copies of a shape that needs the part x of a host use of it, as the mean of x·floor(1/x) over all x
USED_BY_RANDOM = np.pi**2 / 12
OF_UNKNOWN = float(UNKNOWN / (1 - UNKNOWN) * USED_BY_RANDOM)
UNLIMITED = 1e9
AT_ONCE = 4096  # states of hosts whose values are computed together
ROUNDING = 1e-9  # so that 3 × (1 ÷ 3) is one copy
WHOLE = 0.5  # likewise, added to an amount, which is a whole number
MOST_COLUMNS = 1024  # hosts whose copies are computed together
MOST_AMOUNTS = 4096  # of each class, whose copies are remembered


@dataclass(eq=False)
class UsableParts:
    """The amounts of some hosts: those of class c of the n-th provider at [h, n, c], the root first."""

    free: Floats
    per_whole: Floats  # 1 ÷ capacity; 0 without capacity
    lacks: Floats  # 1 where there is no capacity, else 0
    sizes: Floats  # [h]: in average hosts
    # What a unit of a device adds to the share of a host's devices, such as GPUs: classes that its root
    # lacks. None: no host of these has devices.
    of_devices: Floats | None
    has_devices: Bools  # [h]
    eligible: Bools  # [g, h, n]: whether the traits of a provider fit those of group g of a `ShapeTable`
    admitted: Bools | None  # [s, h]: whether the traits of a host permit a shape; None: all do
    shared: Bools | None  # [h, c]: whether a pool supplies a class; None: no pool supplies any

    @classmethod
    def made(
        cls,
        free: Floats,
        whole: Floats,
        scale: Floats,
        eligible: Bools,
        admitted: Bools | None = None,
        shared: Bools | None = None,
    ) -> "UsableParts":
        """Return the parts of hosts with these free amounts and capacities. `scale`: as in `ShapeTable`."""
        own = whole > 0
        supplied = own[:, 1:].any(axis=1) & ~own[:, 0]
        has_devices: Bools = np.any(own[:, 0], axis=1) & np.any(supplied, axis=1)
        of_devices: Floats | None = None
        if has_devices.any():
            of_devices = np.where(~own[:, :1] & has_devices[:, np.newaxis, np.newaxis], scale, 0.0)
            shares = (of_devices * whole).sum(axis=(1, 2))
            of_devices = of_devices / np.maximum(shares, 1e-9)[:, np.newaxis, np.newaxis]
        return cls(
            free=free,
            per_whole=np.where(own, 1.0 / np.maximum(whole, 1e-9), 0.0),
            lacks=(~own).astype(np.float64),
            sizes=whole.sum(axis=1) @ scale,
            of_devices=of_devices,
            has_devices=has_devices,
            eligible=eligible,
            admitted=admitted,
            shared=shared if shared is not None and shared.any() else None,
        )

    def of(self, hosts: Ints) -> "UsableParts":
        """Return some of the hosts, perhaps repeatedly."""
        return UsableParts(
            self.free[hosts],
            self.per_whole[hosts],
            self.lacks[hosts],
            self.sizes[hosts],
            None if self.of_devices is None else self.of_devices[hosts],
            self.has_devices[hosts],
            self.eligible[:, hosts],
            None if self.admitted is None else self.admitted[:, hosts],
            None if self.shared is None else self.shared[hosts],
        )

    def portions(self) -> Iterator[Ints]:
        """Yield the hosts in portions, whose intermediate arrays stay small."""
        hosts = len(self.free)
        for low in range(0, hosts, AT_ONCE):
            yield np.arange(low, min(low + AT_ONCE, hosts))

    def with_free(self, free: Floats) -> "UsableParts":
        return UsableParts(
            free,
            self.per_whole,
            self.lacks,
            self.sizes,
            self.of_devices,
            self.has_devices,
            self.eligible,
            self.admitted,
            self.shared,
        )

    def empty(self) -> "UsableParts":
        """Return the hosts as they are without any instance."""
        return self.with_free(np.where(self.lacks > 0, 0.0, 1.0 / np.maximum(self.per_whole, 1e-12)))

    def least_shares(self) -> Floats:
        """Return for each host the least free share of a class."""
        if self.free.shape[1] == 1:
            shares: Floats = self.free[:, 0] * self.per_whole[:, 0] + self.lacks[:, 0]
        else:
            whole = self.empty().free.sum(axis=1)
            shares = np.where(whole > 0, self.free.sum(axis=1) / np.maximum(whole, 1e-9), 1.0)
        least: Floats = shares.min(axis=1, initial=1.0)
        return least


@dataclass(frozen=True, eq=False)
class ShapeTable:
    """The usual shapes as arrays. Groups with equal amounts and traits are one row of `groups`."""

    classes: tuple[str, ...]
    weights: Floats  # [s]: part of the requests × size in average hosts
    split: tuple[tuple[Ints, Floats], ...]  # by class: shapes that ask for it of any provider; 1 ÷ amounts
    groups: tuple[ShapeGroup, ...]
    amounts: Floats  # [g, c]: amounts of each provider for a group
    # each: a group, how many providers it needs, and whether they must be different
    needs: tuple[tuple[int, int, bool], ...]
    need_of: Ints  # [k, s]: the k-th need of a shape; -1: it has fewer
    is_selective: bool  # whether a shape requires traits of the host itself
    scale: Floats  # [c]: converts amounts to average hosts, as part of the mean over classes
    of_unknown: float = OF_UNKNOWN  # weight of what is free for shapes of any proportion

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
            if not number.keys() >= shape.amounts.keys():  # it fits nowhere
                continue
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
        asking = [np.flatnonzero(split[:, c]) for c in range(len(classes))]
        return cls(
            classes=tuple(classes),
            weights=np.array(parts) * sizes,
            split=tuple([(of_class, 1.0 / split[of_class, c]) for c, of_class in enumerate(asking)]),
            groups=tuple(groups),
            amounts=np.array(listed).reshape(len(listed), len(classes)),
            needs=tuple(needs),
            need_of=_padded(needs_of),
            is_selective=any(group.is_split and group.traits for each in shapes for group in each.groups),
            scale=scale,
        )

    def weighted(self, scarcity: Floats, overall: float) -> "ShapeTable":
        """Return the table with each weight multiplied by the scarcity of its shape, and the weight of
        unknown shapes by the overall one. Shapes without weight are left out where no other array depends on
        their number.
        """
        weights, of_unknown = self.weights * scarcity, self.of_unknown * overall
        kept = np.flatnonzero(weights)
        if self.is_selective or self.needs or kept.size == weights.size:
            return replace(self, weights=weights, of_unknown=of_unknown)
        number = np.full(weights.size, -1, np.intp)
        number[kept] = np.arange(kept.size)
        split = []
        for asking, per_amount in self.split:
            is_kept = number[asking] >= 0
            split.append((number[asking[is_kept]], per_amount[is_kept]))
        return replace(self, weights=weights[kept], split=tuple(split), of_unknown=of_unknown)

    def _units(self, hosts: UsableParts) -> Floats:
        """Return [g, h, n]: how often a group fits on a provider."""
        found = np.full((len(self.groups), *hosts.free.shape[:2]), UNLIMITED)
        for g in range(len(self.groups)):
            for c in np.flatnonzero(self.amounts[g]).tolist():
                np.minimum(found[g], hosts.free[:, :, c] / self.amounts[g, c], out=found[g])
        np.floor(found, out=found)
        found *= hosts.eligible
        return found

    def copies(self, hosts: UsableParts) -> Floats:
        """Return [s, h]: how many instances of a shape fit on a host that has no others."""
        together = hosts.free[:, 0] if hosts.free.shape[1] == 1 else hosts.free.sum(axis=1)
        if hosts.shared is not None:
            together = np.where(hosts.shared, np.inf, together)
        found: Floats = np.full((len(self.weights), len(together)), UNLIMITED)
        for c, (asking, per_amount) in enumerate(self.split):
            if not asking.size:
                continue
            limits = np.multiply.outer(per_amount, together[:, c])
            if asking.size == len(found):
                np.minimum(found, limits, out=found)
            else:
                found[asking] = np.minimum(found[asking], limits)
        found += ROUNDING
        np.floor(found, out=found)
        if self.needs:
            of_need = self._copies_of_needs(self._units(hosts))
            for first in self.need_of:  # one array, unless shapes have groups of several kinds
                asking = np.flatnonzero(first >= 0)
                found[asking] = np.minimum(found[asking], of_need[first[asking]])
        if hosts.admitted is not None:
            found *= hosts.admitted
        if hosts.shared is not None:
            found[found >= UNLIMITED] = 0.0  # a shape that needs nothing of the host itself
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
        value: Floats = self.weights @ self.copies(hosts) if self.weights.size else np.zeros(len(hosts.free))
        if hosts.of_devices is None:
            value += self.of_unknown * self._for_any_shape(hosts)
            return value
        value -= STRANDED * self._stranded(hosts, hosts.of_devices)
        if not hosts.has_devices.all():
            value += np.where(hosts.has_devices, 0.0, self.of_unknown * self._for_any_shape(hosts))
        return value

    def _stranded(self, hosts: UsableParts, of_devices: Floats) -> Floats:
        """Return by how much the free share of a host's devices exceeds the free shares of its root."""
        root = hosts.free[:, 0] * hosts.per_whole[:, 0] + hosts.lacks[:, 0]
        share = (hosts.free * of_devices).sum(axis=(1, 2))
        found: Floats = np.where(
            hosts.has_devices, np.maximum(share - root.min(axis=1, initial=1.0), 0.0), 0.0
        )
        return found

    def _for_any_shape(self, hosts: UsableParts) -> Floats:
        """Return the amounts that are free for shapes of any proportion: the product over the classes of the
        least free share of a provider.
        """
        shares = hosts.free * hosts.per_whole
        shares += hosts.lacks
        least = shares[:, 0] if shares.shape[1] == 1 else shares.min(axis=1)
        least[:, self.scale == 0] = 1.0  # classes that no usual shape asks for
        found: Floats = least.prod(axis=1) * hosts.sizes
        return found


@dataclass(frozen=True, eq=False)
class LoneParts:
    """The amounts of hosts that are one provider, by class: arrays with one column if all hosts are equal."""

    per_whole: Floats  # [c, h] as in `UsableParts`, and so on
    lacks: Floats | None  # None: no host lacks a class
    sizes: Floats  # [1, h]

    @classmethod
    def made(cls, parts: UsableParts) -> "LoneParts | None":
        """Return the amounts of hosts; None if they have several providers, or use pools."""
        if parts.free.shape[1] != 1 or parts.shared is not None:
            return None
        lacks = parts.lacks[:, 0].T
        return cls(
            _once_if_equal(parts.per_whole[:, 0].T),
            _once_if_equal(lacks) if lacks.any() else None,
            _once_if_equal(parts.sizes[np.newaxis]),
        )

    def of(self, hosts: Ints) -> "LoneParts":
        """Return some of the hosts, perhaps repeatedly."""
        return LoneParts(
            _columns_of(self.per_whole, hosts),
            None if self.lacks is None else _columns_of(self.lacks, hosts),
            _columns_of(self.sizes, hosts),
        )

    def had(self, amounts: Floats, hosts: Ints) -> Floats:
        """Return those of some amounts [c, 1] whose class some hosts have; 0 for the others."""
        return amounts if self.lacks is None else amounts * (1.0 - _columns_of(self.lacks, hosts))

    def shares(self, free: Floats) -> Floats:
        """Return [c, h]: the free share of each class; 1 for a class that a host lacks."""
        found = free * self.per_whole
        return found if self.lacks is None else found + self.lacks


class LoneHosts:
    """Values hosts that are one provider in fewer steps than `ShapeTable.values`, with the same results.

    Only for shapes without groups for single providers and without traits.
    """

    def __init__(self, table: ShapeTable) -> None:
        asks = np.zeros((len(table.classes), len(table.weights)), np.bool_)
        rates = np.zeros(asks.shape)
        for c, (asking, per_amount) in enumerate(table.split):
            asks[c, asking], rates[c, asking] = True, per_amount
        # so that the shapes that ask for a class follow each other, if only one class is not asked by all
        order = np.lexsort(asks)
        asks, rates = asks[:, order], rates[:, order]
        self._weights = table.weights[order]
        self._of_unknown = table.of_unknown
        self._counted = [c for c, by in enumerate(table.scale.tolist()) if by]
        # each: a class, the shapes that ask for it, and 1 ÷ their amounts
        self._limits = [(c, _as_slice(np.flatnonzero(asks[c])), rates[c, asks[c]]) for c in range(len(asks))]
        self._limits = [limit for limit in self._limits if limit[2].size]
        self._limits.sort(key=lambda limit: -limit[2].size)
        # Large arrays that are allocated anew for each choice cost more than what is computed in them.
        self._work: Floats = np.empty((2, len(self._weights) * MOST_COLUMNS))
        # by class: amount → how many copies of each shape it permits
        self._known: list[dict[float, Floats]] = [{} for _ in table.classes]

    @staticmethod
    def can_value(table: ShapeTable) -> bool:
        return not table.needs and not table.is_selective

    @cached_property
    def counts(self) -> bool:
        """Return whether any shape counts; if not, all hosts have the value 0."""
        return bool(self._weights.size or self._of_unknown)

    def values(self, free: Floats, shares: Floats, sizes: Floats) -> Floats:
        """Return the values of hosts, given [c, h]: their amounts, and `LoneParts.shares`."""
        value: Floats = np.empty(free.shape[1])
        value[:] = self._of_unknown * sizes[0]
        for c in self._counted:
            value *= shares[c]
        for low in range(0, len(value) if self._weights.size else 0, MOST_COLUMNS):
            some = slice(low, low + MOST_COLUMNS)
            value[some] += self._weights @ self._copies(free[:, some])
        return value

    def _copies(self, free: Floats) -> Floats:
        """Return [s, h]: how many instances of a shape fit, as `ShapeTable.copies`. The array is valid until
        the next call.
        """
        free = free + WHOLE
        size = len(self._weights), free.shape[1]
        found, limits = self._work[:, : size[0] * size[1]].reshape(2, *size)
        if not self._limits or len(self._limits[0][2]) < size[0]:
            found[:] = UNLIMITED
        for nth, (c, asking, rates) in enumerate(self._limits):
            if nth == 0 and len(rates) == size[0]:
                np.multiply.outer(rates, free[c], out=found)
                continue
            of_class = limits[: len(rates)]
            np.multiply.outer(rates, free[c], out=of_class)
            if isinstance(asking, slice):
                np.minimum(found[asking], of_class, out=found[asking])
            else:
                found[asking] = np.minimum(found[asking], of_class)
        return np.floor(found, out=found)

    def value(
        self, free: Sequence[float], per_whole: Sequence[float], size: float, shared: Sequence[int] = ()
    ) -> float:
        """Return the value of a host with these amounts. `shared`: classes that a pool supplies."""
        for c in self._counted:
            if by := per_whole[c]:
                size *= free[c] * by
        of_unknown = self._of_unknown * size
        if not self._weights.size:
            return of_unknown
        copies: Floats | None = None
        for c, _, _ in self._limits:
            if c not in shared:
                limit = self._known[c].get(free[c])
                limit = self._limit(c, free[c]) if limit is None else limit
                copies = limit if copies is None else np.minimum(copies, limit)
        if copies is None:
            return of_unknown
        if shared:
            copies = np.where(copies >= UNLIMITED, 0.0, copies)
        return float(self._weights @ copies) + of_unknown

    def _limit(self, c: int, amount: float) -> Floats:
        """Return by shape how many copies an amount of a class permits."""
        known = self._known[c]
        if len(known) >= MOST_AMOUNTS:
            known.clear()
        _, asking, rates = next(limit for limit in self._limits if limit[0] == c)
        found = known[amount] = np.full(self._weights.size, UNLIMITED)
        found[asking] = np.floor(rates * (amount + WHOLE))
        return found


def _once_if_equal(by_class: Floats) -> Floats:
    """Return [c, h] as an array with one column if all columns are equal."""
    if by_class.size and (by_class == by_class[:, :1]).all():
        return by_class[:, :1].copy()
    return np.ascontiguousarray(by_class)


def _columns_of(by_class: Floats, hosts: Ints) -> Floats:
    return by_class if by_class.shape[1] == 1 else by_class.take(hosts, axis=1)


def _as_slice(numbers: Ints) -> Any:
    """Return numbers that follow each other as a slice, which NumPy reads without a copy."""
    if numbers.size and numbers[-1] - numbers[0] == numbers.size - 1:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


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
