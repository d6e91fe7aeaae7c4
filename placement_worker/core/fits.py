"""Finds the complete sets of allocations that satisfy a planned query, on one host after another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from bus.candidates import SenselessQuery
from bus.decisions import Removal
from bus.queries import FindCandidates
from bus.reports import SHARES
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS, Allocations, Resources
from placement_worker.core.index import Bools, Index, Row, Snapshot
from placement_worker.core.request_groups import Demand, JointRules, Slot, SlotPlanner
from placement_worker.core.ways import BREATH, AssignmentSearch, Choice, fullest_first, shares, top

# Plans the search for a query: checks the query, and determines which hosts each requirement removes.


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

    def __init__(self, snapshot: Snapshot, made: SearchPlan, start: int) -> None:
        index = snapshot.index
        self._snapshot = snapshot
        self._plan = made
        self._sums: dict[tuple[int, int], Resources] = {}
        self.anchors = made.left  # hosts to search: without hosts that offer only what earlier hosts offer
        self._shared: _Shared | None = None
        if made.slots and index.sharers:
            shared = _Shared(snapshot, made, start)
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
        `check_again`, check the free capacity of each provider again, because reservations may have been
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

    def cost(self, anchor: Row) -> int:
        """Estimate the number of search steps that it takes to find out that nothing fits on this host."""
        return BREATH // 8 + len(self._snapshot.members(anchor.uuid))

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

    def __init__(self, snapshot: Snapshot, made: SearchPlan, start: int) -> None:
        self._snapshot = snapshot
        self._plan = made
        self.anchors = self._first_of_each(start)  # in the order of the search
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

    def _first_of_each(self, start: int) -> dict[int, None]:
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
        found = np.concatenate([found[found >= start], found[found < start]])
        _, first = np.unique(mark[found], return_index=True)
        return dict.fromkeys(found[np.sort(first)].tolist())


def _sharing(options: Sequence[Sequence[Row]]) -> list[list[Row]]:
    return [[row for row in rows if shares(row)] for rows in options]
