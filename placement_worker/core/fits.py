"""Finds the complete sets of allocations that satisfy a planned query, on one host after another."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from bus.candidates import SenselessQuery
from bus.decisions import EXCLUDED, Removal
from bus.host_health import DISABLED
from bus.queries import FindCandidates
from bus.reports import EXCLUDES_SIBLINGS, SHARES
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS, MAX_INT, Allocations, Resources
from placement_worker.core.index import BEYOND_COUNTING, Bools, Index, Row, RowSet, Snapshot, Tops

# Section: prepares a query for the search: which providers satisfy each part (slot) of the query, and which
# trees have a provider for all slots.
#
# Each group with a suffix is a slot, satisfied by one provider; in the group without a suffix each resource
# class is a slot. An anchor is the root of a candidate. A slot can be satisfied by a provider of the anchor's
# tree, or by a provider that shares its resources with such a provider through an aggregate.
#
# A requirement has a reason code: `class` (too little of it, or no provider has it), `trait`,
# `forbidden_trait`, `aggregate`, `forbidden_aggregate`, `tree`, `cell`, `cell_disabled`, `zone`, `host` and
# `forbidden_host` (required and excluded roots), `disabled`, `group` (everything exists, but not on one
# provider), `together` (every group fits singly, but not all of them), `unseen` (too many combinations).


Numbers = npt.NDArray[Any]

ZONE = "availability_zone"  # key of an aggregate's metadata


@dataclass(slots=True)
class Demand:
    """One requirement of a query, such as a resource or trait, and an array that marks the providers or hosts
    which satisfy it."""

    says: str
    met: Bools | None
    resource_class: str = ""
    asked: int = 0
    code: str = ""
    of: str = ""  # name of the request group, as a prefix of texts
    joint: bool = False  # a combination of other requirements: reported only if each of them is met
    about: str = ""  # the field of the query that states the requirement, for programs


@dataclass(slots=True, eq=False)
class Slot:
    """A part of a query that one provider satisfies: a request group with a suffix, or one resource class of
    the group without."""

    suffix: str
    asks: Resources
    in_tree: Bools  # rows of providers that can satisfy the slot for their own tree
    away: Bools | None  # rows of sharing providers that can satisfy the slot for other trees


@dataclass(slots=True)
class JointRules:
    """A query's rules about the providers that may be combined, such as `same_subtree` and `group_policy`."""

    isolate: frozenset[str] = frozenset()  # suffixes of groups that must not share a provider
    subtrees: tuple[tuple[int, ...], ...] = ()  # sets of slots; one provider of a set is an ancestor of all
    # sets of traits: of each set, one provider of the group without a suffix must have at least one trait
    needs: tuple[tuple[str, ...], ...] = ()
    summed: tuple[str, ...] = ()  # resource classes of several slots: a provider must have the sum
    apart: bool = False  # never two providers of one tree


class SlotPlanner:
    """Divides a query into slots, and determines which providers or hosts satisfy each requirement of it."""

    def __init__(self, trees: Snapshot, query: FindCandidates) -> None:
        self.index = index = trees.index
        self._trees = trees
        self.query = query
        self.high = index.high
        self.slots: list[Slot] = []
        self._sharing = index.traits[SHARES].mask(self.high) if index.sharers else None
        # True: every tree is one provider, and none shares, so each requirement is about this provider.
        self._plain = not index.children and self._sharing is None and len(query.groups) == 1
        self._everyone = index.roots[: self.high]
        if index.children:
            self._everyone = self._everyone | index.below[: self.high]
        self._alike: dict[object, tuple[Bools, list[Demand]]] = {}

    def demands(self) -> Iterator[Demand]:
        index, query = self.index, self.query
        # First, so that hosts which other demands remove are counted among the named hosts only.
        if query.roots:
            constraint = "not the requested host" if len(query.roots) == 1 else "none of the requested hosts"
            yield Demand(constraint, self._these(query.roots), about="roots", code="host")
        if query.cell:
            flags = index.cells.get(query.cell)
            met = None if flags is None else flags.mask(self.high)
            yield Demand(f"cell {query.cell}", met, about="cell", code="cell")
        if query.not_cells:
            constraint = f"in a disabled cell ({', '.join(query.not_cells)})"
            disabled = self._any(index.cells, query.not_cells)
            met = ~(np.zeros(self.high, np.bool_) if disabled is None else disabled)
            yield Demand(constraint, met, about="not_cells", code="cell_disabled")
        if query.not_roots:
            met = ~self._these(query.not_roots)
            yield Demand(EXCLUDED, met, about="not_roots", code="forbidden_host")
        if query.zone:
            yield Demand(f"zone {query.zone}", self._in_zone(query.zone), about="zone", code="zone")
        for trait in query.root_required:
            test = self._trait(trait)
            test.says = f"root {test.says}"
            yield test
        for trait in query.root_forbidden:
            if trait in index.traits:
                met = ~index.traits[trait].mask(self.high)
                if trait == DISABLED:
                    yield Demand("disabled", met, code="disabled")
                else:
                    yield Demand(f"no root trait {trait}", met, code="forbidden_trait")
        for choice in query.root_member_of:
            met = self._any(index.aggregates, choice)
            yield Demand(f"root aggregate {self._named(choice)}", met, code="aggregate")
        for uuid in query.root_not_member_of:
            if uuid in index.aggregates:
                met = ~index.aggregates[uuid].mask(self.high)
                yield Demand(f"root not in aggregate {self._named((uuid,))}", met, code="forbidden_aggregate")
        for group in query.groups:
            if self._plain:
                of = _called(group)
                for test in self._tests(group):
                    test.says, test.of = of + test.says, of
                    yield test
            else:
                yield from self._together(group) if group.suffix else self._spread(group)
        if len(self.slots) > 1:
            yield from self._in_all()

    def rules(self) -> JointRules:
        query = self.query
        if self._plain:
            return JointRules()
        at = {slot.suffix: position for position, slot in enumerate(self.slots)}
        sets = [tuple(dict.fromkeys(at[suffix] for suffix in suffixes)) for suffixes in query.same_subtree]
        needs: list[tuple[str, ...]] = []
        for group in query.groups:
            if not group.suffix:
                needs = [*((trait,) for trait in group.required), *group.required_any]
        return JointRules(
            isolate=_isolated(query),
            subtrees=tuple(set_ for set_ in sets if len(set_) > 1),
            needs=tuple(needs),
            summed=tuple(self._several()),
            apart=not query.nested and self.index.children > 0,
        )

    def providers(self) -> Bools:
        """Return which rows of the index are providers that satisfy all groups, each of them alone."""
        met = self._everyone
        for group in self.query.groups:
            for test in self._tests(group):
                met = met & self._rows(test)
        return met

    def _named(self, aggregates: tuple[str, ...]) -> str:
        facts = self.index.aggregate_facts
        return " or ".join(
            facts[aggregate].name or aggregate if aggregate in facts else aggregate
            for aggregate in aggregates
        )

    def _these(self, roots: tuple[str, ...]) -> Bools:
        met = np.zeros(self.high, np.bool_)
        met[[row.position for uuid in roots if (row := self.index.rows.get(uuid)) is not None]] = True
        return met

    def _in_zone(self, zone: str) -> Bools | None:
        index = self.index
        known = [index.zones[zone].mask(self.high)] if zone in index.zones else []
        for uuid, facts in index.aggregate_facts.items():
            if facts.metadata.get(ZONE) == zone and uuid in index.aggregates:
                known.append(index.aggregates[uuid].mask(self.high))
        met: Bools | None = np.logical_or.reduce(known) if known else None
        return met

    def reached(self) -> Bools | None:
        met: Bools | None = None
        for slot in self.slots:
            if slot.away is not None:
                met = np.zeros(self.high, np.bool_) if met is None else met
                self._reach(met, slot.away)
        return met

    def _together(self, group: ResourceGroup) -> Iterator[Demand]:
        facts = (group.required, group.forbidden, group.required_any, group.member_of, group.not_member_of)
        key = (tuple(group.resources.items()), facts, group.in_tree)
        if key not in self._alike:  # a cache, because groups often differ only in their suffix
            rows, demands = self._everyone, []
            for test in self._tests(group):
                met = self._rows(test)
                demands.append(self._demand(test, met, met))
                rows = rows & met
            if len(demands) > 1:
                demands.append(
                    Demand("all of it at one provider", self._anchors(rows, rows), joint=True, code="group")
                )
            if not demands:
                rows = rows.copy()  # because the index changes its array later
            self._alike[key] = rows, demands
        rows, demands = self._alike[key]
        self.slots.append(Slot(group.suffix, group.resources, rows, self._sharers(rows)))
        of = _called(group)
        for demand in demands:
            yield replace(demand, says=of + demand.says, of=of)

    def _spread(self, group: ResourceGroup) -> Iterator[Demand]:
        tests = list(self._tests(group))
        root_of = self.index.root_of[: self.high]
        in_tree = away = member = self._everyone
        for test in tests:
            rows = mine = self._rows(test)
            if test.code == "aggregate":  # an aggregate of the root is valid for the whole tree
                member = member & rows
            elif test.code == "forbidden_aggregate":
                mine = rows & rows[root_of]
            if test.code in ("tree", "forbidden_trait", "forbidden_aggregate"):
                in_tree, away = in_tree & mine, away & rows
            yield self._demand(test, mine, rows if group.in_tree is None else None)
        if group.member_of:
            in_tree, away = in_tree & (member | member[root_of]), away & member
        givers, sharers = np.zeros(self.high, np.bool_), np.zeros(self.high, np.bool_)
        for test in tests:
            if test.code == "class":
                mine, elsewhere = in_tree & self._rows(test), away & self._rows(test)
                givers |= mine
                sharers |= elsewhere
                slot = Slot("", {test.resource_class: test.asked}, mine, self._sharers(elsewhere))
                self.slots.append(slot)
                if in_tree is not self._everyone:
                    met = self._anchors(mine, slot.away)
                    yield Demand(f"{test.says}, all else being met", met, joint=True, code="group")
        for test in tests:
            if test.code == "trait":
                met = self._anchors(givers & self._rows(test), sharers & self._rows(test))
                yield Demand(f"{test.says}, where there is room", met, joint=True, code="group")

    def _in_all(self) -> Iterator[Demand]:
        for name in self._several():
            asking = [slot for slot in self.slots if name in slot.asks]
            asked = min(sum(slot.asks[name] for slot in asking), BEYOND_COUNTING)
            kind = self.index.classes.get(name)
            if kind is not None:
                top = np.maximum(self._trees.top(name)[: self.high], 0)
                met = self._summed(asking, top) >= asked
                yield Demand(f"{name}: {asked} free in all groups", met, joint=True, code="class")
        isolated = _isolated(self.query)
        apart = [slot for slot in self.slots if slot.suffix in isolated]
        if len(apart) > 1:
            met = self._summed(apart, np.ones(self.high)) >= len(apart)
            yield Demand(f"isolate: {len(apart)} providers", met, joint=True, code="together")

    def _tests(self, group: ResourceGroup) -> Iterator[Demand]:
        index, high = self.index, self.high
        if group.in_tree is not None:
            row = index.rows.get(group.in_tree)
            tree = None if row is None else index.root_of[:high] == index.root_of[row.position]
            yield Demand(f"in the tree of {group.in_tree}", tree, code="tree")
        for trait in group.required:
            yield self._trait(trait)
        for traits in group.required_any:
            yield Demand(f"trait {' or '.join(traits)}", self._any(index.traits, traits), code="trait")
        for trait in group.forbidden:
            if trait in index.traits:
                yield Demand(f"no trait {trait}", ~index.traits[trait].mask(high), code="forbidden_trait")
        for choice in group.member_of:
            constraint = f"aggregate {self._named(choice)}"
            yield Demand(constraint, self._any(index.aggregates, choice), code="aggregate")
        for uuid in group.not_member_of:
            if uuid in index.aggregates:
                constraint = f"not in aggregate {self._named((uuid,))}"
                yield Demand(constraint, ~index.aggregates[uuid].mask(high), code="forbidden_aggregate")
        for name, asked in group.resources.items():
            kind = index.classes.get(name)
            if kind is None:
                yield Demand(f"resource class {name}: no provider has it", None, name, asked, "class")
                continue
            if asked > MAX_INT:  # no inventory has so much, and arrays cannot contain it
                yield Demand(f"{name}: {asked} free", None, name, asked, "class")
                continue
            met = self._trees.gives(name, asked)
            if kind.picky and kind.least is not None and kind.step is not None:
                met &= kind.least[:high] <= asked
                met &= asked % kind.step[:high] == 0
            yield Demand(f"{name}: {asked} free", met, name, asked, "class")

    def _trait(self, trait: str) -> Demand:
        flags = self.index.traits.get(trait)
        if flags is None:
            return Demand(f"trait {trait}: no provider has it", None, code="trait")
        return Demand(f"trait {trait}", flags.mask(self.high), code="trait")

    def _any(self, kind: dict[str, RowSet], names: tuple[str, ...]) -> Bools | None:
        known = [kind[name].mask(self.high) for name in names if name in kind]
        met: Bools | None = np.logical_or.reduce(known) if known else None
        return met

    def _demand(self, test: Demand, in_tree: Bools, away: Bools | None) -> Demand:
        met = self._anchors(in_tree & self._everyone, away) if test.met is not None else None
        return Demand(test.says, met, test.resource_class, test.asked, test.code)

    def _anchors(self, in_tree: Bools, away: Bools | None) -> Bools:
        met = in_tree & self.index.roots[: self.high]
        if self.index.children:
            rows = np.flatnonzero(in_tree & self.index.below[: self.high])
            met[self.index.root_of[rows]] = True
        if away is not None and self._sharing is not None:
            self._reach(met, away & self._sharing)
        return met

    def _reach(self, met: Bools, away: Bools) -> None:
        reached = [self.index.reach(position) for position in np.flatnonzero(away).tolist()]
        if reached:
            met[np.concatenate(reached)] = True

    def _summed(self, slots: list[Slot], of: Numbers) -> Numbers:
        rows = np.flatnonzero(np.logical_or.reduce([slot.in_tree for slot in slots]))
        total = np.bincount(self.index.root_of[rows], weights=of[rows], minlength=self.high)
        total = total.astype(np.float64, copy=False)  # without rows, bincount returns integers
        shared = [slot.away for slot in slots if slot.away is not None]
        if shared:
            for position in np.flatnonzero(np.logical_or.reduce(shared)).tolist():
                total[self.index.reach(position)] += of[position]
        return total

    def _sharers(self, rows: Bools) -> Bools | None:
        if self._sharing is None:
            return None
        away = rows & self._sharing
        return away if away.any() else None

    def _rows(self, test: Demand) -> Bools:
        return np.zeros(self.high, np.bool_) if test.met is None else test.met

    def _several(self) -> list[str]:
        names = [name for slot in self.slots for name in slot.asks]
        return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _isolated(query: FindCandidates) -> frozenset[str]:
    if query.group_policy == "isolate":
        return frozenset(group.suffix for group in query.groups) - {""}
    return frozenset(query.isolated)


def _called(group: ResourceGroup) -> str:
    return f"group {group.suffix}: " if group.suffix else ""


# Section: assigns a provider of one host to each slot (part of a query), such that the combination is valid.
#
# The search is depth first, and begins with the slot that has the fewest providers. A branch is abandoned as
# soon as it cannot succeed, and a state without a solution is recognized when it occurs again, also with
# equivalent providers. So the first solutions are found quickly, and memory is limited to one branch.


Choice = tuple[Row, ...]  # one provider for each slot

BREATH = 256  # search steps (of one or two microseconds) without a result, after which other tasks may run
WARY = 24  # consecutive dead ends after which states are remembered


def shares(row: Row) -> bool:
    return SHARES in row.traits


class AssignmentSearch:
    """Searches assignments of providers to the slots of a query at one host. With `mixed`, assignments that
    use only sharing providers are left out, because they are equal for many hosts. With `unordered`, of the
    assignments that differ only in which of several equal slots has which provider, one is searched.
    """

    def __init__(
        self,
        trees: Snapshot,
        slots: Sequence[Slot],
        rules: JointRules,
        options: Sequence[Sequence[Row]],
        *,
        mixed: bool = False,
        unordered: bool = False,
    ) -> None:
        self.steps = 0
        self._rules = rules
        self._trees = trees
        self._above: dict[int, frozenset[int]] = {}
        if rules.subtrees:
            options = self._tied(options)
        self._possible = all(options)
        if not self._possible:
            return
        self._order = sorted(range(len(slots)), key=lambda nth: len(options[nth]))
        self._slots = [slots[nth] for nth in self._order]
        self._options = [options[nth] for nth in self._order]
        self._sets = [
            [number for number, members in enumerate(rules.subtrees) if nth in members] for nth in self._order
        ]
        self._asks = [
            [(name, slot.asks[name]) for name in rules.summed if name in slot.asks] for slot in self._slots
        ]
        self._twins = self._equal_slots() if unordered else [-1] * len(slots)
        self._all_bits = (1 << len(rules.needs)) - 1
        self._bits_of: dict[int, int] = {}
        self._is_mixed = [not mixed]
        self._look_ahead()
        # State of the current branch of the search.
        self._chosen: list[Row] = []
        self._taken: dict[tuple[int, str], int] = {}
        self._alone: set[int] = set()  # providers of slots with a suffix, if they must differ
        self._in_tree: dict[str, tuple[int, int]] = {}  # tree → its only chosen provider, and how often
        self._gathered = [0]  # for each depth, a bit mask of the met `rules.needs`
        # For each depth, the possible common ancestors of each set of slots in `rules.subtrees`.
        self._tops: list[list[frozenset[int]]] = [[frozenset(later) for later in self._later[0]]]
        self._picked: list[list[int]] = [[] for _ in rules.subtrees]  # chosen providers of each set
        # States of the search that cannot lead to a result.
        self._dead: set[Hashable] = set()
        self._ends = 0
        self._kinds: dict[int, int] = {}
        self._kind_names: dict[Hashable, int] = {}

    def _equal_slots(self) -> list[int]:
        """Return, for each slot, the depth of the last equal slot before it, or -1. Equal slots can exchange
        their providers, so the provider of the later one never stands before that of the other.
        """
        last: dict[Hashable, int] = {}
        twins = []
        for depth, slot in enumerate(self._slots):
            key = (
                bool(slot.suffix) or depth,  # traits are required of the group without a suffix as a whole
                tuple(sorted(slot.asks.items())),
                tuple([row.position for row in self._options[depth]]),
                slot.suffix in self._rules.isolate,
                tuple(self._sets[depth]),
            )
            twins.append(last.get(key, -1))
            last[key] = depth
        return twins

    def _look_ahead(self) -> None:
        """Compute, for each slot, which rules about several providers together (such as required traits and
        same subtrees) this and the later slots can still satisfy.
        """
        depths = len(self._slots) + 1
        self._could = [0] * depths
        self._could_mix = self._is_mixed * depths
        self._later: list[list[set[int]]] = [[set() for _ in self._rules.subtrees] for _ in range(depths)]
        for depth in range(depths - 2, -1, -1):
            rows = self._options[depth]
            self._could[depth] = self._could[depth + 1] | self._bits(depth, rows)
            self._could_mix[depth] = self._could_mix[depth + 1] or not all(map(shares, rows))
            self._later[depth] = list(self._later[depth + 1])
            for number in self._sets[depth]:
                self._later[depth][number] = self._later[depth + 1][number] | {row.position for row in rows}

    def __iter__(self) -> Iterator[Choice | None]:
        """Yield each valid assignment of providers to slots once, and None after every BREATH search steps
        without one."""
        if not self._possible:
            return
        last, fruit = len(self._slots) - 1, 0
        tried = [0] * (last + 1)
        fruitful = [False] * (last + 1)
        states: list[Hashable] = [None] * (last + 1)
        depth = 0
        while True:
            options = self._options[depth]
            if tried[depth] == len(options):
                if not fruitful[depth]:
                    self._ends += 1
                    if states[depth] is not None:
                        self._dead.add(states[depth])
                if depth == 0:
                    return
                depth -= 1
                fruitful[depth] |= fruitful[depth + 1]
                self._undo(depth)
                continue
            row = options[tried[depth]]
            tried[depth] += 1
            self.steps += 1
            while self.steps - fruit >= BREATH:
                fruit += BREATH
                yield None
            if not self._take(depth, row):
                continue
            if depth == last:
                fruitful[depth], fruit, self._ends = True, self.steps, 0
                way = list(self._chosen)
                for nth, chosen in zip(self._order, self._chosen, strict=True):
                    way[nth] = chosen
                yield tuple(way)
                self._undo(depth)
                continue
            state = self._state(depth + 1, tried) if self._ends > WARY else None
            if state is not None and state in self._dead:
                self._undo(depth)
                continue
            depth += 1
            twin = self._twins[depth]
            tried[depth] = tried[twin] - 1 if twin >= 0 else 0
            fruitful[depth], states[depth] = False, state

    def _take(self, depth: int, row: Row) -> bool:
        slot, position, rules = self._slots[depth], row.position, self._rules
        apart = slot.suffix in rules.isolate
        if apart and position in self._alone:
            return False
        counted = rules.apart and bool(slot.asks)
        if counted and self._in_tree.get(row.root, (position, 0))[0] != position:
            return False
        for name, asked in self._asks[depth]:
            if self._taken.get((position, name), 0) + asked > top(row, name):
                return False
        gathered = self._gathered[depth]
        if self._all_bits:
            gathered |= self._bits(depth, (row,))
            if gathered | self._could[depth + 1] != self._all_bits:
                return False
        mixed = self._is_mixed[depth] or not shares(row)
        if not (mixed or self._could_mix[depth + 1]):
            return False
        if self._sets[depth]:
            tops = self._narrowed(depth, position)
            if tops is None:
                return False
            self._tops.append(tops)
            for number in self._sets[depth]:
                self._picked[number].append(position)
        if apart:
            self._alone.add(position)
        if counted:
            self._in_tree[row.root] = position, self._in_tree.get(row.root, (position, 0))[1] + 1
        for name, asked in self._asks[depth]:
            self._taken[position, name] = self._taken.get((position, name), 0) + asked
        self._gathered.append(gathered)
        self._is_mixed.append(mixed)
        self._chosen.append(row)
        return True

    def _undo(self, depth: int) -> None:
        row, slot, rules = self._chosen.pop(), self._slots[depth], self._rules
        position = row.position
        self._gathered.pop()
        self._is_mixed.pop()
        for name, asked in self._asks[depth]:
            left = self._taken[position, name] - asked
            if left:
                self._taken[position, name] = left
            else:
                del self._taken[position, name]
        if rules.apart and slot.asks:
            only, times = self._in_tree[row.root]
            if times > 1:
                self._in_tree[row.root] = only, times - 1
            else:
                del self._in_tree[row.root]
        if slot.suffix in rules.isolate:
            self._alone.discard(position)
        if self._sets[depth]:
            self._tops.pop()
            for number in self._sets[depth]:
                self._picked[number].pop()

    def _bits(self, depth: int, rows: Sequence[Row]) -> int:
        if self._slots[depth].suffix or not self._all_bits:
            return 0
        gathered = 0
        for row in rows:
            bits = self._bits_of.get(row.position)
            if bits is None:
                bits = 0
                for number, traits in enumerate(self._rules.needs):
                    if any(trait in row.traits for trait in traits):
                        bits |= 1 << number
                self._bits_of[row.position] = bits
            gathered |= bits
        return gathered

    def _up(self, row: Row) -> frozenset[int]:
        known = self._above.get(row.position)
        if known is None:
            parent = self._trees.find(row.parent) if row.parent is not None else None
            known = frozenset((row.position,)) | (self._up(parent) if parent is not None else frozenset())
            self._above[row.position] = known
        return known

    @cached_property
    def _different_options(self) -> list[frozenset[int]]:
        sets = (frozenset([row.position for row in rows]) for rows in self._options)
        self.steps += sum(map(len, self._options)) // 16
        return list(dict.fromkeys(sets))

    @cached_property
    def _ancestors(self) -> set[int]:
        """Return the index rows of all providers that are ancestors of other providers among the options of
        this search.
        """
        everyone = {row.position: row for options in self._options for row in options}
        self.steps += len(everyone)
        return {top for position, row in everyone.items() for top in self._up(row) if top != position}

    def _tied(self, options: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
        left = list(options)
        for members in self._rules.subtrees:
            tops = {row.position for nth in members for row in left[nth]}
            for rows in {tuple(row.position for row in left[nth]): left[nth] for nth in members}.values():
                tops &= frozenset().union(*(self._up(row) for row in rows))
                self.steps += len(rows)
            for nth in members:
                left[nth] = [row for row in left[nth] if not tops.isdisjoint(self._up(row))]
        return left

    def _narrowed(self, depth: int, position: int) -> list[frozenset[int]] | None:
        tops = list(self._tops[-1])
        self.steps += sum(map(len, tops)) // 8
        up = self._above[position]
        for number in self._sets[depth]:
            later, picked = self._later[depth + 1][number], self._picked[number]
            tops[number] = frozenset(
                top for top in tops[number] & up if top == position or top in later or top in picked
            )
            if not tops[number]:
                return None
        return tops

    def _state(self, depth: int, tried: Sequence[int]) -> Hashable:
        """Return a key of the search's state, equal for states that differ only in equivalent providers.
        While only some of several equal slots have providers, the key is equal only for the same providers:
        which of them the others may have depends on their order.
        """
        begins = [max(tried[twin] - 1, 0) if -1 < twin < depth else 0 for twin in self._twins[depth:]]
        is_between = not any(-1 < twin < depth for twin in self._twins[depth:])
        usable = zip(self._options[depth:], begins, strict=True)
        rows = {row.position: row for options, begin in usable for row in options[begin:]}
        trees = {row.root for row in rows.values()} if self._rules.apart else ()
        sets = [self._tops[-1][number] if later else () for number, later in enumerate(self._later[depth])]
        for row in self._chosen:
            if row.root in trees or any(row.position in tops for tops in sets):
                rows[row.position] = row
        self.steps += len(rows) * (1 + 2 * len(sets)) // 4  # computing the key also takes time
        items = []
        for position, row in rows.items():
            items.append(
                (
                    self._kind(row) if is_between else position,
                    tuple([self._taken.get((position, name), 0) for name in self._rules.summed]),
                    position in self._alone,
                    self._in_tree.get(row.root, (-1, 0))[0] == position,
                    tuple([position in tops for tops in sets]),
                    tuple([position in picked for picked in self._picked]),
                )
            )
        return depth, tuple(begins), self._gathered[-1], self._is_mixed[-1], tuple(sorted(items))

    def _kind(self, row: Row) -> int:
        known = self._kinds.get(row.position)
        if known is None:
            place: Hashable = None
            if self._rules.subtrees:
                up = self._up(row) - {row.position}
                place = row.position if row.position in self._ancestors else up
            name = (
                tuple([row.position in some for some in self._different_options]),
                tuple(top(row, name) for name in self._rules.summed),
                tuple([any(trait in row.traits for trait in some) for some in self._rules.needs]),
                self._rules.apart and row.root,
                place,
            )
            known = self._kinds[row.position] = self._kind_names.setdefault(name, len(self._kind_names))
        return known


def top(row: Row, name: str) -> int:
    """Return the largest amount of a resource class that a single claim can get from a provider now."""
    inventory = row.inventories.get(name)
    return min(row.free[name], inventory.max_unit) if inventory is not None else 0


def fullest_first(rows: list[Row], asks: Resources, root: str) -> list[Row]:
    """Sort providers: used providers with the least free share of the requested classes (`asks`) first, then
    unused providers; providers of other trees than that of `root` last.

    The first allocation then fills a half-used NUMA cell, GPU or physical function. Of unused providers those
    come last whose use excludes their siblings, such as a GPU that could serve another type. Equal providers
    are sorted by id.
    """
    if len(rows) < 2 or not asks:
        return rows

    def left(row: Row) -> tuple[bool, bool, bool, float, str]:
        free, capacity, is_unused, share = row.free, row.capacity, True, 0.0
        for name in asks:
            has, total = free[name], capacity[name]
            is_unused = is_unused and has == total
            share += has / (total or 1)
        return row.root != root, is_unused, is_unused and EXCLUDES_SIBLINGS in row.traits, share, row.uuid

    return sorted(rows, key=left)


# Section: plans the search for a query: checks the query, and determines which hosts each requirement
# removes.


def check(query: FindCandidates) -> None:
    groups, suffixes = query.groups, {group.suffix for group in query.groups}
    if len(groups) > MAX_GROUPS:
        raise SenselessQuery(f"groups: {len(groups)} of them, at most {MAX_GROUPS}")
    tied = {suffix for same_subtree in query.same_subtree for suffix in same_subtree} - {""}
    before: set[str] = set()
    for position, group in enumerate(groups):
        if group.suffix in before:
            group_name = repr(group.suffix) if group.suffix else "without a suffix"
            raise SenselessQuery(f"groups[{position}].suffix: there is a group {group_name} already")
        before.add(group.suffix)
        if not group.resources and group.suffix not in tied:
            why = ", and no same_subtree names it" if group.suffix else ""
            raise SenselessQuery(f"groups[{position}].resources: empty{why}")
        if group.required or group.required_any or group.member_of:
            _check_demands(group, f"groups[{position}]")
    if not any(group.resources for group in groups):
        raise SenselessQuery("groups: none of them asks for resources")
    for position, same_subtree in enumerate(query.same_subtree):
        for suffix in same_subtree:
            if not suffix or suffix not in suffixes:
                raise SenselessQuery(f"same_subtree[{position}]: there is no group with suffix {suffix!r}")
    for position, suffix in enumerate(query.isolated):
        if not suffix or suffix not in suffixes:
            raise SenselessQuery(f"isolated[{position}]: there is no group with suffix {suffix!r}")
    for index, choice in enumerate(query.root_member_of):
        if not choice:
            raise SenselessQuery(f"root_member_of[{index}]: empty")
    for trait in query.root_required:
        if trait in query.root_forbidden:
            raise SenselessQuery(f"root_forbidden: {trait} is required as well")


def _check_demands(group: ResourceGroup, at: str) -> None:
    forbidden = set(group.forbidden)
    for trait in group.required:
        if trait in forbidden:
            raise SenselessQuery(f"{at}.forbidden: {trait} is required as well")
    for index, traits in enumerate(group.required_any):
        if forbidden.issuperset(traits):
            raise SenselessQuery(f"{at}.required_any[{index}]: {'all are forbidden' if traits else 'empty'}")
    for index, choice in enumerate(group.member_of):
        if not choice:
            raise SenselessQuery(f"{at}.member_of[{index}]: empty")


class Unexcluded(Snapshot):
    """The provider trees as if the use of a provider excluded no siblings."""

    def top(self, name: str) -> Tops:
        index, kind = self.index, self.index.classes[name]
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        rows = [] if excluding is None else [index.at[position] for position in excluding.rows().tolist()]
        excluded = [row for row in rows if row is not None and row.excluded and name in row.capacity]
        if not excluded:
            return kind.top
        top = kind.top.copy()
        for row in excluded:
            free = row.capacity[name] - row.used.get(name, 0)
            top[row.position] = max(min(free, row.inventories[name].max_unit), 0)
        return top


def matching(index: Index, groups: Sequence[ResourceGroup]) -> set[str]:
    """Return the ids of the providers that satisfy all these groups, each of them alone. Siblings that the
    use of a provider excludes count as free.
    """
    met = SlotPlanner(Unexcluded(index), FindCandidates(groups=tuple(groups))).providers()
    rows = [index.at[position] for position in np.flatnonzero(met).tolist()]
    return {row.uuid for row in rows if row is not None}


NAMED = 3  # maximum number of removed hosts that the plan names for a requirement


FIRST_ROWS = 1024  # the first rows mostly contain enough removed hosts


@dataclass(slots=True)
class SearchPlan:
    """A query, prepared for the search: the slots to fill, and the hosts that have a provider for every slot
    (`left`). A query without resources has no slots, and all hosts in `left` fit.
    """

    query: FindCandidates
    slots: list[Slot]
    rules: JointRules
    demands: list[Demand]
    considered: int
    left: Bools  # roots with a provider for every slot
    count: int
    reached: Bools | None  # roots that can use a sharing provider of another tree for some slot
    hosts: Bools  # all roots considered
    removals: list[Removal] = field(default_factory=list)


def plan(trees: Snapshot, query: FindCandidates, *, named: bool = False) -> SearchPlan:
    """Prepare the search for a query: find the hosts that may fit, and count the hosts that each requirement
    removed. With `named`, or if no host may fit, the plan also names removed hosts.
    """
    check(query)
    index, planner = trees.index, SlotPlanner(trees, query)
    demands = list(planner.demands())
    # The Placement API also returns pools as candidates; schedulers (`named`) search hosts only.
    hosts = left = _hosts(index) if named else index.roots[: index.high]
    considered = count = int(np.count_nonzero(left))
    removals, removing = [], []
    for demand in demands:
        before = count
        if demand.met is None:
            left, count = np.zeros(index.high, np.bool_), 0
        elif count:
            left = left & demand.met
            count = int(np.count_nonzero(left))
        if count < before:
            removing.append(demand)
            constraint, removed = demand.says, before - count
            removal = Removal(
                constraint=constraint, removed=removed, left=count, about=demand.about, code=demand.code
            )
            removals.append(removal)
    if named or not count:
        removals = _with_names(index, hosts, removing, removals)
    rules, reached = planner.rules(), planner.reached()
    return SearchPlan(query, planner.slots, rules, demands, considered, left, count, reached, hosts, removals)


def _hosts(index: Index) -> Bools:
    roots = index.roots[: index.high]
    pools = [
        position
        for position in set[int]().union(*index.sharers.values())
        if (row := index.at[position]) is not None and row.parent is None and not row.agent
    ]
    if not pools:
        return roots
    hosts = roots.copy()
    hosts[pools] = False
    return hosts


def _with_names(index: Index, left: Bools, removing: list[Demand], removals: list[Removal]) -> list[Removal]:
    named = []
    for demand, removal in zip(removing, removals, strict=True):
        removed = left if demand.met is None else left > demand.met
        some = np.flatnonzero(removed[:FIRST_ROWS])[:NAMED]
        if some.size < NAMED:
            some = np.flatnonzero(removed)[:NAMED]
        rows = [index.at[position] for position in some.tolist()]
        hosts = tuple([row.host for row in rows if row is not None])
        named.append(structs.replace(removal, hosts=hosts))
        left = left > removed
    return named


def has_room(row: Row, asks: Resources) -> bool:
    return all(top(row, name) >= asked for name, asked in asks.items())


def _limited(row: Row, most: Mapping[str, int]) -> Row:
    """Return a row of which at most the given amounts are free."""
    return replace(row, known_free={name: min(free, most.get(name, 0)) for name, free in row.free.items()})


def options_at(trees: Snapshot, plan: SearchPlan, anchor: Row) -> list[list[Row]]:
    """Return, for each slot of the query, the providers of this host that can satisfy the slot."""
    rows = trees.rows_of(anchor.uuid)
    shared: list[Row] = []
    if plan.reached is not None and plan.reached[anchor.position]:
        sharers = trees.sharers
        met = {position for row in rows for uuid in row.aggregates for position in sharers.get(uuid, ())}
        found = [trees.row_at(position) for position in sorted(met)]
        shared = [row for row in found if row is not None and row.root != anchor.root]
    options: list[list[Row]] = []
    for slot in plan.slots:
        in_tree, away = slot.in_tree, slot.away
        options.append([row for row in rows if in_tree[row.position]])
        if away is not None:
            options[-1] += [row for row in shared if away[row.position]]
    return options


UNSIGNED = 2**64


@dataclass(slots=True)
class Fit:
    """One complete set of allocations for a query. Never change its dicts: other sets share them."""

    anchor: Row
    allocations: dict[str, Resources]
    rows: tuple[Row, ...]  # providers in use, in the order of the allocations
    mappings: dict[str, tuple[str, ...]]  # group suffix → the providers that serve it


class FitFinder:
    """Finds the complete sets of allocations that satisfy a query, on one host after another."""

    def __init__(self, snapshot: Snapshot, made: SearchPlan) -> None:
        index = snapshot.index
        self._snapshot = snapshot
        self._plan = made
        self._sums: dict[tuple[int, int], Resources] = {}
        self.anchors = made.left  # hosts to search: without hosts that offer only what earlier hosts offer
        self._shared: _Shared | None = None
        if made.slots and index.sharers:
            shared = _Shared(snapshot, made)
            if shared.anchors:
                self._shared = shared
                self.anchors = made.left & shared.not_alone()

    def alone(self, anchor: Row) -> bool:
        """Return whether only one set of allocations is possible, because the host is one provider and has no
        pools.
        """
        plan = self._plan
        if not plan.slots:
            return True
        return (
            len(plan.query.groups) == 1
            and len(self._snapshot.members(anchor.uuid)) == 1
            and not (plan.reached is not None and plan.reached[anchor.position])
            and not (self._shared is not None and shares(anchor))
        )

    def only_fit(self, anchor: Row) -> Fit:
        group, uuid = self._plan.query.groups[0], anchor.uuid
        return Fit(anchor, {uuid: group.resources}, (anchor,), {group.suffix: (uuid,)})

    def fits(
        self, anchor: Row, *, check_again: bool = False, within: Allocations | None = None
    ) -> Iterator[Fit | None]:
        """Yield the complete sets of allocations on a host, and `None` where the search may pause. With
        `check_again`, check the free capacity of each provider again, because choices may have been
        added, try providers in use first, and yield equal groups with exchanged providers once. With `within`
        in addition, yield only what these allocations cover.
        """
        snapshot, plan, shared = self._snapshot, self._plan, self._shared
        options = options_at(snapshot, plan, anchor)
        if within is not None:
            options = [[_limited(row, within.get(row.uuid, {})) for row in rows] for rows in options]
        if check_again:
            options = [
                fullest_first([row for row in rows if has_room(row, slot.asks)], slot.asks, anchor.root)
                for slot, rows in zip(plan.slots, options, strict=True)
            ]
        search = AssignmentSearch(
            snapshot, plan.slots, plan.rules, options, mixed=shared is not None, unordered=check_again
        )
        for way in search:
            yield self._fit(anchor, way) if way is not None else None
        if shared is not None and anchor.position in shared.anchors:
            for way in shared.ways(anchor, options):
                yield self._fit(anchor, way) if way is not None else None

    def is_dead(self, anchor: Row) -> bool:
        """Return whether a host on which the search found nothing cannot satisfy the query. Return False if
        the host could satisfy it with sharing providers alone, and the search left this out because an
        earlier host has the same allocations.
        """
        return self._shared is None or anchor.position not in self._shared.doubles

    def _fit(self, anchor: Row, way: Choice) -> Fit:
        allocations: dict[str, Resources] = {}
        mappings: dict[str, tuple[str, ...]] = {}
        rows = []
        for slot, row in zip(self._plan.slots, way, strict=True):
            uuid = row.uuid
            if slot.asks:
                before = allocations.get(uuid)
                if before is None:
                    allocations[uuid] = slot.asks
                    rows.append(row)
                else:
                    allocations[uuid] = self._sum(before, slot.asks)
            serving = mappings.get(slot.suffix)
            if serving is None:
                mappings[slot.suffix] = (uuid,)
            elif uuid not in serving:
                mappings[slot.suffix] = (*serving, uuid)
        return Fit(anchor, allocations, tuple(rows), mappings)

    def _sum(self, resources: Resources, other: Resources) -> Resources:
        key = id(resources), id(other)
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = dict(resources)
            for name, amount in other.items():
                total[name] = total.get(name, 0) + amount
        return total


class _Shared:
    """Finds allocations that use only sharing providers. Many hosts can use the same such allocations, which
    are yielded only for the first of these hosts.
    """

    def __init__(self, snapshot: Snapshot, made: SearchPlan) -> None:
        self._snapshot = snapshot
        self._plan = made
        self.anchors = self._first_of_each()  # in the order of the search
        self.doubles: set[int] = set()  # hosts with allocations that were yielded for an earlier host
        # Provider of the first slot → hosts that may use this provider, each with its options for every slot.
        self._having: dict[int, list[tuple[int, list[set[int]]]]] | None = None

    def not_alone(self) -> Bools:
        index, high = self._snapshot.index, len(self._plan.left)
        not_sharing = ~index.traits[SHARES].mask(high)
        rows = np.flatnonzero(np.logical_or.reduce([slot.in_tree for slot in self._plan.slots]) & not_sharing)
        met = np.zeros(high, np.bool_)
        met[index.root_of[rows]] = True
        met[list(self.anchors)] = True
        return met

    def ways(self, anchor: Row, options: Sequence[Sequence[Row]]) -> Iterator[Choice | None]:
        plan = self._plan
        for way in AssignmentSearch(self._snapshot, plan.slots, plan.rules, _sharing(options)):
            if way is None or self._is_first(anchor, way):
                yield way
            else:
                self.doubles.add(anchor.position)

    def _is_first(self, anchor: Row, way: Choice) -> bool:
        if len(self.anchors) == 1:
            return True
        if self._having is None:
            self._having = {}
            for position in self.anchors:
                row = self._snapshot.row_at(position)
                assert row is not None
                options = _sharing(options_at(self._snapshot, self._plan, row))
                sets = [{row.position for row in rows} for rows in options]
                for provider in sets[0]:
                    self._having.setdefault(provider, []).append((position, sets))
        for position, sets in self._having[way[0].position]:
            if all(row.position in rows for row, rows in zip(way, sets, strict=True)):
                return position == anchor.position
        return True

    def _first_of_each(self) -> dict[int, None]:
        index, plan = self._snapshot.index, self._plan
        high = len(plan.left)
        sharing = index.traits[SHARES].mask(high)
        in_tree = [np.flatnonzero(slot.in_tree & sharing).tolist() for slot in plan.slots]
        away = [np.flatnonzero(slot.away).tolist() if slot.away is not None else [] for slot in plan.slots]
        if not all(mine or other for mine, other in zip(in_tree, away, strict=True)):
            return {}
        possible = plan.left.copy()
        mark = np.zeros(high, np.uint64)  # a hash, equal for hosts with equal options
        for number in range(len(plan.slots)):
            some = np.zeros(high, np.bool_)
            served = [(position, index.root_of[position : position + 1]) for position in in_tree[number]]
            served += [(position, index.reach(position)) for position in away[number]]
            for position, anchors in served:
                some[anchors] = True
                mark[anchors] += np.uint64(hash((number, position)) % UNSIGNED)
            possible &= some
        found = np.flatnonzero(possible)
        _, first = np.unique(mark[found], return_index=True)
        return dict.fromkeys(found[np.sort(first)].tolist())


def _sharing(options: Sequence[Sequence[Row]]) -> list[list[Row]]:
    return [[row for row in rows if shares(row)] for rows in options]
