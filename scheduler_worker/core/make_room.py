"""Plans the least disruptive moves of instances after which a number of builds of one flavor fit.

The order of plans: fewest moves, then least total size, then fewest stopped instances. The size of an
instance is the sum of its amounts as fractions of the largest host. A target is a host that gets a build of
the flavor. Instances leave a target for hosts with enough free capacity; if no host has enough, for a host
that other instances leave first.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, islice
from math import comb

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove
from scheduler_worker.core.room_demand import RoomDemand

MOST_SETS = 20_000  # sets of leaving instances of one host and size that are compared
TRIED_SETS = 400  # sets of one size for which destinations are searched
TRIED_DEEPER = 40  # sets of one size for which other hosts are made free
TARGETS_AT_ONCE = 256  # targets compared in one search
TARGETS_DEEPER = 64  # hosts compared that are made free for a leaving instance
ROUNDED = 1e-8  # sizes of sets are compared rounded
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


@dataclass(slots=True)
class _Leaving:
    """A set of instances that make room for one build on a target by leaving it."""

    size: float
    stopped: int
    target: int
    instances: tuple[MovableInstance, ...]


@dataclass(slots=True)
class _LazyList:
    """Sets of instances that could leave a host to make room. A set is computed when it is first read, and
    stored for later readers.
    """

    _more: Iterator[_Leaving]
    _found: list[_Leaving] = field(default_factory=list)

    def first(self, most: int) -> list[_Leaving]:
        self._found += islice(self._more, max(most - len(self._found), 0))
        return self._found[:most]

    def __iter__(self) -> Iterator[_Leaving]:
        at = 0
        while at < len(self._found) or len(self.first(at + 1)) > at:
            yield self._found[at]
            at += 1


@dataclass
class _Search:
    """The search for the host (target) of one build: for each target, the sets of instances that could leave
    to make room.
    """

    moved: MovedCloud
    demand: Floats
    targets: Ints  # sorted by the amounts that they lack, least first
    least: dict[int, int] = field(default_factory=dict)  # target → fewest instances that must leave it
    _sets: dict[tuple[int, bool], _LazyList] = field(default_factory=dict)  # by number of instances
    _has_destination: dict[Hashable, bool] = field(default_factory=dict)  # by kind of instance
    # target → what it lacks: size, and amounts
    _lacks: dict[int, tuple[float, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lacks = np.maximum(self.demand - self.moved.free[self.targets], 0.0)
        sizes = (lacks / self.moved.scale).sum(axis=1).tolist()
        fewest = self.moved.fewest(self.targets, lacks).tolist()
        for target, size, lack, number in zip(self.targets.tolist(), sizes, lacks, fewest, strict=True):
            if number:
                self.least[target], self._lacks[target] = number, (size, lack)

    def sets(self, number: int, most: int, *, placeable: bool) -> list[_Leaving]:
        """Return the best sets, at most `most`, of `number` instances that make room on a target by leaving
        it. With `placeable`, a set contains only instances that, moved alone, have a destination now.
        """
        if (number, placeable) not in self._sets:
            self._sets[number, placeable] = _LazyList(self._best_first(number, placeable))
        return self._sets[number, placeable].first(most)

    def _best_first(self, number: int, placeable: bool) -> Iterator[_Leaving]:
        """Yield sets of instances that could leave a target host to make room there: the smallest first, at
        equal size the set with fewer stopped instances. The sets of a target are computed when all sets
        smaller than the amounts that the target lacks have been yielded.
        """
        bounds = sorted(
            (self._lacks[target][0], target) for target, fewest in self.least.items() if fewest <= number
        )
        known: list[tuple[float, int, int, _Leaving, Iterator[_Leaving]]] = []
        unknown = deque(bounds)
        while known or unknown:
            while unknown and (not known or unknown[0][0] <= known[0][0] + ROUNDED):
                _push(known, self._of_target(unknown.popleft()[1], number, placeable))
            if known:
                *_, best, more = heappop(known)
                yield best
                _push(known, more)

    def _of_target(self, target: int, number: int, placeable: bool) -> Iterator[_Leaving]:
        """Return an iterator of the sets of instances that could leave a target host to make room there. The
        sets are stored for later searches in which this host has the same instances and lacks the same
        amounts.
        """
        moved, lacks, some = self.moved, self._lacks[target][1], self.moved.staying(target)
        if placeable:
            some = [each for each in some if self._can_move(each)]
        key = target, number, lacks.tobytes(), tuple([each.build for each in some])
        if key not in moved.memo:
            sets = _covering(target, lacks, number, some, moved.scale)
            moved.memo[key] = _LazyList(islice(sets, TRIED_SETS))
        return iter(moved.memo[key])

    def _can_move(self, instance: MovableInstance) -> bool:
        kind = self.moved.kind(instance)
        if kind not in self._has_destination:
            self._has_destination[kind] = bool(self.moved.destinations(instance, 1))
        return self._has_destination[kind]


def _push(heap: list[tuple[float, int, int, _Leaving, Iterator[_Leaving]]], sets: Iterator[_Leaving]) -> None:
    """Add the next set of `sets` (sets of instances that may leave one target host), if any, to the heap. The
    heap contains the best remaining set of each target host.
    """
    if (best := next(sets, None)) is not None:
        heappush(heap, (round(best.size, 9), best.stopped, best.target, best, sets))


def plan_room(cloud: CloudState, demand: RoomDemand, budget: int, closed: Bools | None = None) -> RoomPlan:
    """Return the least disruptive plan with at most `budget` moves, or the part of it that is possible.

    Hosts in `closed` are neither targets nor destinations.
    """
    shut = np.zeros(len(cloud.free), np.bool_) if closed is None else closed
    hosts = int((demand.could_hold(cloud) & ~shut).sum())
    best: RoomPlan | None = None
    for domain, kept in _attempts(cloud, demand, shut):
        most = budget if best is None or best.code else len(best.moves)
        plan = _plan_within(cloud, demand, domain & ~shut, shut | kept, most)
        if best is None or _disruption(plan, cloud.scale) < _disruption(best, cloud.scale):
            best = plan
        if not best.code and not best.moves:
            break
    return replace(best or RoomPlan(code="no_host"), hosts=hosts)


def _attempts(cloud: CloudState, demand: RoomDemand, shut: Bools) -> Iterator[tuple[Bools, Bools]]:
    """Yield for each attempt the hosts that may be targets, and hosts that are no destinations. In a packed
    domain, moves to a host can prevent a further build there, so other destinations are tried first.
    """
    for domain in demand.domains(cloud):
        if demand.packed is not None and demand.count > 1:
            yield domain, domain
        yield domain, np.zeros_like(shut)


def _disruption(plan: RoomPlan, scale: Floats) -> tuple[bool, int, int, float, int]:
    """Return the key by which plans are compared: plans for all builds come first."""
    size = sum(float((move.instance.amounts / scale).sum()) for move in plan.moves)
    stopped = sum(not move.instance.lives for move in plan.moves)
    return bool(plan.code), -len(plan.targets), len(plan.moves), round(size, 9), stopped


def _plan_within(cloud: CloudState, demand: RoomDemand, hosts: Bools, shut: Bools, budget: int) -> RoomPlan:
    """Return a plan whose targets are among the given hosts."""
    moved = MovedCloud(cloud, shut)
    for part in demand.parts:
        holds = part.could_hold(cloud) & hosts
        for _ in range(part.count):
            usable = demand.open_to(holds, moved.targets).copy()
            usable[[move.destination for move in moved.moves]] = False
            left = budget - len(moved.moves)
            target, code = _make_room(moved, part.amounts, usable, left, DEPTH)
            if target is None:
                return RoomPlan(tuple(moved.moves), tuple(moved.targets), code)
            moved.build(target, part.amounts)
    return RoomPlan(tuple(moved.moves), tuple(moved.targets))


def _make_room(
    moved: MovedCloud, demand: Floats, usable: Bools, budget: int, depth: int
) -> tuple[int | None, str]:
    """Find and record in `moved` at most `budget` moves after which the demand fits on a usable host;
    destinations may be made free first, `depth` levels deep. Return the host and "", or None and a reason
    code if no plan exists.
    """
    if not usable.any():
        return None, "no_host"
    lacking = (np.maximum(demand - moved.free, 0.0) / moved.scale).sum(axis=1)
    fits = np.flatnonzero(usable & (lacking <= SLACK))
    if fits.size:
        left = ((moved.free[fits] - demand) / moved.scale).sum(axis=1)
        return int(fits[np.argmin(left)]), ""
    targets = np.flatnonzero(usable & moved.known)
    most = TARGETS_AT_ONCE if depth == DEPTH else TARGETS_DEEPER
    if len(targets) > most:  # sorting all hosts takes longer
        targets = targets[lacking[targets] <= np.partition(lacking[targets], most - 1)[most - 1]]
    targets = targets[np.argsort(lacking[targets], kind="stable")][:most]
    search = _Search(moved, demand, targets)
    if not search.least:
        return None, "immovable"
    if min(search.least.values()) > budget:
        return None, "budget"
    for total in range(1, budget + 1):
        target = _first_placed(search, total)
        if target is None and depth:
            target = _first_deeper(search, total, depth)
        if target is not None:
            return target, ""
    return None, "destinations"


def _first_placed(search: _Search, number: int) -> int | None:
    """Move the best set of `number` instances that all find destinations. Return the host that the instances
    leave, or None if no set finds destinations.
    """
    for leaving in search.sets(number, TRIED_SETS, placeable=True):
        with search.moved.closing(leaving.target):
            if search.moved.place_all(leaving.instances, leaving.target):
                return leaving.target
    return None


def _first_deeper(search: _Search, total: int, depth: int) -> int | None:
    """Like `_first_placed`, but other instances may first leave the destinations, up to `depth` levels deep.
    At most `total` instances move.
    """
    for number in range(1, total):
        for leaving in search.sets(number, TRIED_DEEPER, placeable=False):
            with search.moved.closing(leaving.target):
                if _place_deeper(search.moved, leaving, total, depth - 1):
                    return leaving.target
    return None


def _place_deeper(moved: MovedCloud, leaving: _Leaving, total: int, depth: int) -> bool:
    before, waiting = len(moved.moves), len(leaving.instances)
    for instance in sorted(leaving.instances, key=lambda each: -moved.size(each.amounts)):
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
        moved.move(instance, leaving.target, found)
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
        for move in moves:
            moved.move(move.instance, move.source, move.destination)
        return found
    usable = instance.accepted & ~moved.closed
    usable[list(moved.cloud.forbidden.get(instance.build, ()))] = False
    usable &= (moved.cloud.whole >= instance.amounts - SLACK).all(axis=1)
    found, _ = _make_room(moved, instance.amounts, usable, budget, depth)
    moves = moved.moves[before:]
    moved.memo[key] = (budget if found is None else len(moves)), found, moves
    return found


def _covering(
    target: int, lacks: Floats, number: int, some: list[MovableInstance], scale: Floats
) -> Iterator[_Leaving]:
    """Yield the sets of `number` of the instances `some` that release what a target lacks, smallest set
    first.
    """
    if number > len(some):
        return
    if comb(len(some), number) > MOST_SETS:
        most = number
        while comb(most + 1, number) <= MOST_SETS:
            most += 1
        some = sorted(some, key=lambda each: -_share(each.amounts, lacks))[:most]
    amounts = np.array([each.amounts for each in some])
    stopped = np.array([not each.lives for each in some])
    chosen = _combinations(len(some), number)
    chosen = chosen[(amounts[chosen].sum(axis=1) >= lacks - SLACK).all(axis=1)]
    sizes = (amounts / scale).sum(axis=1)[chosen].sum(axis=1)
    stops = stopped[chosen].sum(axis=1)
    for at in np.lexsort((stops, np.round(sizes, 9))).tolist():
        instances = tuple([some[each] for each in chosen[at].tolist()])
        yield _Leaving(float(sizes[at]), int(stops[at]), target, instances)


@lru_cache(maxsize=64)
def _combinations(count: int, number: int) -> Ints:
    return np.array(list(combinations(range(count), number)), np.intp)


def _share(amounts: Floats, lacks: Floats) -> float:
    """Return how much of the lacking amounts an instance would release: the fractions of
    all classes, added.
    """
    needed = lacks > 0
    return float(np.minimum(amounts[needed] / lacks[needed], 1.0).sum()) if needed.any() else 0.0
