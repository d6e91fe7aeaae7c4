"""Plans the search for a query: checks the query, and names the hosts that each requirement removed."""

from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from bus.candidates import SenselessQuery
from bus.decisions import Removal
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS
from placement_worker.core.groups import Demand, JointRules, Slot, SlotPlanner
from placement_worker.core.index import Index
from placement_worker.core.row import Bools
from placement_worker.core.snapshot import Snapshot


def check(query: FindCandidates) -> None:
    groups, suffixes = query.groups, {group.suffix for group in query.groups}
    if len(groups) > MAX_GROUPS:
        raise SenselessQuery(f"groups: {len(groups)} of them, at most {MAX_GROUPS}")
    tied = {suffix for one in query.same_subtree for suffix in one} - {""}
    before: set[str] = set()
    for position, group in enumerate(groups):
        if group.suffix in before:
            which = repr(group.suffix) if group.suffix else "without a suffix"
            raise SenselessQuery(f"groups[{position}].suffix: there is a group {which} already")
        before.add(group.suffix)
        if not group.resources and group.suffix not in tied:
            why = ", and no same_subtree names it" if group.suffix else ""
            raise SenselessQuery(f"groups[{position}].resources: empty{why}")
        if group.required or group.required_any or group.member_of:
            _check_demands(group, f"groups[{position}]")
    if not any(group.resources for group in groups):
        raise SenselessQuery("groups: none of them asks for resources")
    for position, one in enumerate(query.same_subtree):
        for suffix in one:
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


NAMED = 3  # hosts that are named per requirement


FIRST_LOOK = 1024  # among so many of them they mostly are


@dataclass(slots=True)
class SearchPlan:
    """The prepared search for a query. Without slots, each host in `left` is a result."""

    query: FindCandidates
    slots: list[Slot]
    rules: JointRules
    demands: list[Demand]
    considered: int
    left: Bools  # anchors with a provider for every slot
    count: int
    reached: Bools | None  # anchors that a provider of another tree can serve
    hosts: Bools  # all anchors considered
    removals: list[Removal] = field(default_factory=list)


def plan(trees: Snapshot, query: FindCandidates, *, named: bool = False) -> SearchPlan:
    """Return the search plan of a query; removed hosts are named if `named`, or if no host is left."""
    check(query)
    index, planner = trees.index, SlotPlanner(trees, query)
    demands = list(planner.demands())
    # A pool that only shares with other trees is an answer over HTTP, but no host.
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
            says, removed = demand.says, before - count
            removal = Removal(
                constraint=says, removed=removed, left=count, about=demand.about, code=demand.code
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
        gone = left if demand.met is None else left > demand.met
        some = np.flatnonzero(gone[:FIRST_LOOK])[:NAMED]
        if some.size < NAMED:
            some = np.flatnonzero(gone)[:NAMED]
        rows = [index.at[position] for position in some.tolist()]
        hosts = tuple([row.host for row in rows if row is not None])
        named.append(structs.replace(removal, hosts=hosts))
        left = left > gone
    return named
