"""Computes what each candidate of each host costs: the value of the host after it, less the value before.

Values are kept by host, and costs by requested shape and host. Both are computed again only for hosts that
changed, until the usual shapes change.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Bools, Floats, FreeProvider, Ints, ProviderArrays
from bus.queries import Candidate
from features.fragmentation.core.host_table import HostTable, SlotArrays
from features.fragmentation.core.scarcity import Scarcity
from features.fragmentation.core.usable import AT_ONCE, LoneHosts, LoneParts, ShapeTable, UsableParts
from scheduler_worker.core.extension import Shape, ShapeGroup, UsualShapes

MOST_COSTS = 16_000_000  # of hosts, for all requested shapes: 144 MB
MOST_STATES = 20_000  # states of hosts whose values are kept
# Hosts whose costs are computed again, on average for each evaluation of a request. What is not used adds up
# to at most MOST_SAVED, so that only a flood of many shapes exceeds it: then hosts keep former costs for some
# evaluations, until it is their turn or they are about to be chosen.
RENEWED = 256
MOST_SAVED = 100_000
FIRST_NEXT = 16  # hosts for which `NextCosts` are computed at first
NUMBERS_OF_NEXT = range(5)  # and after how many instances on each
DIGITS = 9  # equal candidates have equal values, in whatever order their amounts were added
NEVER = -1
NO_WAY = -1e9  # for hosts on which no candidate was found: another search may find one


@dataclass(eq=False)
class KnownCosts:
    """The costs of the best candidates for a shape, by the slots of hosts."""

    best: Floats
    pending: Bools  # hosts that changed since their costs were computed
    seen: int  # the last change of hosts that is counted in `pending`
    taken: Floats | None = None  # [c, 1]: what an instance takes; None: not always of the root
    turn: int = 0  # the host after those that were renewed in turn

    def renewable(self, fitting: Ints, most: int) -> Ints:
        """Return those of the pending hosts whose costs are to be computed now: at most `most`, half of them
        those with the highest former costs, the others in turn. Only fitting hosts count.
        """
        due = np.sort(fitting.compress(self.pending.take(fitting)))
        if due.size > most:
            several = most // 2
            renewed = np.zeros(due.size, np.bool_)
            first = int(np.searchsorted(due, self.turn))
            in_turn = np.arange(first, first + several) % due.size
            renewed[in_turn] = True
            renewed[np.argpartition(self.best.take(due), due.size - several)[-several:]] = True
            self.turn = int(due[in_turn[-1]]) + 1
            due = due.compress(renewed)
        self.pending[due] = False
        return due


class NextCosts:
    """The costs of further instances of a shape on hosts that are one provider, after some are there. The
    scheduler asks for it after each choice, and it is computed for several hosts together.
    """

    def __init__(self, values: "HostValues", asked: Shape, slots: Ints) -> None:
        self._values = values
        self._slots = slots  # of the hosts that the search found
        self._expected: list[int] = []  # indices among the found hosts, which are not computed yet
        self._most = FIRST_NEXT
        amounts = asked.amounts
        self._taken = [(name, amounts.get(name, 0)) for name in values.table.classes]
        self._counted = next((taken for taken in self._taken if taken[1]), None)
        # index of a host → its free amounts by class, and by number of instances what one more costs
        self._known: dict[int, tuple[dict[str, float], list[float]]] = {}

    def expect(self, indices: list[int]) -> None:
        """Name hosts that will be chosen, the next one first, by their indices among the found ones."""
        self._expected = indices

    def of(self, index: int, free: Mapping[str, int]) -> float | None:
        """Return the cost of an instance on a host with these free amounts; None if it is not known."""
        known = self._known.get(index)
        if known is None:
            if not self._expected:
                return None
            some, self._expected = self._expected[: self._most], self._expected[self._most :]
            self._most *= 2
            self._compute(some)
            known = self._known.get(index)
        if known is None or self._counted is None:
            return None
        (first, costs), (name, amount) = known, self._counted
        several = (first[name] - free.get(name, 0)) / amount
        if several not in NUMBERS_OF_NEXT:
            return None
        for name, amount in self._taken:
            if free.get(name, 0) != first[name] - several * amount:
                return None
        return costs[int(several)]

    def _compute(self, indices: list[int]) -> None:
        classes = self._values.table.classes
        taken = np.array([amount for _, amount in self._taken], np.float64)
        for nth, first, costs in self._values.next_costs(taken, self._slots[np.array(indices, np.intp)]):
            for index, amounts, of_host in zip(nth.tolist(), first.tolist(), costs.tolist(), strict=True):
                self._known[indices[index]] = dict(zip(classes, amounts, strict=True)), of_host


@dataclass(frozen=True, slots=True)
class LoneKind:
    """The common properties of hosts of one provider: arguments of `LoneHosts.value`."""

    number: int
    per_whole: tuple[float, ...]
    size: float
    shared: tuple[int, ...]


@dataclass(eq=False)
class HostValues:
    """The amounts of hosts that the usual shapes could use (`usable`), and the cost of requests in them."""

    spread: float  # weight of the least free share of a host while nothing is scarce; 0: all is scarce
    table: HostTable = field(default_factory=HostTable)
    shapes: ShapeTable | None = None
    parts: list[UsableParts] = field(default_factory=list)  # by group of hosts
    _made_for: tuple[object, ...] = ()
    _usual: UsualShapes = field(default_factory=UsualShapes)
    _shaped: tuple[object, ...] = ()
    _described: tuple[object, ...] = ()  # the providers and usual shapes at the last call of `follow`
    _followed: set[Shape] = field(default_factory=set)  # whose classes and traits the table has
    scarcity: Scarcity | None = None  # None: all shapes count as scarce
    _valued: ShapeTable | None = None  # the shapes, weighted by their scarcity
    _balance: float = 0.0  # weight of the least free share now
    # [h, n] by group of hosts: numbers that are equal for providers of equal traits and capacities
    _kinds: list[Floats] = field(default_factory=list)
    _mix: Floats = field(default_factory=lambda: np.zeros(0))  # by class: a number to mix amounts with
    _now: Floats = field(default_factory=lambda: np.zeros(0))  # value of each host, by slot
    _now_at: Ints = field(default_factory=lambda: np.zeros(0, np.intp))  # the version for which it is
    _costs: "OrderedDict[Shape, KnownCosts]" = field(default_factory=OrderedDict)
    _saved: int = MOST_SAVED  # hosts whose costs may be computed again
    _lone: LoneHosts | None = None
    _lone_parts: list[LoneParts | None] = field(default_factory=list)  # by group of hosts
    _lone_kinds: dict[tuple[object, ...], LoneKind] = field(default_factory=dict)
    _lone_kind_of: dict[int, LoneKind] = field(default_factory=dict)  # by slot
    # state of a host → its value, without the preference for empty hosts
    _states: dict[tuple[object, ...], float] = field(default_factory=dict)

    def follow(self, providers: ProviderArrays, usual: UsualShapes, *asked: Shape) -> None:
        """Take over the present amounts of hosts, and the usual shapes. `asked`: further shapes, whose
        candidates will be weighed.
        """
        table = self.table
        described = providers.layout, providers.shaped, usual.version
        if described != self._described:
            self._described = described
            self._followed.clear()
        if self._followed.issuperset(asked) and self._followed:
            table.follow_amounts(providers)
        else:
            rebuilt = table.rebuilt
            classes = usual.classes.union(*[shape.amounts for shape in asked])
            table.follow(providers, classes, usual.traits.union(*[shape.traits for shape in asked]))
            if table.rebuilt != rebuilt:  # without the traits of other shapes
                self._followed.clear()
            self._followed.update(asked)
        shaped = usual.version, table.rebuilt, table.reshaped
        if shaped != self._shaped:
            self._shaped = shaped
            self._take_over_shapes(usual)
        elif self.scarcity is not None and self.scarcity.has_changed():
            self._value_by_scarcity()

    def _take_over_shapes(self, usual: UsualShapes) -> None:
        """Take over the usual shapes, or the capacities and traits of hosts, after either has changed."""
        table = self.table
        made_for = usual.version, table.rebuilt, *(table.total_whole > 0).tolist()
        if made_for != self._made_for:
            self._made_for = made_for
            self._usual = usual
            capacity = dict(zip(table.classes, table.total_whole.tolist(), strict=True))
            hosts = len(table.versions)
            self.shapes = ShapeTable.of(usual.shapes, usual.parts, hosts, table.classes, capacity)
            self.scarcity = Scarcity(usual, self.shapes, table) if self.spread else None
        self.reshape()

    def _value_by_scarcity(self) -> None:
        """Value hosts by the present scarcity of shapes; without `spread`, as if all were scarce."""
        assert self.shapes is not None
        self._balance, self._valued = 0.0, self.shapes
        if (scarcity := self.scarcity) is not None:
            self._balance = self.spread * (1.0 - scarcity.overall)
            self._valued = self.shapes.weighted(scarcity.of_shapes, scarcity.overall)
        self._lone = LoneHosts(self._valued) if LoneHosts.can_value(self._valued) else None
        self._costs.clear()
        self._states.clear()
        self._now_at[:] = NEVER

    def reshape(self) -> None:
        """Take over the capacities and traits of hosts."""
        table, shapes = self.table, self.shapes
        assert shapes is not None
        mixed = np.random.default_rng(2).random(len(shapes.groups))
        self._mix, of_whole = np.random.default_rng(1).random((2, len(table.classes)))
        self.parts, self._kinds, self._lone_parts = [], [], []
        for group in table.groups:
            eligible = np.ones((len(shapes.groups), *group.rows.shape), np.bool_)
            for number, asked in enumerate(shapes.groups):
                eligible[number] = _having(asked, group)
            admitted = self._admitted(group) if shapes.is_selective else None
            self.parts.append(
                UsableParts.made(group.free, group.whole, shapes.scale, eligible, admitted, group.shared)
            )
            self._lone_parts.append(LoneParts.made(self.parts[-1]))
            kinds = np.tensordot(mixed, eligible.astype(np.float64), axes=1)
            self._kinds.append(kinds + group.whole @ of_whole)
        self._now = np.zeros(len(table.versions))
        self._now_at = np.full(len(table.versions), NEVER, np.intp)
        self._lone_kinds.clear()
        self._lone_kind_of.clear()
        if self.scarcity is not None:
            self.scarcity.begin(self.parts)
        self._value_by_scarcity()

    def _admitted(self, group: SlotArrays) -> Bools:
        """Return for each usual shape which hosts of a group have the traits that it requires of a host."""
        found = np.ones((len(self._usual.shapes), len(group.rows)), np.bool_)
        for number, shape in enumerate(self._usual.shapes):
            for asked in shape.groups:
                if asked.is_split and asked.traits:
                    found[number] &= _having(asked, group)[:, 0]
        return found

    # The best candidate of each host, in arrays:

    def slots(self, positions: Ints) -> Ints:
        """Return the slots of hosts in the table, given the rows of their roots in placement's index."""
        assert self.table.layout is not None
        return self.table.layout.slot_at.take(positions)

    def best_of(self, asked: Shape, slots: Ints) -> Floats:
        """Return the values of the best candidates for a shape on the hosts in these slots."""
        table, costs = self.table, self._costs.get(asked)
        hosts = len(table.versions)
        self._saved = min(self._saved + RENEWED, MOST_SAVED)
        is_new = costs is None
        if costs is None:
            taken = self._taken_of_root(asked)
            costs = KnownCosts(np.full(hosts, NO_WAY), np.ones(hosts, np.bool_), table.changes, taken)
            self._costs[asked] = costs
            while len(self._costs) > 1 and len(self._costs) * hosts > MOST_COSTS:
                self._costs.popitem(last=False)
            most = hosts
        else:
            self._costs.move_to_end(asked)
            costs.pending[table.changed_since(costs.seen)] = True
            costs.seen, most = table.changes, self._saved
        renewed = costs.renewable(slots, most)
        if not is_new:
            self._saved -= renewed.size
        for low in range(0, len(renewed), AT_ONCE):
            some = renewed[low : low + AT_ONCE]
            costs.best[some] = self._computed(asked, costs.taken, some).round(DIGITS)
        return costs.best.take(slots)

    def _taken_of_root(self, asked: Shape) -> Floats | None:
        """Return [c, 1]: what an instance takes of a host that is one provider; None if that depends."""
        if not all(group.is_split for group in asked.groups):
            return None
        if not self.table.number.keys() >= asked.amounts.keys():
            return None
        taken = np.zeros((len(self.table.classes), 1))
        for name, amount in asked.amounts.items():
            taken[self.table.number[name]] = amount
        return taken

    def _computed(self, asked: Shape, taken: Floats | None, slots: Ints) -> Floats:
        assert self.table.layout is not None
        best = np.full(len(slots), NO_WAY)
        for number, here, hosts in self.table.layout.by_group(slots):
            lone = self._lone_parts[number]
            if self._lone is not None and lone is not None and taken is not None:
                best[here] = self._computed_of_lone(number, self._lone, lone, taken, slots[here], hosts)
            else:
                best[here] = self._computed_of_trees(number, asked, slots[here], hosts)
        return best

    def _computed_of_lone(
        self, number: int, lone: LoneHosts, parts: LoneParts, taken: Floats, slots: Ints, hosts: Ints
    ) -> Floats:
        """Return what an instance that takes some amounts costs on hosts that are one provider."""
        now = self.table.groups[number].free[hosts, 0].T
        versions = self.table.versions.take(slots)
        # no shape counts: all hosts have the value 0
        stale = np.flatnonzero(self._now_at.take(slots) != versions) if lone.counts else slots[:0]
        first = stale.size
        # the changed hosts, and all hosts with the instance
        free = np.empty((len(now), first + hosts.size))
        free[:, :first] = now[:, stale]
        np.subtract(now, parts.had(taken, hosts), out=free[:, first:])
        these = parts.of(np.concatenate((hosts[stale], hosts)))
        shares = these.shares(free)
        found: Floats = np.zeros(hosts.size)
        if lone.counts:
            values = lone.values(free, shares, these.sizes)
            changed = slots[stale]
            self._now[changed] = values[:first]
            self._now_at[changed] = versions[stale]
            found = values[first:] - self._now.take(slots)
        if self._balance:
            found += self._balance * shares[:, first:].min(axis=0, initial=1.0)
        return found

    def next_costs(self, taken: Floats, slots: Ints) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Yield for those hosts that are one provider: their numbers among `slots`, their free amounts, and
        [h, n]: what an instance that takes some costs after each of NUMBERS_OF_NEXT.
        """
        assert self.table.layout is not None and self._lone is not None
        several = np.arange(len(NUMBERS_OF_NEXT) + 1)
        for number, here, hosts in self.table.layout.by_group(slots):
            parts = self._lone_parts[number]
            if parts is None:
                continue
            now = self.table.groups[number].free[hosts, 0]
            left = now.T[:, :, np.newaxis] - np.multiply.outer(taken, several)[:, np.newaxis]
            free = left.reshape(len(taken), -1)
            repeated = parts.of(np.repeat(hosts, several.size))
            shares = repeated.shares(free)
            values = self._lone.values(free, shares, repeated.sizes).reshape(hosts.size, -1)
            costs = values[:, 1:] - values[:, :-1]
            if self._balance:
                least = shares.min(axis=0, initial=1.0).reshape(hosts.size, -1)
                costs += self._balance * least[:, 1:]
            yield np.arange(slots.size)[here], now, costs.round(DIGITS)

    def _computed_of_trees(self, number: int, asked: Shape, slots: Ints, hosts: Ints) -> Floats:
        way_of, taken = self.ways(asked, number, hosts, self.parts[number].free[hosts])
        stale = np.flatnonzero(self._now_at[slots] != self.table.versions[slots])
        # the values of changed hosts, and of all candidates
        parts = self.parts[number].of(hosts[np.concatenate((stale, way_of))])
        parts.free[stale.size :] -= taken
        values = self.values_of(parts)
        self._now[slots[stale]] = values[: stale.size]
        self._now_at[slots[stale]] = self.table.versions[slots[stale]]
        after = values[stale.size :]
        if self._balance:
            after = after + self._balance * parts.least_shares()[stale.size :]
        costs = after - self._now[slots[way_of]]
        if len(way_of) == len(hosts) and self.table.groups[number].rows.shape[1] == 1:
            return costs
        found = np.full(len(hosts), NO_WAY)
        np.maximum.at(found, way_of, costs)
        return found

    def values_of(self, parts: UsableParts) -> Floats:
        assert self._valued is not None
        if len(parts.free) <= AT_ONCE:
            return self._valued.values(parts)
        return np.concatenate([self._valued.values(parts.of(some)) for some in parts.portions()])

    def ways(self, asked: Shape, number: int, hosts: Ints, free: Floats) -> tuple[Ints, Floats]:
        """Return candidates for a shape on some hosts of a group with these free amounts: for each the number
        of its host among `hosts`, and the amounts that it takes. A shape with several devices takes the
        fullest that are large enough.
        """
        if not self.table.number.keys() >= asked.amounts.keys():  # it fits nowhere
            return np.zeros(0, np.intp), free[:0]
        group, lacks = self.table.groups[number], self.parts[number].lacks[hosts]
        split, base = np.zeros(free.shape[2]), np.zeros_like(free)
        single: tuple[Floats, Bools] | None = None
        fits_all = np.ones(len(hosts), np.bool_)
        may = np.ones(free.shape[:2], np.bool_)  # providers that other groups of the shape have not taken
        for each in asked.groups:
            amounts = np.zeros(free.shape[2])
            for name, amount in each.resources:
                amounts[self.table.number[name]] = amount
            if each.is_split:
                split += amounts
                continue
            having = _having(each, group)[hosts] & may
            if each.count == 1 and single is None:
                single = amounts, ((free - base >= amounts) | (amounts == 0)).all(axis=2) & having
                continue
            fits_all &= _take_fullest(each.count, amounts, free, base, having, may if asked.apart else None)
        if free.shape[1] == 1:
            base[:, 0] += split * (1.0 - lacks[:, 0])  # what the host lacks, a pool supplies
        elif split.any():
            _take_split(split, free, lacks, base)
        if single is None:
            possible = np.flatnonzero(fits_all)
            return possible, base[possible]
        of_one, fitting = single
        fitting &= may
        host, provider = self._distinct(
            self._kinds[number][hosts], free, *np.nonzero(fitting & fits_all[:, np.newaxis])
        )
        taken = base[host]
        taken[np.arange(len(host)), provider] += of_one
        return host, taken

    def _distinct(self, kinds: Floats, free: Floats, host: Ints, provider: Ints) -> tuple[Ints, Ints]:
        """Return one of the providers of a host that are alike for the usual shapes."""
        key = free[host, provider] @ self._mix + kinds[host, provider]
        order = np.lexsort((key, host))
        host, provider, key = host[order], provider[order], key[order]
        is_first = np.ones(len(host), np.bool_)
        is_first[1:] = (host[1:] != host[:-1]) | (key[1:] != key[:-1])
        return host[is_first], provider[is_first]

    # The candidates of one host:

    def next_costs_of(self, asked: Shape, slots: Ints) -> NextCosts | None:
        """Return the costs of second instances on the hosts in these slots; None if they are as fast to
        compute for each host alone.
        """
        counts = self._lone is not None and self._lone.counts
        return NextCosts(self, asked, slots) if counts and self._costs[asked].taken is not None else None

    def of_ways(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        """Return the values of candidates on a host as it is now."""
        assert self.table.layout is not None
        slot = self.table.layout.slot_at.item(tree[0].position)
        is_lone = len(tree) == 1 and self._lone is not None
        values = self._of_lone(slot, tree[0], ways) if is_lone else self._of_tree(slot, tree, ways)
        return [round(value, DIGITS) for value in values]

    def _of_lone(self, slot: int, root: FreeProvider, ways: Sequence[Candidate]) -> list[float]:
        kind = self._lone_kind_of.get(slot) or self._lone_kind(slot)
        left, classes, counts = root.free, self.table.classes, self._lone is not None and self._lone.counts
        free = tuple([max(left.get(name, 0), 0) for name in classes])
        before, values = self._of_lone_state(kind, free) if counts else 0.0, []
        for way in ways:
            asked = way.allocations.get(root.uuid, {})
            after = tuple([has - asked.get(name, 0) for name, has in zip(classes, free, strict=True)])
            value = self._of_lone_state(kind, after) - before if counts else 0.0
            if self._balance:
                shares = [has * by for has, by in zip(after, kind.per_whole, strict=True) if by]
                value += self._balance * min(shares, default=1.0)
            values.append(value)
        return values

    def _of_lone_state(self, kind: LoneKind, free: tuple[int, ...]) -> float:
        states = self._states
        key = kind.number, free
        known = states.get(key)
        if known is None:
            assert self._lone is not None
            if len(states) > MOST_STATES:
                states.clear()
            known = states[key] = self._lone.value(free, kind.per_whole, kind.size, kind.shared)
        return known

    def _lone_kind(self, slot: int) -> LoneKind:
        assert self.table.layout is not None
        [(number, _, [host])] = self.table.layout.by_group(np.array([slot]))
        parts = self.parts[number]
        shared = () if parts.shared is None else tuple(np.flatnonzero(parts.shared[host]).tolist())
        facts = tuple(parts.per_whole[host, 0].tolist()), float(parts.sizes[host]), shared
        kind = self._lone_kinds.setdefault(facts, LoneKind(len(self._lone_kinds), *facts))
        self._lone_kind_of[slot] = kind
        return kind

    def _of_tree(self, slot: int, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        table = self.table
        assert table.layout is not None
        [(group, _, [host])] = table.layout.by_group(np.array([slot]))
        rows = table.groups[group].rows[host]
        nth = {row: n for n, row in enumerate(rows.tolist()) if row >= 0}
        nth_of = {each.uuid: nth[each.position] for each in tree if each.position in nth}
        free = np.zeros((len(rows), len(table.classes)))
        for provider in tree:
            if (n := nth_of.get(provider.uuid)) is not None:
                for name, amount in provider.free.items():
                    if name in table.number:
                        free[n, table.number[name]] = max(amount, 0)
        states = [free]
        for way in ways:
            after = free.copy()
            for uuid, amounts in way.allocations.items():
                if (n := nth_of.get(uuid)) is not None:
                    for name, amount in amounts.items():
                        if name in table.number:
                            after[n, table.number[name]] -= amount
            states.append(after)
        parts = self.parts[group].of(np.full(len(states), host)).with_free(np.array(states))
        before, *values = self._of_states(slot, parts)
        if self._balance:
            shares = parts.least_shares()[1:].tolist()
            values = [value + self._balance * share for value, share in zip(values, shares, strict=True)]
        return [value - before for value in values]

    def _of_states(self, slot: int, parts: UsableParts) -> list[float]:
        """Return the values of one host with different free amounts."""
        assert self._valued is not None
        keys = [(slot, state.tobytes()) for state in parts.free]
        if len(self._states) > MOST_STATES:
            self._states.clear()
        unknown = {key: n for n, key in enumerate(keys) if key not in self._states}
        if unknown:
            found = self._valued.values(parts.of(np.array(list(unknown.values()))))
            self._states.update(zip(unknown, found.tolist(), strict=True))
        return [self._states[key] for key in keys]


def _having(asked: ShapeGroup, group: SlotArrays) -> Bools:
    """Return for each provider of each host whether it has the traits that a request group requires."""
    found = np.ones(group.rows.shape, np.bool_)
    for trait in asked.required:
        found &= group.traits[trait]
    for some in asked.required_any:
        found &= np.any([group.traits[trait] for trait in some], axis=0)
    for trait in asked.forbidden:
        found &= ~group.traits[trait]
    return found


def _take_split(split: Floats, free: Floats, lacks: Floats, base: Floats) -> None:
    """Add to `base` amounts that any providers of a host may supply: the root, or else the one with most."""
    hosts = np.arange(len(base))
    for c in np.flatnonzero(split).tolist():
        supplies = np.where(lacks[:, 0, c] == 0, 0, np.argmax(free[:, :, c], axis=1))
        # a class that the host lacks is that of a shared provider
        base[hosts, supplies, c] += np.where(lacks[:, :, c].all(axis=1), 0.0, split[c])


def _take_fullest(
    count: int, amounts: Floats, free: Floats, base: Floats, having: Bools, may: Bools | None
) -> Bools:
    """Add to `base` what equal groups take: of each host the fullest providers that are large enough. Return
    for each host whether it has enough. `may`: providers that may be taken; those that are taken are removed.
    """
    every = np.arange(len(free))
    enough = np.ones(len(free), np.bool_)
    for _ in range(count):
        left = free - base
        fits = ((left >= amounts) | (amounts == 0)).all(axis=2) & having
        if may is not None:
            fits &= may
        size = np.where(fits, (left * (amounts > 0)).sum(axis=2), np.inf)
        chosen = np.argmin(size, axis=1)
        enough &= np.isfinite(size[every, chosen])
        base[every, chosen] += amounts
        if may is not None:
            may[every, chosen] = False
    return enough
