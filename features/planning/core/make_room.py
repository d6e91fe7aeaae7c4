"""Plans the least disruptive moves of instances after which a number of builds of one flavor fit.

The order of plans: fewest moves, then least total size, then fewest stopped instances, then the most capacity
that the usual requests could use afterwards, if the scheduler knows it. The size of an instance is the sum of
its amounts as fractions of the largest host. A target is a host that gets a build of
the flavor. Instances leave a target for hosts with enough free capacity; if no host has enough, for a host
that other instances leave first. In a small cloud this plan is then the bound of a search of all plans
(exact_room.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.candidates import Bools, Floats, Ints
from features.planning.core.exact_room import search_all
from features.planning.core.leaving_sets import TRIED_SETS, LeavingSearch, LeavingSet
from features.planning.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove
from features.planning.core.room_demand import RoomDemand
from scheduler_worker.core.extension import Shape

TRIED_DEEPER = 40  # sets of one size for which other hosts are made free
TRIED_BETTER = 40  # further sets that are tried for a better plan with as many moves
TRIED_EQUAL = 40  # further sets of equal size that are tried for a plan that leaves more usable
BOTH_ORDERS = 2  # instances of a set that is moved in both orders
TARGETS_AT_ONCE = 256  # targets compared in one search
TARGETS_DEEPER = 64  # hosts compared that are made free for a leaving instance
Cost = tuple[int, float, int]
Rank = tuple[int, float, int, float]  # plans are compared by their cost, then by what is not usable any more
DEPTH = 2  # a host that is made free for a leaving instance may need such a host too


@dataclass(frozen=True, eq=False)
class RoomPlan:
    """Moves, and the host of each build after the moves, in the sequence of the demand's parts. If `code` is
    not empty, only some builds fit: the plan covers these builds, and `code` is the reason why a further
    build does not fit.
    """

    moves: tuple[PlannedMove, ...] = ()
    targets: tuple[int, ...] = ()
    code: str = ""
    hosts: int = 0  # hosts that would fit the build if they were empty
    lost: float = 0.0  # how much less the usual requests could use afterwards
    # why a better plan may exist, or with a `code`, any plan; empty: there is none
    unproven: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """Moves after which a build fits on a target."""

    target: int
    moves: Sequence[PlannedMove]
    rank: Rank


def cost_of(moves: Sequence[PlannedMove], scale: Floats) -> Cost:
    """Return the number of moves, their total size, and the number of stopped instances."""
    size = sum(float((move.instance.amounts / scale).sum()) for move in moves)
    return len(moves), round(size, 9), sum(not move.instance.lives for move in moves)


def plan_room(cloud: CloudState, demand: RoomDemand, budget: int) -> RoomPlan:
    """Return the least disruptive plan with at most `budget` moves, or the part of it that is possible."""
    hosts = int(demand.could_hold(cloud).sum())
    best: RoomPlan | None = None
    for domain, kept, shared in _attempts(cloud, demand):
        if shared and best is not None and not best.code:
            continue
        most = budget if best is None or best.code else len(best.moves)
        plan = _plan_within(cloud, demand, domain, kept, most, shared=shared)
        if best is None or _disruption(plan, cloud.packing.scale) < _disruption(best, cloud.packing.scale):
            best = plan
        if not best.code and not best.moves:
            break
    best = best or RoomPlan(code="no_host")
    if not hosts or not (best.code or best.moves):
        return replace(best, hosts=hosts)
    below = None if best.code else cost_of(best.moves, cloud.packing.scale)
    exact = search_all(cloud, demand, budget, below)
    if exact.found:
        plan = RoomPlan(exact.moves, exact.targets, lost=exact.lost)
        best = min(plan, best, key=lambda each: _disruption(each, cloud.packing.scale))
    return replace(best, hosts=hosts, unproven=exact.unproven)


def _attempts(cloud: CloudState, demand: RoomDemand) -> Iterator[tuple[Bools, Bools, bool]]:
    """Yield for each attempt the hosts that may be targets, hosts that are no destinations, and whether
    instances may move to targets. In a packed domain, moves to a host can prevent a further build there, so
    other destinations are tried first. Targets are closed while a plan is carried out, unless an instance
    moves there, so they are tried last.
    """
    nowhere = np.zeros(len(cloud.packing), np.bool_)
    for domain in demand.domains(cloud):
        if demand.packed is not None and demand.count > 1:
            yield domain, domain, False
        yield domain, nowhere, False
    if demand.count > 1:
        for domain in demand.domains(cloud):
            yield domain, nowhere, True


def _disruption(plan: RoomPlan, scale: Floats) -> tuple[bool, int, Cost, float]:
    """Return a sort key of plans. The best plan has the smallest key: the most builds, then the least cost,
    then the least that is not usable any more.
    """
    return bool(plan.code), -len(plan.targets), cost_of(plan.moves, scale), plan.lost


def _plan_within(
    cloud: CloudState, demand: RoomDemand, hosts: Bools, closed: Bools, budget: int, *, shared: bool
) -> RoomPlan:
    """Return a plan with targets among `hosts`, no destination in `closed`, and at most `budget` moves. With
    `shared`, instances may move to targets. If not all builds fit, the plan covers the first builds, up to
    the one that does not fit.
    """
    moved = MovedCloud(cloud, closed)
    for part in demand.parts:
        holds = part.could_hold(cloud) & hosts
        for _ in range(part.count):
            usable = demand.open_to(holds, moved.targets).copy()
            if not shared:
                usable[[move.destination for move in moved.moves]] = False
            left = budget - len(moved.moves)
            target, code = _make_room(moved, part.amounts, part.shapes, usable, left, DEPTH)
            if target is None:
                return RoomPlan(tuple(moved.moves), tuple(moved.targets), code, lost=moved.lost())
            moved.build(target, part.amounts, part.shapes, closing=not shared)
    return RoomPlan(tuple(moved.moves), tuple(moved.targets), lost=moved.lost())


def _make_room(
    moved: MovedCloud, demand: Floats, shapes: Sequence[Shape], usable: Bools, budget: int, depth: int
) -> tuple[int | None, str]:
    """Find and record in `moved` at most `budget` moves after which the demand fits on a usable host;
    destinations may be made free first, `depth` levels deep. Return the host and "", or None and a reason
    code if no plan exists.
    """
    if not usable.any():
        return None, "no_host"
    lack = moved.packing.distances(demand)
    fits = np.flatnonzero(usable & (lack == 0))
    if fits.size:
        return _best_fit(moved, demand, shapes, fits), ""
    targets = np.flatnonzero(usable & moved.known)
    most = TARGETS_AT_ONCE if depth == DEPTH else TARGETS_DEEPER
    if len(targets) > most:  # sorting all hosts takes longer
        targets = targets[lack[targets] <= np.partition(lack[targets], most - 1)[most - 1]]
    targets = targets[np.argsort(lack[targets], kind="stable")][:most]
    search = LeavingSearch(moved, demand, targets, shapes)
    if not search.least:
        return None, "immovable"
    if min(search.least.values()) > budget:
        return None, "budget"
    open_ = usable | ~moved.closed
    if (np.maximum(moved.packing.free[open_], 0.0).sum(axis=0) < demand - SLACK).any():
        return None, "destinations"  # moves do not add to what is free in all
    for total in range(1, budget + 1):
        best = _placed(search, total)
        if depth:
            best = _placed_deeper(search, total, depth, best)
        if best is not None:
            moved.repeat(best.moves)
            return best.target, ""
    return None, "destinations"


def _best_fit(moved: MovedCloud, demand: Floats, shapes: Sequence[Shape], fits: Ints) -> int:
    """Return the host where the demand costs least of what is usable, or if that is equal, the fullest."""
    return int(fits[np.lexsort((moved.packing.left(demand, fits), moved.costs(fits, shapes)))[0]])


def _placed(search: LeavingSearch, number: int) -> _Way | None:
    """Return the best set of `number` instances that all find destinations, with its moves; None without such
    a set.
    """
    best: _Way | None = None
    more = TRIED_EQUAL if search.moved.cloud.usable is not None else 0
    for leaving in search.sets(number, TRIED_SETS, placeable=True):
        if search.moved.is_exhausted or (best is not None and (not more or leaving.cost > best.rank[1:3])):
            break
        with search.moved.closing(leaving.target):
            before = len(search.moved.moves)
            if search.moved.place_all(leaving.instances, leaving.target):
                found = _withdrawn(search, leaving.target, before)
                best = found if best is None else min(best, found, key=lambda way: way.rank)
                if not more:
                    break
        more -= best is not None
    return best


def _placed_deeper(search: LeavingSearch, total: int, depth: int, best: _Way | None) -> _Way | None:
    """Return the better of `best` and the best moves of at most `total` instances in which other instances
    first leave the destinations, up to `depth` levels deep.
    """
    more = TRIED_BETTER
    for number in range(1, total):
        for leaving in search.sets(number, TRIED_DEEPER, placeable=False):
            if best is not None and (round(leaving.size, 9) >= best.rank[1] or not more):
                break
            if search.moved.is_exhausted:
                return best
            more -= best is not None
            for found in _ways_deeper(search, leaving, total, depth - 1):
                best = found if best is None else min(best, found, key=lambda way: way.rank)
    return best


def _ways_deeper(search: LeavingSearch, leaving: LeavingSet, total: int, depth: int) -> Iterator[_Way]:
    """Yield at most two ways to move a set: the largest instance first, and the smallest first. The first
    instance can take the only destination of the next.
    """
    moved = search.moved
    largest_first = sorted(leaving.instances, key=lambda each: -moved.packing.size(each.amounts))
    orders = [largest_first]
    if 1 < len(largest_first) <= BOTH_ORDERS:
        orders.append(largest_first[::-1])
    for ordered in orders:
        before = len(moved.moves)
        with moved.closing(leaving.target):
            if _place_deeper(moved, leaving.target, ordered, total, depth):
                yield _withdrawn(search, leaving.target, before)


def _withdrawn(search: LeavingSearch, target: int, kept: int) -> _Way:
    """Undo the moves after the first `kept` moves; return them as moves that let a build fit on `target`."""
    moved = search.moved
    moves, lost = moved.moves[kept:], moved.lost((target, search.shapes))
    moved.undo(kept)
    return _Way(target, moves, (*cost_of(moves, moved.packing.scale), lost))


def _place_deeper(
    moved: MovedCloud, source: int, leaving: Sequence[MovableInstance], total: int, depth: int
) -> bool:
    before, waiting = len(moved.moves), len(leaving)
    for instance in leaving:
        waiting -= 1
        found: int | None
        if direct := moved.destinations(instance, 1):
            found = direct[0]
        else:
            left = total - (len(moved.moves) - before) - waiting - 1
            found = _room_for(moved, instance, left, depth) if left > 0 else None
        if found is None:
            moved.undo(before)
            return False
        moved.move(instance, source, found)
    return True


def _room_for(moved: MovedCloud, instance: MovableInstance, budget: int, depth: int) -> int | None:
    """Make room for an instance that leaves its host, with moves up to `depth` levels deep; return its
    destination, or None if no moves within `budget` make room. Searches repeat with a larger budget, so the
    result for each state of the cloud is kept.
    """
    key, before = (moved.state, moved.kind(instance), depth), len(moved.moves)
    known: tuple[int, int | None, list[PlannedMove]] | None = moved.memo.get(key)
    if known is not None and (known[1] is not None or budget <= known[0]):
        needed, found, moves = known
        if found is None or budget < needed:
            return None
        moved.repeat(moves)
        return found
    usable = instance.accepted & ~moved.closed
    usable[list(moved.cloud.forbidden.get(instance.build, ()))] = False
    usable &= moved.packing.fits_empty(instance.amounts)
    found, _ = _make_room(moved, instance.amounts, (instance.shape,), usable, budget, depth)
    moves = moved.moves[before:]
    moved.memo[key] = (budget if found is None else len(moves)), found, moves
    return found
