"""Plans the search for a query: checks the query, and determines which hosts each requirement removes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from bus.decisions import Removal
from bus.queries import FindCandidates
from bus.vocabulary import Resources
from placement_worker.core.assignment import check, top
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.index_rows import Bools, Row
from placement_worker.core.slots import Demand, JointRules, Slot, SlotPlanner

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
    """Return whether a provider has the requested amounts of all classes free."""
    return all(top(row, name) >= asked for name, asked in asks.items())


def limited(row: Row, most: Mapping[str, int]) -> Row:
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
