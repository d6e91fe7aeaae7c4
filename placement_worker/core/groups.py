"""What is asked, made ready for looking: who could fill each slot, and which trees have somebody for all.

Each group with a suffix is a slot, filled by one provider; of the group without one each resource class is.
An anchor is the root that a candidate belongs to: the providers of its tree serve it, and those that share
with one of them through an aggregate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bus.candidates import SenselessQuery
from bus.messages import FindCandidates
from bus.vocabulary import MAX_INT, Removal, ResourceGroup, Resources
from placement_worker.core.index import BEYOND_COUNTING, SHARES, Index
from placement_worker.core.row_set import Bools, RowSet

Numbers = npt.NDArray[Any]

MAX_GROUPS = 256


@dataclass(slots=True)
class Demand:
    """One thing that is asked, and which anchors meet it (None: nobody does); of a class how much of it."""

    says: str
    met: Bools | None
    resource_class: str = ""
    asked: int = 0
    of: str = ""  # what its group is called, in front of all that is said of it
    joint: bool = False  # several other demands at once: not worth telling where one of them fails
    about: str = ""  # the field of the query, where programs are to know it


@dataclass(slots=True, eq=False)
class Slot:
    """One provider to be chosen."""

    suffix: str
    asks: Resources
    own: Bools  # rows that could fill it for their own tree
    away: Bools | None  # and for the trees they share with; None: nobody


@dataclass(slots=True)
class JointRules:
    """What a choice for all slots must meet beyond each slot for itself."""

    isolate: frozenset[str] = frozenset()  # suffixes of groups, no two of which share a provider
    subtrees: tuple[tuple[int, ...], ...] = ()  # slots of which one is at or above all the others
    needs: tuple[tuple[str, ...], ...] = ()  # of each, those of the group without suffix have one together
    summed: tuple[str, ...] = ()  # classes that several slots ask for: together they fit as well
    apart: bool = False  # never two providers of one tree


@dataclass(slots=True)
class SearchPlan:
    """What to look for, and where. Without slots each anchor that is left is an answer by itself."""

    query: FindCandidates
    slots: list[Slot]
    rules: JointRules
    demands: list[Demand]
    considered: int
    left: Bools  # anchors that have somebody for everything
    count: int
    reached: Bools | None  # anchors that somebody of another tree would serve
    removals: list[Removal] = field(default_factory=list)


@dataclass(slots=True)
class _Test:
    """One demand on providers, and which rows meet it (None: nobody)."""

    kind: Literal["tree", "trait", "barred", "member", "stranger", "class"]
    says: str
    rows: Bools | None
    resource_class: str = ""
    asked: int = 0


def plan(index: Index, query: FindCandidates) -> SearchPlan:
    _check(query)
    planner = _Planner(index, query)
    demands = list(planner.demands())
    left = index.roots[: index.high]
    considered = count = int(np.count_nonzero(left))
    removals = []
    for demand in demands:
        before = count
        if demand.met is None:
            left, count = np.zeros(index.high, np.bool_), 0
        elif count:
            left = left & demand.met
            count = int(np.count_nonzero(left))
        if count < before:
            removals.append(
                Removal(constraint=demand.says, removed=before - count, left=count, about=demand.about)
            )
    rules, reached = planner.rules(), planner.reached()
    return SearchPlan(query, planner.slots, rules, demands, considered, left, count, reached, removals)


class _Planner:
    """Goes through a query: its demands, what is cheap and telling first, and its slots."""

    def __init__(self, index: Index, query: FindCandidates) -> None:
        self.index = index
        self.query = query
        self.high = index.high
        self.slots: list[Slot] = []
        self._sharing = index.traits[SHARES].mask(self.high) if index.sharers else None
        # Every tree is one provider that serves nobody else: it meets all or it is no answer.
        self._plain = not index.children and self._sharing is None and len(query.groups) == 1
        self._everyone = index.roots[: self.high]
        if index.children:
            self._everyone = self._everyone | index.below[: self.high]
        self._alike: dict[object, tuple[Bools, list[Demand]]] = {}

    def demands(self) -> Iterator[Demand]:
        index, query = self.index, self.query
        if query.cell:
            flags = index.cells.get(query.cell)
            met = None if flags is None else flags.mask(self.high)
            yield Demand(f"cell {query.cell}", met, about="cell")
        for trait in query.root_required:
            test = self._trait(trait)
            yield Demand(f"root {test.says}", test.rows)
        for trait in query.root_forbidden:
            if trait in index.traits:
                yield Demand(f"no root trait {trait}", ~index.traits[trait].mask(self.high))
        for choice in query.root_member_of:
            yield Demand(f"root aggregate {' or '.join(choice)}", self._any(index.aggregates, choice))
        for uuid in query.root_not_member_of:
            if uuid in index.aggregates:
                yield Demand(f"root not in aggregate {uuid}", ~index.aggregates[uuid].mask(self.high))
        for group in query.groups:
            if self._plain:
                of = _called(group)
                for test in self._tests(group):
                    yield Demand(of + test.says, test.rows, test.resource_class, test.asked, of)
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
            subtrees=tuple(one for one in sets if len(one) > 1),
            needs=tuple(needs),
            summed=tuple(self._several()),
            apart=not query.nested and self.index.children > 0,
        )

    def reached(self) -> Bools | None:
        met: Bools | None = None
        for slot in self.slots:
            if slot.away is not None:
                met = np.zeros(self.high, np.bool_) if met is None else met
                self._reach(met, slot.away)
        return met

    # Groups

    def _together(self, group: ResourceGroup) -> Iterator[Demand]:
        """One provider that has it all."""
        facts = (group.required, group.forbidden, group.required_any, group.member_of, group.not_member_of)
        key = (tuple(group.resources.items()), facts, group.in_tree)
        if key not in self._alike:  # groups often differ in nothing but their suffix
            rows, demands = self._everyone, []
            for test in self._tests(group):
                met = self._rows(test)
                demands.append(self._demand(test, met, met))
                rows = rows & met
            if len(demands) > 1:
                demands.append(Demand("all of it at one provider", self._anchors(rows, rows), joint=True))
            if not demands:
                rows = rows.copy()  # not the index's own, which changes
            self._alike[key] = rows, demands
        rows, demands = self._alike[key]
        self.slots.append(Slot(group.suffix, group.resources, rows, self._sharers(rows)))
        of = _called(group)
        for one in demands:
            yield replace(one, says=of + one.says, of=of)

    def _spread(self, group: ResourceGroup) -> Iterator[Demand]:
        """Providers that have it together, each class at one of them. What the root is in counts for all."""
        tests = list(self._tests(group))
        root_of = self.index.root_of[: self.high]
        own = away = member = self._everyone
        for test in tests:
            rows = mine = self._rows(test)
            if test.kind == "member":
                member = member & rows
            elif test.kind == "stranger":
                mine = rows & rows[root_of]
            if test.kind in ("tree", "barred", "stranger"):
                own, away = own & mine, away & rows
            yield self._demand(test, mine, rows if group.in_tree is None else None)
        if group.member_of:
            own, away = own & (member | member[root_of]), away & member
        givers, sharers = np.zeros(self.high, np.bool_), np.zeros(self.high, np.bool_)
        for test in tests:
            if test.kind == "class":
                mine, others = own & self._rows(test), away & self._rows(test)
                givers |= mine
                sharers |= others
                slot = Slot("", {test.resource_class: test.asked}, mine, self._sharers(others))
                self.slots.append(slot)
                if own is not self._everyone:
                    met = self._anchors(mine, slot.away)
                    yield Demand(f"{test.says}, all else being met", met, joint=True)
        for test in tests:
            if test.kind == "trait":
                met = self._anchors(givers & self._rows(test), sharers & self._rows(test))
                yield Demand(f"{test.says}, where there is room", met, joint=True)

    def _in_all(self) -> Iterator[Demand]:
        """What slots need together, as far as sums can tell."""
        for name in self._several():
            asking = [slot for slot in self.slots if name in slot.asks]
            asked = min(sum(slot.asks[name] for slot in asking), BEYOND_COUNTING)
            kind = self.index.classes.get(name)
            if kind is not None:
                top = kind.top[: self.high]
                met = (
                    self._summed([slot.own for slot in asking], [slot.away for slot in asking], top) >= asked
                )
                yield Demand(f"{name}: {asked} free in all groups", met, joint=True)
        isolated = _isolated(self.query)
        apart = [slot for slot in self.slots if slot.suffix in isolated]
        if len(apart) > 1:
            one = np.ones(self.high)
            count = self._summed([slot.own for slot in apart], [slot.away for slot in apart], one)
            yield Demand(f"isolate: {len(apart)} providers", count >= len(apart), joint=True)

    # Tests of rows

    def _tests(self, group: ResourceGroup) -> Iterator[_Test]:
        index, high = self.index, self.high
        if group.in_tree is not None:
            row = index.rows.get(group.in_tree)
            tree = None if row is None else index.root_of[:high] == index.root_of[row.position]
            yield _Test("tree", f"in the tree of {group.in_tree}", tree)
        for trait in group.required:
            yield self._trait(trait)
        for traits in group.required_any:
            yield _Test("trait", f"trait {' or '.join(traits)}", self._any(index.traits, traits))
        for trait in group.forbidden:
            if trait in index.traits:
                yield _Test("barred", f"no trait {trait}", ~index.traits[trait].mask(high))
        for choice in group.member_of:
            says = "aggregate " + " or ".join(choice)
            yield _Test("member", says, self._any(index.aggregates, choice))
        for uuid in group.not_member_of:
            if uuid in index.aggregates:
                yield _Test("stranger", f"not in aggregate {uuid}", ~index.aggregates[uuid].mask(high))
        for name, asked in group.resources.items():
            kind = index.classes.get(name)
            if kind is None:
                yield _Test("class", f"resource class {name}: nobody has it", None, name, asked)
                continue
            if asked > MAX_INT:  # more than any inventory, and than its arrays can be compared with
                yield _Test("class", f"{name}: {asked} free", None, name, asked)
                continue
            met = kind.top[:high] >= asked
            if kind.picky and kind.least is not None and kind.step is not None:
                met &= kind.least[:high] <= asked
                met &= asked % kind.step[:high] == 0
            yield _Test("class", f"{name}: {asked} free", met, name, asked)

    def _trait(self, trait: str) -> _Test:
        flags = self.index.traits.get(trait)
        if flags is None:
            return _Test("trait", f"trait {trait}: nobody has it", None)
        return _Test("trait", f"trait {trait}", flags.mask(self.high))

    def _any(self, kind: dict[str, RowSet], names: tuple[str, ...]) -> Bools | None:
        known = [kind[name].mask(self.high) for name in names if name in kind]
        met: Bools | None = np.logical_or.reduce(known) if known else None
        return met

    # From rows to anchors

    def _demand(self, test: _Test, own: Bools, away: Bools | None) -> Demand:
        met = self._anchors(own & self._everyone, away) if test.rows is not None else None
        return Demand(test.says, met, test.resource_class, test.asked)

    def _anchors(self, own: Bools, away: Bools | None) -> Bools:
        """The trees that have one of these, or that one of those who share with others serves."""
        met = own & self.index.roots[: self.high]
        if self.index.children:
            rows = np.flatnonzero(own & self.index.below[: self.high])
            met[self.index.root_of[rows]] = True
        if away is not None and self._sharing is not None:
            self._reach(met, away & self._sharing)
        return met

    def _reach(self, met: Bools, away: Bools) -> None:
        reached = [self.index.reach(position) for position in np.flatnonzero(away).tolist()]
        if reached:
            met[np.concatenate(reached)] = True

    def _summed(self, own: list[Bools], away: list[Bools | None], of: Numbers) -> Numbers:
        """For each anchor the sum over all who could serve it."""
        rows = np.flatnonzero(np.logical_or.reduce(own))
        total = np.bincount(self.index.root_of[rows], weights=of[rows], minlength=self.high)
        others = [one for one in away if one is not None]
        if others:
            for position in np.flatnonzero(np.logical_or.reduce(others)).tolist():
                total[self.index.reach(position)] += of[position]
        return total

    def _sharers(self, rows: Bools) -> Bools | None:
        if self._sharing is None:
            return None
        away = rows & self._sharing
        return away if away.any() else None

    def _rows(self, test: _Test) -> Bools:
        return np.zeros(self.high, np.bool_) if test.rows is None else test.rows

    def _several(self) -> list[str]:
        """Classes that more than one slot asks for."""
        names = [name for slot in self.slots for name in slot.asks]
        return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _isolated(query: FindCandidates) -> frozenset[str]:
    """The groups that are to have a provider each; the one without a suffix never is."""
    if query.group_policy == "isolate":
        return frozenset(group.suffix for group in query.groups) - {""}
    return frozenset(query.isolated)


def _called(group: ResourceGroup) -> str:
    return f"group {group.suffix}: " if group.suffix else ""


def _check(query: FindCandidates) -> None:
    """Refuse what cannot be meant, naming the field."""
    groups, suffixes = query.groups, {group.suffix for group in query.groups}
    if len(groups) > MAX_GROUPS:
        raise SenselessQuery(f"groups: {len(groups)} of them, at most {MAX_GROUPS}")
    tied = {suffix for one in query.same_subtree for suffix in one}
    for position, group in enumerate(groups):
        at = f"groups[{position}]"
        if group.suffix in {other.suffix for other in groups[:position]}:
            which = repr(group.suffix) if group.suffix else "without a suffix"
            raise SenselessQuery(f"{at}.suffix: there is a group {which} already")
        if not group.resources and group.suffix not in tied - {""}:
            why = ", and no same_subtree names it" if group.suffix else ""
            raise SenselessQuery(f"{at}.resources: empty{why}")
        forbidden = set(group.forbidden)
        for trait in group.required:
            if trait in forbidden:
                raise SenselessQuery(f"{at}.forbidden: {trait} is required as well")
        for nth, traits in enumerate(group.required_any):
            if forbidden.issuperset(traits):
                raise SenselessQuery(
                    f"{at}.required_any[{nth}]: {'all are forbidden' if traits else 'empty'}"
                )
        for nth, choice in enumerate(group.member_of):
            if not choice:
                raise SenselessQuery(f"{at}.member_of[{nth}]: empty")
    if not any(group.resources for group in groups):
        raise SenselessQuery("groups: none of them asks for resources")
    for position, one in enumerate(query.same_subtree):
        for suffix in one:
            if not suffix or suffix not in suffixes:
                raise SenselessQuery(f"same_subtree[{position}]: there is no group with suffix {suffix!r}")
    for position, suffix in enumerate(query.isolated):
        if not suffix or suffix not in suffixes:
            raise SenselessQuery(f"isolated[{position}]: there is no group with suffix {suffix!r}")
    for nth, choice in enumerate(query.root_member_of):
        if not choice:
            raise SenselessQuery(f"root_member_of[{nth}]: empty")
    for trait in query.root_required:
        if trait in query.root_forbidden:
            raise SenselessQuery(f"root_forbidden: {trait} is required as well")
