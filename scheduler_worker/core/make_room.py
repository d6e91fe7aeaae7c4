"""Plans the least disruptive moves of instances after which a number of builds of one flavor fit.

The order of plans: fewest moves, then least total size, then fewest stopped instances. A target is a host
that gets a build of the flavor. Instances leave a target for hosts with enough free capacity; if none has
enough, for a host that other instances leave first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import comb

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove

MOST_SETS = 20_000  # sets of leaving instances of one host and size that are compared
TRIED_SETS = 400  # sets of one size for which destinations are searched
TRIED_DEEPER = 40  # sets of one size for which other hosts are made free
TARGETS_AT_ONCE = 256  # targets compared in one search
DEPTH = 2  # a host that is made free for a leaving instance may need such a host too


@dataclass(frozen=True, eq=False)
class RoomDemand:
    """The builds that a plan makes room for: amounts by class, and the hosts that accept such a build."""

    amounts: Floats
    accepted: Bools  # hosts that the flavor's filters accept, as if they were empty
    count: int = 1
    most_per_host: int = 1_000_000


@dataclass(frozen=True, eq=False)
class RoomPlan:
    """Moves, and the host of each build after the moves. If `code` is not empty, not all builds fit: the plan
    is then that of the builds that do, and the code says what the next one lacks.
    """

    moves: tuple[PlannedMove, ...] = ()
    targets: tuple[int, ...] = ()
    code: str = ""
    hosts: int = 0  # hosts that would fit the build if they were empty


@dataclass(slots=True)
class _Leaving:
    """A set of instances whose departure makes room for one build on a target."""

    size: float
    stopped: int
    target: int
    instances: tuple[MovableInstance, ...]


@dataclass
class _Search:
    """The search for one build's target; counts how many targets each obstacle excludes."""

    moved: MovedCloud
    demand: Floats
    targets: Ints  # in the sequence of what they lack, least first
    least: dict[int, int] = field(default_factory=dict)  # target → fewest instances that must leave it
    _sets: dict[int, list[_Leaving]] = field(default_factory=dict)  # by number of instances

    def __post_init__(self) -> None:
        for target in self.targets.tolist():
            fewest = _fewest(self.moved.staying(target), self._lacks(target))
            if fewest:
                self.least[target] = fewest

    def _lacks(self, target: int) -> Floats:
        lacks: Floats = np.maximum(self.demand - self.moved.free[target], 0.0)
        return lacks

    def sets(self, number: int) -> list[_Leaving]:
        """Return the sets of `number` instances whose departure makes room on a target, the best first."""
        if number not in self._sets:
            found: list[_Leaving] = []
            for target, fewest in self.least.items():
                if fewest <= number:
                    staying, lacks = self.moved.staying(target), self._lacks(target)
                    for chosen in islice(_covering(staying, lacks, number, self.moved), TRIED_SETS):
                        size = sum(self.moved.size(each.amounts) for each in chosen)
                        stopped = sum(not each.lives for each in chosen)
                        found.append(_Leaving(size, stopped, target, chosen))
            found.sort(key=lambda each: (round(each.size, 9), each.stopped, each.target))
            self._sets[number] = found
        return self._sets[number]


def plan_room(cloud: CloudState, demand: RoomDemand, budget: int, closed: Bools | None = None) -> RoomPlan:
    """Return the least disruptive plan with at most `budget` moves, or the part of it that is possible.

    Hosts in `closed` are neither targets nor destinations.
    """
    shut = np.zeros(len(cloud.free), np.bool_) if closed is None else closed
    moved = MovedCloud(cloud, shut)
    holds = demand.accepted & ~shut & (cloud.whole >= demand.amounts - SLACK).all(axis=1)
    hosts, targets = int(holds.sum()), list[int]()
    while len(targets) < demand.count:
        full = [host for host in set(targets) if targets.count(host) >= demand.most_per_host]
        usable = holds.copy()
        usable[full] = False
        usable[[move.destination for move in moved.moves]] = False
        left = budget - len(moved.moves)
        target, code = _make_room(moved, demand.amounts, usable, left, DEPTH)
        if target is None:
            return RoomPlan(tuple(moved.moves), tuple(targets), code, hosts)
        moved.free[target] -= demand.amounts
        moved.closed[target] = True
        targets.append(target)
    return RoomPlan(tuple(moved.moves), tuple(targets), hosts=hosts)


def _make_room(
    moved: MovedCloud, demand: Floats, usable: Bools, budget: int, depth: int
) -> tuple[int | None, str]:
    """Try the moves after which the demand fits on a usable host, and return the host; None and a reason code
    if no plan exists."""
    if not usable.any():
        return None, "no_host"
    lacking = (np.maximum(demand - moved.free, 0.0) / moved.scale).sum(axis=1)
    fits = np.flatnonzero(usable & (lacking <= SLACK))
    if fits.size:
        left = ((moved.free[fits] - demand) / moved.scale).sum(axis=1)
        return int(fits[np.argmin(left)]), ""
    known = np.zeros(len(usable), np.bool_)
    known[list(moved.cloud.instances)] = True
    targets = np.flatnonzero(usable & known)
    targets = targets[np.argsort(lacking[targets], kind="stable")][:TARGETS_AT_ONCE]
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
    """Plan to move the best set of this number of instances that find destinations; return its target."""
    for leaving in search.sets(number)[:TRIED_SETS]:
        with search.moved.closing(leaving.target):
            if search.moved.place_all(leaving.instances, leaving.target):
                return leaving.target
    return None


def _first_deeper(search: _Search, total: int, depth: int) -> int | None:
    """Like `_first_placed`, with moves that make room for the leaving instances: `total` moves altogether."""
    for number in range(1, total):
        for leaving in search.sets(number)[:TRIED_DEEPER]:
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
            usable = instance.accepted & ~moved.closed
            usable[list(moved.cloud.forbidden.get(instance.build, ()))] = False
            usable &= (moved.cloud.whole >= instance.amounts - SLACK).all(axis=1)
            found = _make_room(moved, instance.amounts, usable, left, depth)[0] if left > 0 else None
        if found is None:
            moved.undo(before)
            return False
        moved.move(instance, leaving.target, found)
    return True


def _fewest(staying: Sequence[MovableInstance], lacks: Floats) -> int:
    """Return a lower bound of the number of instances that must leave; 0 if all of them are not enough."""
    if not staying:
        return 0
    sums = np.sort(np.array([each.amounts for each in staying]), axis=0)[::-1].cumsum(axis=0)
    if (sums[-1] < lacks - SLACK).any():
        return 0
    return int((sums < lacks - SLACK).sum(axis=0).max()) + 1


def _covering(
    staying: Sequence[MovableInstance], lacks: Floats, number: int, moved: MovedCloud
) -> Iterator[tuple[MovableInstance, ...]]:
    """Yield the sets of `number` instances that release what a host lacks, in the order of their sizes."""
    some = list(staying)
    if number > len(some):
        return
    if comb(len(some), number) > MOST_SETS:
        most = number
        while comb(most + 1, number) <= MOST_SETS:
            most += 1
        some.sort(key=lambda each: -_share(each.amounts, lacks))
        some = some[:most]
    amounts = np.array([each.amounts for each in some])
    sizes = (amounts / moved.scale).sum(axis=1)
    stopped = np.array([not each.lives for each in some])
    chosen = np.array(list(combinations(range(len(some)), number)), np.intp)
    chosen = chosen[(amounts[chosen].sum(axis=1) >= lacks - SLACK).all(axis=1)]
    order = np.lexsort((stopped[chosen].sum(axis=1), np.round(sizes[chosen].sum(axis=1), 9)))
    for row in chosen[order].tolist():
        yield tuple([some[at] for at in row])


def _share(amounts: Floats, lacks: Floats) -> float:
    """Return which fraction of the lacking amounts an instance would release."""
    needed = lacks > 0
    return float(np.minimum(amounts[needed] / lacks[needed], 1.0).sum()) if needed.any() else 0.0
