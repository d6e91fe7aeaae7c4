"""Explains why no host fits a query: counts the hosts that each part of the query (resource, trait,
aggregate, ...) removed, and finds the hosts that fail the fewest parts.
"""

from collections.abc import Collection, Generator

import numpy as np

from bus.decisions import NearMiss
from bus.domains import WHY_CLOSED
from bus.host_health import why_disabled
from bus.reports import Inventory
from placement_worker.core.capacity import broken_limit
from placement_worker.core.explain_combinations import NEAREST, Why, explain_combinations
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.index_rows import BEYOND_COUNTING, Bools, Row
from placement_worker.core.search_plan import SearchPlan
from placement_worker.core.slots import Demand


def explain(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, Why]:
    """Return how many hosts each part of a query (resource, trait, aggregate, ...) removed, and the hosts
    that nearly fit; `made` is the plan of the query. A generator: the caller may pause the search at each
    `yield`.
    """
    if not made.count:
        return tuple(made.removals), nearest(snapshot, made)
    return (yield from explain_combinations(snapshot, made))


def nearest(
    snapshot: Snapshot, made: SearchPlan, roots: Collection[str] = (), most: int = NEAREST
) -> tuple[NearMiss, ...]:
    """Return at most `most` hosts that fail the fewest requirements of a planned query (`made`), the smallest
    shortage first. A resource class that a host lacks completely counts as two requirements, so that for a
    bare-metal request occupied nodes come before hypervisors. If `roots` or the query names hosts, only the
    named hosts are judged; if not, disabled hosts are omitted.
    """
    index, demands = snapshot.index, made.demands
    named = roots or made.query.roots
    anchors = made.hosts
    if named:
        positions = [row.position for uuid in named if (row := index.rows.get(uuid)) is not None]
        anchors = np.zeros(index.high, np.bool_)
        anchors[positions] = True
    high = index.high
    met = np.zeros(high, np.int16)
    short = np.zeros(high)
    for demand in demands:
        if demand.code == "disabled" and not named and demand.met is not None:
            anchors = anchors & demand.met
        if demand.met is not None:
            met += demand.met
        kind = index.classes.get(demand.resource_class)
        if kind is not None:
            top = snapshot.top(demand.resource_class)
            best, present = top[:high], kind.there[:high]
            if index.children:  # store the best amount of a tree at its root's row
                rows, best, present = np.flatnonzero(index.below[:high]), best.copy(), present.copy()
                np.maximum.at(best, index.root_of[rows], top[rows])
                np.logical_or.at(present, index.root_of[rows], kind.there[rows])
            met += present
            best = np.maximum(best, 0)  # reservations may exceed the free amount: then the host is full
            short += np.maximum(1 - best / float(min(demand.asked, BEYOND_COUNTING)), 0)
    met += _enough_providers(index, made) * len(demands)
    distance = np.where(anchors, short / (1 + short) - met, np.inf)
    ranked = np.sort(np.argpartition(distance, most)[:most]) if high > most else np.arange(high)
    ranked = ranked[np.argsort(distance[ranked], kind="stable")]
    ranked = ranked[anchors[ranked]]
    misses = []
    for position in ranked.tolist():
        row = snapshot.row_at(position)
        if row is not None and row.parent is None:
            failing = [demand for demand in demands if demand.met is None or not demand.met[position]]
            telling = [demand for demand in failing if not demand.joint] or failing
            if not telling:
                continue
            lacks = "; ".join(_lack(snapshot, row, demand) for demand in telling)
            misses.append(NearMiss(host=row.host, lacks=lacks, code=telling[0].code))
    return tuple(misses)


def _enough_providers(index: Index, made: SearchPlan) -> Bools:
    enough = np.ones(index.high, np.bool_)
    for name in {name for slot in made.slots for name in slot.asks}:
        several = sum(name in slot.asks for slot in made.slots if slot.suffix in made.rules.isolate)
        kind = index.classes.get(name)
        if several > 1 and kind is not None:
            rows = np.flatnonzero(kind.there[: index.high])
            enough &= np.bincount(index.root_of[rows], minlength=index.high) >= several
    return enough


def _lack(snapshot: Snapshot, root: Row, demand: Demand) -> str:
    name, asked, of = demand.resource_class, demand.asked, demand.of
    if demand.code == "disabled":
        return why_disabled(root.traits)
    if not name:
        return demand.says
    having = [row for row in snapshot.rows_of(root.uuid) if name in row.inventories]
    closed = f": {WHY_CLOSED[root.labels.closed]}" if root.labels.closed else ""
    if not having:
        return f"{of}{asked} {name}: it has none{closed}"
    permitting = [row for row in having if not _limit(row.inventories[name], asked)]
    best = max(permitting or having, key=lambda row: row.free[name])
    at_most = "at most " if len(having) > 1 else ""
    free = max(best.free[name], 0)
    if permitting:
        return f"{of}{asked - free} {name}: asked {asked}, {at_most}free {free}{closed}"
    limit = _limit(best.inventories[name], asked)
    return f"{of}{name}: asked {asked}, {limit}, {at_most}free {free}{closed}"


def _limit(inventory: Inventory, asked: int) -> str:
    """Return the limit of an inventory that excludes claims of an amount, whatever is free; "" if none."""
    limit = broken_limit(asked, inventory.min_unit, inventory.max_unit, inventory.step_size)
    return limit and limit_text(limit, getattr(inventory, limit))


def limit_text(limit: str, value: int) -> str:
    """Return a limit of an inventory, such as "at most 32 for one claim (max_unit)"."""
    if limit == "step_size":
        return f"only multiples of {value} (step_size)"
    return f"at {'most' if limit == 'max_unit' else 'least'} {value} for one claim ({limit})"
