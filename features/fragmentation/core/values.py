"""Computes what each candidate of each host costs: the value of the host after it, less the value before.

Values are kept by host, and costs by requested shape and host. Both are computed again only for hosts that
changed, until the usual shapes change.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Bools, Floats, FreeProvider, Ints, ProviderArrays
from bus.queries import Candidate
from features.fragmentation.core.host_table import HostTable
from features.fragmentation.core.usable import ShapeTable, UsableParts
from scheduler_worker.core.extension import Shape, ShapeGroup, UsualShapes

MOST_COSTS = 4_000_000  # of hosts, for all requested shapes: 64 MB
MOST_CLASSES = 1024
MOST_STATES = 20_000  # states of hosts whose values are kept
AT_ONCE = 4096  # states whose values are computed together
_NOTHING: Mapping[str, int] = {}
NO_WAY = -1e9  # for hosts on which no candidate was found: another search may find one
PLENTY = 100.0  # copies of a shape that fit, from which on half of the preference for empty hosts applies
STEP = 0.02  # the preference for empty hosts follows the use of the cloud in steps of this size


@dataclass(eq=False)
class KnownValues:
    """Values of hosts, such as those of their best candidates, computed at versions of the hosts."""

    best: Floats
    at: Ints


@dataclass(eq=False)
class HostValues:
    """The amounts of hosts that the usual shapes could use (`usable`), and the cost of requests in them."""

    spread: float  # weight of the least free share of a host while the cloud is empty
    table: HostTable = field(default_factory=HostTable)
    shapes: ShapeTable | None = None
    _made_for: tuple[object, ...] = ()
    _usual: UsualShapes = field(default_factory=UsualShapes)
    _parts: UsableParts | None = None
    _costs: "OrderedDict[Shape, KnownValues]" = field(default_factory=OrderedDict)
    _states: dict[tuple[object, ...], float] = field(default_factory=dict)
    # state of a host that is one provider, and what is asked → the capacity to which it belongs, the value
    _lone: dict[tuple[object, ...], tuple[object, list[float]]] = field(default_factory=dict)
    _emptiness: float = 0.0  # weight of the least free share now
    plenty: float = 1.0  # of the rarest usual shape, from 0 (none fits) to 1
    # random numbers that mix amounts to one number; equal for providers that are alike
    _mix: Floats = field(default_factory=lambda: np.random.default_rng(1).random(MOST_CLASSES))
    _kinds: Floats = field(default_factory=lambda: np.zeros((0, 1)))  # [slot, n]: mixed traits and capacities
    _reshaped: int = -1
    _now: KnownValues = field(default_factory=lambda: KnownValues(np.zeros(0), np.zeros(0, np.intp)))

    def follow(self, providers: ProviderArrays, usual: UsualShapes, asked: Shape) -> None:
        """Take over the present amounts of hosts, and the usual shapes."""
        every = (*usual.shapes, asked)
        classes = {name for shape in every for name in shape.amounts}
        traits = {trait for shape in every for group in shape.groups for trait in group.traits}
        table = self.table
        table.follow(providers, classes, traits)
        if (usual.version, table.rebuilt) != self._made_for:
            self._made_for = usual.version, table.rebuilt
            self._usual = usual
            totals = table.whole.sum(axis=(0, 1)).tolist()
            capacity = dict(zip(table.classes, totals, strict=True))
            self.shapes = ShapeTable.of(usual.shapes, usual.parts, len(table.whole), table.classes, capacity)
            self._costs.clear()
            self._lone.clear()
            self._reshape()
            self.plenty = self._copies_of_rarest()
        elif self._reshaped != table.reshaped:
            self._reshape()
        self._spread_now()

    def _reshape(self) -> None:
        """Take over the capacities and traits of hosts."""
        table, shapes = self.table, self.shapes
        assert shapes is not None
        self._reshaped = table.reshaped
        whole = table.whole
        own, devices = whole[:, 0] > 0, whole[:, 1:].sum(axis=1) > 0
        eligible = np.ones((len(shapes.groups), *whole.shape[:2]), np.bool_)
        for number, group in enumerate(shapes.groups):
            eligible[number] = self._having(group)
        admitted = np.ones((len(shapes.parts), len(whole)), np.bool_)
        for number, shape in enumerate(self._usual.shapes):
            for group in shape.groups:
                if group.is_split and group.traits:
                    admitted[number] &= self._having(group)[:, 0]
        has_devices = own.any(axis=1) & (devices & ~own).any(axis=1)
        self._parts = UsableParts(table.free, whole, eligible, has_devices, admitted)
        mixed = np.random.default_rng(2).random(len(eligible))
        self._now = KnownValues(np.zeros(len(whole)), np.full(len(whole), -1, np.intp))
        self._kinds = np.tensordot(mixed, eligible.astype(np.float64), axes=1)
        self._kinds += whole @ self._mix[::-1][: whole.shape[2]]
        self._states.clear()

    def _having(self, group: ShapeGroup) -> Bools:
        """Return for each provider of each host whether it has the traits that a group requires."""
        having, found = self.table.traits, np.ones(self.table.whole.shape[:2], np.bool_)
        for trait in group.required:
            found &= having[trait]
        for some in group.required_any:
            found &= np.any([having[trait] for trait in some], axis=0)
        for trait in group.forbidden:
            found &= ~having[trait]
        return found

    def _copies_of_rarest(self) -> float:
        """Return how plentiful the rarest usual shape is in the cloud, from 0 (none fits) to 1."""
        shapes, parts = self.shapes, self._parts
        if shapes is None or parts is None or not len(shapes.parts) or not len(parts.free):
            return 1.0
        fits = np.zeros(len(shapes.parts))
        possible = np.zeros(len(shapes.parts), np.bool_)
        for low in range(0, len(parts.free), AT_ONCE):
            some = parts.of(np.arange(low, min(low + AT_ONCE, len(parts.free))))
            fits += shapes.copies(some, shapes.units(some)).sum(axis=1)
            empty = some.with_free(some.whole)
            possible |= (shapes.copies(empty, shapes.units(empty)) >= 1).any(axis=1)
        return float((fits / (fits + PLENTY))[possible].min(initial=1.0))

    def _spread_now(self) -> None:
        if not self.spread:
            return
        table = self.table
        whole, free = table.whole.sum(axis=(0, 1)), table.free.sum(axis=(0, 1))
        used = float((1.0 - free / np.maximum(whole, 1e-9))[whole > 0].max(initial=0.0))
        used = round(used / STEP) * STEP
        emptiness = self.spread * self.plenty * max(0.0, 1.0 - 2.0 * used)
        if emptiness != self._emptiness:
            self._emptiness = emptiness
            self._costs.clear()
            self._lone.clear()

    def slots(self, positions: Ints) -> Ints:
        """Return the slots of hosts in the table, given the rows of their roots in placement's index."""
        assert self.table.layout is not None
        return self.table.layout.slot_at[positions]

    def best_of(self, asked: Shape, slots: Ints) -> Floats:
        """Return the values of the best candidates for a shape on the hosts in these slots."""
        table = self.table
        costs = self._costs.get(asked)
        if costs is None:
            hosts = len(table.free)
            costs = self._costs[asked] = KnownValues(np.full(hosts, NO_WAY), np.full(hosts, -1, np.intp))
            while len(self._costs) > 1 and len(self._costs) * hosts > MOST_COSTS:
                self._costs.popitem(last=False)
        self._costs.move_to_end(asked)
        stale = slots[costs.at[slots] != table.versions[slots]]
        for low in range(0, len(stale), AT_ONCE):
            some = stale[low : low + AT_ONCE]
            costs.best[some] = self._computed(asked, some)
        costs.at[stale] = table.versions[stale]
        return costs.best[slots]

    def _computed(self, asked: Shape, slots: Ints) -> Floats:
        assert self.shapes is not None and self._parts is not None
        free = self._parts.free[slots]
        hosts, taken = self._ways(asked, slots, free)
        after = free[hosts] - taken
        values = self._values(slots[hosts], after) - self._values_now(slots)[hosts]
        best = np.full(len(slots), NO_WAY)
        np.maximum.at(best, hosts, values)
        return best

    def _values_now(self, slots: Ints) -> Floats:
        """Return the present values of hosts."""
        assert self.shapes is not None and self._parts is not None
        now, versions = self._now, self.table.versions
        stale = slots[now.at[slots] != versions[slots]]
        if stale.size:
            now.best[stale] = self.shapes.values(self._parts.of(stale))
            now.at[stale] = versions[stale]
        return now.best[slots]

    def _values(self, slots: Ints, free: Floats) -> Floats:
        """Return the values of hosts with these free amounts, with the preference for empty hosts."""
        assert self.shapes is not None and self._parts is not None
        found: Floats = np.zeros(len(slots))
        for low in range(0, len(slots), AT_ONCE):
            some = slice(low, low + AT_ONCE)
            found[some] = self.shapes.values(self._parts.of(slots[some]).with_free(free[some]))
        if self._emptiness:
            whole: Floats = self._parts.whole[slots].sum(axis=1)
            shares: Floats = np.where(whole > 0, free.sum(axis=1) / np.maximum(whole, 1e-9), 1.0)
            found = np.add(found, self._emptiness * shares.min(axis=1))
        return found

    def _ways(self, asked: Shape, slots: Ints, free: Floats) -> tuple[Ints, Floats]:
        """Return candidates for a shape on some hosts: for each the number of its host among `slots`, and the
        amounts that it takes. A shape with several devices takes the fullest that are large enough.
        """
        number = {name: c for c, name in enumerate(self.table.classes)}
        hosts = len(slots)
        base = np.zeros_like(free)
        split = np.zeros(free.shape[2])
        single: tuple[ShapeGroup, Floats, Bools] | None = None
        fits_all = np.ones(hosts, np.bool_)
        for group in asked.groups:
            amounts = np.zeros(free.shape[2])
            for name, amount in group.resources:
                amounts[number[name]] = amount
            if group.is_split:
                split += amounts
                continue
            fits = ((free - base >= amounts) | (amounts == 0)).all(axis=2) & self._having(group)[slots]
            if group.count == 1 and single is None:
                single = group, amounts, fits
                continue
            fits_all &= self._take_fullest(asked, group, amounts, free, base, slots)
        for c in np.flatnonzero(split).tolist():
            # the root supplies it, or else the provider with the most
            has_root = self._parts_whole(slots)[:, 0, c] > 0
            supplies = np.where(has_root, 0, np.argmax(free[:, :, c], axis=1))
            # a class that the host lacks is that of a shared provider
            has_class = self._parts_whole(slots)[:, :, c].sum(axis=1) > 0
            base[np.arange(hosts), supplies, c] += np.where(has_class, split[c], 0.0)
        if single is None:
            possible = np.flatnonzero(fits_all)
            return possible, base[possible]
        _, of_one, fitting = single
        host, provider = self._distinct(slots, free, *np.nonzero(fitting & fits_all[:, np.newaxis]))
        taken = base[host]
        taken[np.arange(len(host)), provider] += of_one
        return host, taken

    def _take_fullest(
        self, asked: Shape, group: ShapeGroup, amounts: Floats, free: Floats, base: Floats, slots: Ints
    ) -> Bools:
        """Add to `base` what equal groups take: of each host the fullest providers that are large enough.
        Return for each host whether it has enough.
        """
        every, having = np.arange(len(free)), self._having(group)[slots].copy()
        enough = np.ones(len(free), np.bool_)
        for _ in range(group.count):
            left = free - base
            fits = ((left >= amounts) | (amounts == 0)).all(axis=2) & having
            size = np.where(fits, (left * (amounts > 0)).sum(axis=2), np.inf)
            chosen = np.argmin(size, axis=1)
            enough &= np.isfinite(size[every, chosen])
            base[every, chosen] += amounts
            if asked.apart:
                having[every, chosen] = False
        return enough

    def _distinct(self, slots: Ints, free: Floats, host: Ints, provider: Ints) -> tuple[Ints, Ints]:
        """Return one of the providers of a host that are alike for the usual shapes."""
        key = free[host, provider] @ self._mix[: free.shape[2]] + self._kinds[slots[host], provider]
        order = np.lexsort((key, host))
        host, provider, key = host[order], provider[order], key[order]
        is_first = np.ones(len(host), np.bool_)
        is_first[1:] = (host[1:] != host[:-1]) | (key[1:] != key[:-1])
        return host[is_first], provider[is_first]

    def _parts_whole(self, slots: Ints) -> Floats:
        assert self._parts is not None
        return self._parts.whole[slots]

    # the candidates of one host

    def of_ways(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        """Return the values of candidates on a host as it is now."""
        if len(tree) > 1 or len(ways) > 1:
            return self._of_tree(tree, ways)
        (root,), (way,) = tree, ways
        asked = way.allocations.get(root.uuid, _NOTHING)
        key = id(root.capacity), root.traits, (*root.free.values(),), (*asked.items(),)
        known = self._lone.get(key)
        if known is None or known[0] is not root.capacity:
            if len(self._lone) > MOST_STATES:
                self._lone.clear()
            known = self._lone[key] = root.capacity, self._of_tree(tree, ways)
        return known[1]

    def _of_tree(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        table = self.table
        assert table.layout is not None
        slot = int(table.layout.slot_at[tree[0].position])
        nth = {row: n for n, row in enumerate(table.layout.rows[slot].tolist()) if row >= 0}
        number = {name: c for c, name in enumerate(table.classes)}
        number_of = {each.uuid: nth[each.position] for each in tree if each.position in nth}
        free = np.zeros(table.free.shape[1:])
        for provider in tree:
            if (n := number_of.get(provider.uuid)) is not None:
                for name, amount in provider.free.items():
                    if name in number:
                        free[n, number[name]] = max(amount, 0)
        states = [free]
        for way in ways:
            after = free.copy()
            for uuid, amounts in way.allocations.items():
                if (n := number_of.get(uuid)) is not None:
                    for name, amount in amounts.items():
                        if name in number:
                            after[n, number[name]] -= amount
            states.append(after)
        before, *values = self._of_states(slot, states)
        return [value - before for value in values]

    def _of_states(self, slot: int, states: Sequence[Floats]) -> list[float]:
        keys = [(slot, state.tobytes()) for state in states]
        unknown = {key: state for key, state in zip(keys, states, strict=True) if key not in self._states}
        if unknown:
            if len(self._states) > MOST_STATES:
                self._states.clear()
                unknown = dict(zip(keys, states, strict=True))
            found = self._plain_values(np.full(len(unknown), slot), np.array(list(unknown.values())))
            self._states.update(zip(unknown, found.tolist(), strict=True))
        values = [self._states[key] for key in keys]
        if self._emptiness:
            whole = self._parts_whole(np.array([slot]))[0].sum(axis=0)
            for n, state in enumerate(states[1:], 1):
                shares = np.where(whole > 0, state.sum(axis=0) / np.maximum(whole, 1e-9), 1.0)
                values[n] += self._emptiness * float(shares.min())
        return values

    def _plain_values(self, slots: Ints, free: Floats) -> Floats:
        assert self.shapes is not None and self._parts is not None
        return self.shapes.values(self._parts.of(slots).with_free(free))
