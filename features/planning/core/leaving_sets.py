"""The sets of instances that make room for a build on a host by leaving it, smallest set first."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, islice
from math import comb

import numpy as np

from bus.candidates import Floats, Ints
from features.planning.core.moved_cloud import SLACK, MovableInstance, MovedCloud
from scheduler_worker.core.extension import Shape

MOST_SETS = 20_000  # sets of leaving instances of one host and size that are compared
TRIED_SETS = 400  # sets of one size for which destinations are searched
ROUNDED = 1e-8  # sizes of sets are compared rounded


@dataclass(slots=True)
class LeavingSet:
    """A set of instances that make room for one build on a target by leaving it."""

    size: float
    stopped: int
    target: int
    instances: tuple[MovableInstance, ...]

    @property
    def cost(self) -> tuple[float, int]:
        """The order in which sets are tried: by their size, then by the number of instances
        that must stop.
        """
        return round(self.size, 9), self.stopped


@dataclass(slots=True)
class _LazyList:
    """Sets of instances that could leave a host to make room. A set is computed when it is first read, and
    stored for later readers.
    """

    _more: Iterator[LeavingSet]
    _found: list[LeavingSet] = field(default_factory=list)

    def first(self, most: int) -> list[LeavingSet]:
        self._found += islice(self._more, max(most - len(self._found), 0))
        return self._found[:most]

    def __iter__(self) -> Iterator[LeavingSet]:
        at = 0
        while at < len(self._found) or len(self.first(at + 1)) > at:
            yield self._found[at]
            at += 1


@dataclass
class LeavingSearch:
    """For each possible host (target) of a build: the sets of instances that could leave to make room."""

    moved: MovedCloud
    demand: Floats
    targets: Ints  # sorted by the amounts that they lack, least first
    shapes: Sequence[Shape] = ()  # of the build
    least: dict[int, int] = field(default_factory=dict)  # target → fewest instances that must leave it
    _sets: dict[tuple[int, bool], _LazyList] = field(default_factory=dict)  # by number of instances
    _has_destination: dict[Hashable, bool] = field(default_factory=dict)  # by kind of instance
    # target → what it lacks: size, and amounts
    _lacks: dict[int, tuple[float, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        packing = self.moved.packing
        lacks = packing.lacks(self.demand, self.targets)
        sizes = (lacks / packing.scale).sum(axis=1).tolist()
        fewest = self.moved.fewest(self.targets, lacks).tolist()
        for target, size, lack, number in zip(self.targets.tolist(), sizes, lacks, fewest, strict=True):
            if number:
                self.least[target], self._lacks[target] = number, (size, lack)

    def sets(self, number: int, most: int, *, placeable: bool) -> list[LeavingSet]:
        """Return the best sets, at most `most`, of `number` instances that make room on a target by leaving
        it. With `placeable`, a set contains only instances that, moved alone, have a destination now.
        """
        if (number, placeable) not in self._sets:
            self._sets[number, placeable] = _LazyList(self._best_first(number, placeable))
        return self._sets[number, placeable].first(most)

    def _best_first(self, number: int, placeable: bool) -> Iterator[LeavingSet]:
        """Yield sets of instances that could leave a target host to make room there: the smallest first, at
        equal size the set with fewer stopped instances. The sets of a target are computed when all sets
        smaller than the amounts that the target lacks have been yielded.
        """
        bounds = sorted(
            (self._lacks[target][0], target) for target, fewest in self.least.items() if fewest <= number
        )
        known: list[tuple[float, int, int, LeavingSet, Iterator[LeavingSet]]] = []
        unknown = deque(bounds)
        while known or unknown:
            while unknown and (not known or unknown[0][0] <= known[0][0] + ROUNDED):
                _push(known, self._of_target(unknown.popleft()[1], number, placeable))
            if known:
                *_, best, more = heappop(known)
                yield best
                _push(known, more)

    def _of_target(self, target: int, number: int, placeable: bool) -> Iterator[LeavingSet]:
        """Return an iterator of the sets of instances that could leave a target host to make room there. The
        sets are stored for later searches in which this host has the same instances and lacks the same
        amounts.
        """
        moved, lacks, some = self.moved, self._lacks[target][1], self.moved.staying(target)
        if placeable:
            some = [each for each in some if self._can_move(each)]
        key = target, number, lacks.tobytes(), tuple([each.build for each in some])
        if key not in moved.memo:
            sets = _covering(target, lacks, number, some, moved.packing.scale)
            moved.memo[key] = _LazyList(islice(sets, TRIED_SETS))
        return iter(moved.memo[key])

    def _can_move(self, instance: MovableInstance) -> bool:
        kind = self.moved.kind(instance)
        if kind not in self._has_destination:
            self._has_destination[kind] = bool(self.moved.destinations(instance, 1))
        return self._has_destination[kind]


def _push(
    heap: list[tuple[float, int, int, LeavingSet, Iterator[LeavingSet]]], sets: Iterator[LeavingSet]
) -> None:
    """Add the next set of `sets` (sets of instances that may leave one target host), if any, to the heap. The
    heap contains the best remaining set of each target host.
    """
    if (best := next(sets, None)) is not None:
        heappush(heap, (*best.cost, best.target, best, sets))


def _covering(
    target: int, lacks: Floats, number: int, some: list[MovableInstance], scale: Floats
) -> Iterator[LeavingSet]:
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
        yield LeavingSet(float(sizes[at]), int(stops[at]), target, instances)


@lru_cache(maxsize=64)
def _combinations(count: int, number: int) -> Ints:
    return np.array(list(combinations(range(count), number)), np.intp)


def _share(amounts: Floats, lacks: Floats) -> float:
    """Return which fraction of the lacking amounts an instance would release, added over all classes."""
    needed = lacks > 0
    return float(np.minimum(amounts[needed] / lacks[needed], 1.0).sum()) if needed.any() else 0.0
