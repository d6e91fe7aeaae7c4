"""Chooses the instances to preempt so that all instances of a request fit, as a pure search on arrays.

The best set of victims lets the request fit in one domain, and its highest priority is as low as possible;
then it has the fewest instances, the least total size, and the first hosts. The search tries each priority as
the highest one. It adds hosts one after another to a table, which has, for each number of instances of each
part, the least cost of placing them on the added hosts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from bus.candidates import Floats, Ints
from bus.packing import RowPacking, are_free, instances_in
from bus.vocabulary import Id

SLACK = 1e-9
MOST_SETS = 50_000  # sets of victims on one host that are compared; with more, a greedy choice is made
MOST_CELLS = 100_000  # cells of a table, times its hosts; with more, parts are placed one after another
UNLIMITED = 1_000_000
_VICTIM = 1 << 44  # cost of one victim, plus its size in units of 1e-9: fewer victims always cost less
_UNREACHABLE = 1 << 62
_Sets = np.ndarray[tuple[int, ...], np.dtype[np.int16]]  # by set and kind: the number of instances


@dataclass(frozen=True, slots=True, eq=False)
class Replaceable:
    """An instance that may be preempted, with its amounts by resource class."""

    build: Id
    priority: int
    amounts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CrowdedHost:
    """A host: the instances that may be preempted, and how many instances it may take."""

    at: int  # its row in the packing
    instances: Sequence[Replaceable]
    most: tuple[int, ...] = (1,)  # most instances of each part; 0: the host does not accept the part
    limit: int = UNLIMITED  # most instances of all parts together
    domain: int = 0  # number of the domain; all instances of a request must be in one domain
    spread: int = 0  # number of the spread domain, which limits the instances


@dataclass(frozen=True, slots=True, eq=False)
class RequestedParts:
    """The parts of a request: amounts by part and resource class, and the number of instances by part."""

    amounts: Floats
    counts: tuple[int, ...]
    left: Mapping[int, int] | None = None  # spread domain → instances that it may take; None: no limits


@dataclass(frozen=True, slots=True, eq=False)
class VictimChoice:
    """The numbers of instances of each requested part that one host gets, and the victims deleted first."""

    at: int
    placed: tuple[int, ...]
    victims: tuple[Replaceable, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Option:
    """A number of instances of each part of a request that can be placed on one host (then `choice` is set)
    or on the hosts of one spread domain (then `table` is set), with the cost of their victims.
    """

    placed: tuple[int, ...]
    cost: int
    choice: VictimChoice | None = None
    table: "_Table | None" = None

    def choices(self) -> Iterator[VictimChoice]:
        if self.choice is not None:
            yield self.choice
        elif self.table is not None:
            yield from self.table.choices(self.placed)


class _Table:
    """The least cost of placing each number of instances of each part on the hosts added so far."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.costs: Ints = np.full([count + 1 for count in counts], _UNREACHABLE, np.int64)
        self.costs[(0,) * len(counts)] = 0
        self._added: list[tuple[Sequence[_Option], Ints]] = []

    def add(self, options: Sequence[_Option]) -> None:
        if not options:
            return
        costs, taken = self.costs.copy(), np.full(self.costs.shape, -1, np.intp)
        for index, option in enumerate(options):
            ends = zip(self.costs.shape, option.placed, strict=True)
            tried = self.costs[tuple([slice(0, size - more) for size, more in ends])] + option.cost
            to = tuple([slice(more, None) for more in option.placed])
            is_less = tried < costs[to]
            costs[to][is_less], taken[to][is_less] = tried[is_less], index
        self.costs = costs
        self._added.append((options, taken))

    def choices(self, placed: tuple[int, ...]) -> Iterator[VictimChoice]:
        """Yield, for each host that gets some of the `placed` instances (numbers by part), how many, and its
        victims. All victims together are the fewest and, among equally many, have the least total size."""
        for options, taken in reversed(self._added):
            if (index := int(taken[placed])) >= 0:
                yield from options[index].choices()
                placed = tuple(
                    [all_ - some for all_, some in zip(placed, options[index].placed, strict=True)]
                )

    def options(self, most: int) -> Iterator[_Option]:
        """Yield all numbers of instances by part, at most `most` together, that the added hosts may take,
        with the least cost of each.
        """
        for placed in zip(*np.nonzero(self.costs < _UNREACHABLE), strict=True):
            if 0 < sum(placed) <= most:
                numbers = tuple([int(each) for each in placed])
                yield _Option(numbers, int(self.costs[placed]), table=self)


def choose_victims(
    hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts
) -> tuple[VictimChoice, ...] | None:
    """Return for each host that is used the instances to place and the victims to delete; None if the request
    fits in no domain.
    """
    domains: dict[int, list[CrowdedHost]] = {}
    for host in hosts:
        domains.setdefault(host.domain, []).append(host)
    priorities = sorted({each.priority for host in hosts for each in host.instances})
    for highest in (-1, *priorities):
        found = [_in_domain(some, packing, wanted, highest) for some in domains.values()]
        if fitting := [each for each in found if each is not None]:
            return min(fitting, key=lambda each: each[0])[1]
    return None


def _in_domain(
    hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts, highest: int
) -> tuple[int, tuple[VictimChoice, ...]] | None:
    """Return the least cost of placing the request on the hosts of one domain, with victims of at most
    priority `highest`, and the choice for each host; None if the request does not fit."""
    if not _may_fit(hosts, packing, wanted, highest):
        return None
    left, still, placed = hosts, wanted, dict[int, Ints]()
    with packing.trying() as trial:
        for some in _portions(wanted.counts, len(hosts)):
            counts = tuple([count if part in some else 0 for part, count in enumerate(wanted.counts)])
            table = _filled(left, packing, replace(still, counts=counts), highest)
            if table.costs[counts] >= _UNREACHABLE:
                return None
            new = list(table.choices(counts))
            for choice in new:
                placed[choice.at] = placed.get(choice.at, 0) + np.array(choice.placed)
                trial.claim(choice.at, np.array(choice.placed) @ wanted.amounts)
                for victim in choice.victims:
                    trial.release(choice.at, victim.amounts)
            left, still = _after(left, still, new)
    choices = []
    for host in hosts:
        if host.at in placed:
            demand = placed[host.at] @ wanted.amounts
            victims = _HostVictims(host, packing, highest).fewest(demand)
            choices.append(VictimChoice(host.at, tuple(placed[host.at].tolist()), victims))
    return sum(_cost(choice.victims, packing) for choice in choices), tuple(choices)


def _may_fit(hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts, highest: int) -> bool:
    free = np.array([_available(host, packing, highest) for host in hosts])
    for part, count in enumerate(wanted.counts):
        fits = [min(host.most[part], host.limit) for host in hosts]
        if np.minimum(instances_in(wanted.amounts[part], free), fits).sum() < count:
            return False
    return True


def _available(host: CrowdedHost, packing: RowPacking, highest: int) -> Floats:
    """Return by class what is free on a host after deleting all instances of at most this priority."""
    some = [each.amounts for each in host.instances if each.priority <= highest]
    available: Floats = np.sum([packing.free[host.at], *some], axis=0)
    return available


def _portions(counts: Sequence[int], hosts: int) -> Iterator[list[int]]:
    """Yield groups of indices of a request's parts (its roles): the search places each group together. All
    parts are one group unless the table for `hosts` hosts would be too large. `counts`: instances per part.
    """
    some, cells = list[int](), hosts
    for part, count in enumerate(counts):
        if some and cells * (count + 1) > MOST_CELLS:
            yield some
            some, cells = [], hosts
        some.append(part)
        cells *= count + 1
    yield some


def _filled(
    hosts: Sequence[CrowdedHost], packing: RowPacking, wanted: RequestedParts, highest: int
) -> _Table:
    table = _Table(wanted.counts)
    if wanted.left is None:
        for host in hosts:
            table.add(list(_options(host, packing, wanted, highest)))
        return table
    domains: dict[int, _Table] = {}
    for host in hosts:
        of_domain = domains.setdefault(host.spread, _Table(wanted.counts))
        of_domain.add(list(_options(host, packing, wanted, highest)))
    for spread, of_domain in domains.items():
        table.add(list(of_domain.options(wanted.left.get(spread, 0))))
    return table


def _options(
    host: CrowdedHost, packing: RowPacking, wanted: RequestedParts, highest: int
) -> Iterator[_Option]:
    """Yield all numbers of instances of each part that a host may take, with the fewest victims for each."""
    available = _available(host, packing, highest)
    most = np.minimum(wanted.counts, host.most)
    fit = [instances_in(amounts, available) for amounts in wanted.amounts]
    ranges = [range(int(each) + 1) for each in np.minimum(fit, most)]
    placed = np.array(list(product(*ranges)))
    total, demands = placed.sum(axis=1), placed @ wanted.amounts
    fitting = (total > 0) & (total <= host.limit) & are_free(demands, available)
    if fitting.any():
        victims = _HostVictims(host, packing, highest)
        for row, demand in zip(placed[fitting].tolist(), demands[fitting], strict=True):
            some = victims.fewest(demand)
            yield _Option(tuple(row), _cost(some, packing), VictimChoice(host.at, tuple(row), some))


def _cost(victims: Sequence[Replaceable], packing: RowPacking) -> int:
    size = sum(packing.size(each.amounts) for each in victims)
    return len(victims) * _VICTIM + round(size / SLACK)


def _after(
    hosts: Sequence[CrowdedHost], wanted: RequestedParts, choices: Sequence[VictimChoice]
) -> tuple[list[CrowdedHost], RequestedParts]:
    """Return the hosts with their remaining instances and limits, and `wanted` with the remaining limits of
    spread domains, after the given choices.
    """
    chosen, left, after = {choice.at: choice for choice in choices}, wanted.left, list[CrowdedHost]()
    for host in hosts:
        if (choice := chosen.get(host.at)) is not None:
            stay = [each for each in host.instances if each not in choice.victims]
            count = sum(choice.placed)
            host = replace(host, instances=stay, limit=host.limit - count)
            if left is not None:
                left = {**left, host.spread: left.get(host.spread, 0) - count}
        after.append(host)
    return after, replace(wanted, left=left)


class _HostVictims:
    """The instances of a host that may be preempted. Instances of equal amounts are interchangeable."""

    def __init__(self, host: CrowdedHost, packing: RowPacking, highest: int) -> None:
        kinds: dict[bytes, list[Replaceable]] = {}
        for each in host.instances:
            if each.priority <= highest:
                kinds.setdefault(each.amounts.tobytes(), []).append(each)
        self._kinds = list(kinds.values())
        self._amounts = np.array([kind[0].amounts for kind in self._kinds]).reshape(-1, len(packing.classes))
        self._several = np.array([len(kind) for kind in self._kinds], np.intp)
        self._sizes = (self._amounts / packing.scale).sum(axis=1)
        self._packing, self._at = packing, host.at

    def fewest(self, demand: Floats) -> tuple[Replaceable, ...]:
        """Return the fewest instances, of the least size, to delete so that the demand fits; if too many sets
        would be compared, a greedy choice. The demand must fit after the deletion of all instances.
        """
        lacks = self._packing.lacks(demand, self._at)
        useful = np.flatnonzero((np.minimum(self._amounts, lacks) > SLACK).any(axis=1))
        if not useful.size:
            return ()
        amounts, several = self._amounts[useful], self._several[useful]
        largest = np.sort(np.repeat(amounts, several, axis=0), axis=0)[::-1].cumsum(axis=0)
        least = int((largest < lacks - SLACK).sum(axis=0).max()) + 1
        for number in range(least, int(several.sum()) + 1):
            sets = _sets(tuple(np.minimum(several, number).tolist()), number, MOST_SETS)
            if sets is None:
                break
            fitting = sets[(sets @ amounts >= lacks - SLACK).all(axis=1)]
            if len(fitting):
                best = fitting[int(np.argmin(np.round(fitting @ self._sizes[useful], 9)))]
                taken = [self._kinds[kind][:each] for kind, each in zip(useful, best, strict=True)]
                return tuple([each for some in taken for each in some])
        return _by_share([each for kind in useful for each in self._kinds[kind]], lacks)


@lru_cache(maxsize=16)
def _sets(most: tuple[int, ...], number: int, limit: int) -> _Sets | None:
    """Return all sets of `number` instances as rows: how many instances of each group of equal instances a
    set has. `most` has the size of each group. Return None if there are more than `limit` sets.
    """
    sets: _Sets = np.zeros((1, 0), np.int16)
    left, ahead = np.array([number]), sum(most)
    for count in most:
        ahead -= count
        rows, takes = np.nonzero(
            (np.arange(count + 1) <= left[:, np.newaxis])
            & (np.arange(count + 1) >= left[:, np.newaxis] - ahead)
        )
        if len(rows) > limit:
            return None
        sets, left = np.column_stack([sets[rows], takes.astype(np.int16)]), left[rows] - takes
    return sets


def _by_share(some: Sequence[Replaceable], lacks: Floats) -> tuple[Replaceable, ...]:
    """Return instances that together release what a host lacks, chosen greedily, none superfluous."""
    left, taken = lacks.copy(), list[Replaceable]()
    remaining = list(some)
    while (left > SLACK).any():
        needed = left > SLACK
        largest = max(remaining, key=lambda each: _share(each, left, needed))
        remaining.remove(largest)
        taken.append(largest)
        left = left - largest.amounts
    return tuple(_needed(taken, lacks))


def _share(instance: Replaceable, left: Floats, needed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(np.minimum(instance.amounts[needed] / left[needed], 1.0).sum())


def _needed(taken: list[Replaceable], lacks: Floats) -> Iterator[Replaceable]:
    kept = list(taken)
    for each in reversed(taken):
        rest = [other for other in kept if other is not each]
        if rest and (np.sum([other.amounts for other in rest], axis=0) >= lacks - SLACK).all():
            kept = rest
    yield from kept
