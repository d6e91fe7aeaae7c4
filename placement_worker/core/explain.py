"""Explains why no host fits a query: counts the hosts that each part of the query (resource, trait,
aggregate, ...) removed, and finds the hosts that fail the fewest parts.
"""

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.decisions import NearMiss, Removal
from bus.domains import WHY_CLOSED
from bus.host_health import why_disabled
from placement_worker.core.capacity import broken_limit
from placement_worker.core.fits import (
    BREATH,
    NAMED,
    AssignmentSearch,
    Demand,
    JointRules,
    SearchPlan,
    options_at,
    top,
)
from placement_worker.core.index import BEYOND_COUNTING, Bools, Index, Row, Snapshot

NEAREST = 5
PATIENCE = 100_000  # maximum number of search steps on all hosts together
HOST_PATIENCE = 5_000
JOINT_CODE = "together"  # each requirement can be met, but not all together
UNSEEN_CODE = "unseen"
UNSEEN = "the search was cut: too many hosts or combinations"


Why = tuple[tuple[Removal, ...], tuple[NearMiss, ...]]


def explain(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, Why]:
    """Return how many hosts each part of a query (resource, trait, aggregate, ...) removed, and the hosts
    that nearly fit; `made` is the plan of the query. A generator: the caller may pause the search at each
    `yield`.
    """
    if not made.count:
        return tuple(made.removals), nearest(snapshot, made)
    return (yield from _merged(snapshot, made))


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
    best = max(having, key=lambda row: row.free[name])
    at_most = "at most " if len(having) > 1 else ""
    free = max(best.free[name], 0)
    if asked > free:
        return f"{of}{asked - free} {name}: asked {asked}, {at_most}free {free}{closed}"
    inventory = best.inventories[name]
    limit = broken_limit(asked, inventory.min_unit, inventory.max_unit, inventory.step_size)
    return f"{of}a fitting {limit}: asked {asked} {name}, {limit} {getattr(inventory, limit)}"


# Section: explains hosts that have a provider for each slot, but no valid combination of providers


@dataclass(slots=True)
class _Step:
    """A step of the explanation: one further rule about the providers that a query may combine. `rules`
    contains this rule and the rules of all previous steps.
    """

    says: str
    rules: JointRules
    resource_class: str = ""


def _merged(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, Why]:
    steps = list(_steps(made))
    removed = [0] * (len(steps) + 1)  # the last number counts hosts with too many combinations
    misses: list[list[NearMiss]] = [[] for _ in removed]
    patience = PATIENCE
    for position in np.flatnonzero(made.left).tolist():
        yield
        anchor = snapshot.row_at(position)
        assert anchor is not None
        options = options_at(snapshot, made, anchor)
        breaking, spent = len(steps), 0
        if patience > 0:
            breaking, spent = yield from _breaking(snapshot, made, options, steps)
        patience -= spent
        removed[breaking] += 1
        if len(misses[breaking]) < NEAREST:
            lacks = _sentence_of(made, options, steps[breaking]) if breaking < len(steps) else UNSEEN
            code = JOINT_CODE if breaking < len(steps) else UNSEEN_CODE
            misses[breaking].append(NearMiss(host=anchor.host, lacks=lacks, code=code))
    left = made.count
    removals = list(made.removals)
    for constraint, count, near in zip(
        (*(step.says for step in steps), UNSEEN), removed, misses, strict=True
    ):
        if count:
            left -= count
            some = tuple(miss.host for miss in near[:NAMED])
            code = UNSEEN_CODE if constraint == UNSEEN else JOINT_CODE
            removals.append(Removal(constraint=constraint, removed=count, left=left, code=code, hosts=some))
    # Hosts that satisfy the most constraints are the closest.
    closest = [miss for some in (*reversed(misses[:-1]), misses[-1]) for miss in some]
    return tuple(removals), tuple(closest[:NEAREST])


def _steps(made: SearchPlan) -> Iterator[_Step]:
    rules = JointRules()
    if made.rules.isolate:
        rules = replace(rules, isolate=made.rules.isolate)
        yield _Step("isolate: a provider of its own for each group", rules)
    if made.rules.apart:
        rules = replace(rules, apart=True)
        yield _Step("never two providers of one tree", rules)
    for members in made.rules.subtrees:
        rules = replace(rules, subtrees=(*rules.subtrees, members))
        yield _Step("same_subtree " + "+".join(made.slots[nth].suffix for nth in members), rules)
    if made.rules.needs:
        rules = replace(rules, needs=made.rules.needs)
        traits = ", ".join(" or ".join(some) for some in made.rules.needs)
        yield _Step(f"traits {traits}, of those that give resources", rules)
    for name in made.rules.summed:
        rules = replace(rules, summed=(*rules.summed, name))
        yield _Step(f"summed {name} within what is free and max_unit", rules, name)


def _breaking(
    snapshot: Snapshot, made: SearchPlan, options: Sequence[Sequence[Row]], steps: list[_Step]
) -> Generator[None, None, tuple[int, int]]:
    spent = 1
    for number, step in enumerate(steps):
        ways = AssignmentSearch(snapshot, made.slots, step.rules, options)
        for way in ways:
            if way is not None:
                break
            yield
            if ways.steps > HOST_PATIENCE:
                return len(steps), spent + ways.steps
        else:
            return number, spent + ways.steps + BREATH // 8
        spent += ways.steps + BREATH // 8
    return len(steps), spent


def _sentence_of(made: SearchPlan, options: Sequence[Sequence[Row]], step: _Step) -> str:
    name = step.resource_class
    if not name:
        return step.says
    asking = [
        (slot.asks[name], rows) for slot, rows in zip(made.slots, options, strict=True) if name in slot.asks
    ]
    tops = sorted({row.uuid: top(row, name) for _, rows in asking for row in rows}.values(), reverse=True)
    asked = "+".join(str(amount) for amount, _ in asking)
    return f"summed {name}: asked {asked}, to be had {'+'.join(map(str, tops))}"
