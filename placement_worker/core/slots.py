"""Prepares a query for the search: which providers satisfy each part (slot) of the query, and which trees
have a provider for all slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bus.aggregates import ZONE
from bus.decisions import EXCLUDED
from bus.host_health import DISABLED
from bus.queries import FindCandidates
from bus.reports import SHARES
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_INT, Resources
from placement_worker.core.index import Snapshot
from placement_worker.core.index_rows import BEYOND_COUNTING, Bools, RowSet

Numbers = npt.NDArray[Any]


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
        """Yield the conditions of the query in the order in which an explanation counts the hosts that fail
        them.
        """
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
        """Return the conditions that concern several groups together, such as a common subtree."""
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
        """Return which providers the slots can use outside of a host's tree, such as pools; None if no slot
        can.
        """
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
