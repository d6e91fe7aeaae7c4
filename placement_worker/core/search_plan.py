"""Plans the search for a query: checks the query, and determines which hosts each requirement removes."""

from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from bus.candidates import SenselessQuery
from bus.decisions import Removal
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.request_groups import Demand, JointRules, Slot, SlotPlanner
from placement_worker.core.row import Bools


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
