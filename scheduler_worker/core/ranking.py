"""Sorts all hosts once for equal requests, and chooses the best hosts one after another.

A chosen host is reserved immediately, and sorted again by its remaining capacity.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import takewhile
from math import inf
from typing import Protocol

import msgspec
import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.decisions import AlsoAsked, Decision, Record, RecordedHost, RecordedScale, Removal
from bus.queries import Candidate
from bus.vocabulary import Allocations, Id
from scheduler_worker.core.fitting import MOST, WAYS_OF_THE_BEST, Entry, FoundHosts, Verdicts, with_more
from scheduler_worker.core.host_map import HostMap, Uints, drawn, tie, ties
from scheduler_worker.core.rule import (
    PLAIN,
    Alternative,
    ClaimPart,
    HostFacts,
    OneHost,
    RuleError,
    Scope,
    View,
    Weigher,
)

# Section: sorts the hosts of one ranking, best first, page by page: only as many hosts as are read.
#
# A host with a changed weight is sorted in again; its earlier entries are outdated and skipped. If scores are
# equal, a hash of the host decides.


FIRST_PAGE = 64
GROWTH = 2  # each page has this many times the hosts of the page before
AHEAD = 8  # hosts of this many pages are separated from the rest at once, to search all hosts less often
ALIKE = 2  # hosts with equal scores extend a page to at most this many times its length
# Tiers: this scheduler's hosts, other schedulers' hosts, hosts without a heartbeat so far. A host is chosen
# only if no host of an earlier tier is left.
OUR_HOSTS, THEIR_HOSTS, UNKNOWN_HOSTS = range(3)
_NOBODY: Entry = (UNKNOWN_HOSTS + 1, 0.0, 0, 0, -1)  # sorts after all hosts


def best_value(worths: Floats, count: int) -> float:
    """Return the lowest score among the `count` hosts with the highest scores."""
    return float(np.partition(worths, worths.size - count)[worths.size - count])


class Frontier:
    """Sorts hosts by score and hash in pages, and only as many pages as are read."""

    def __init__(self, worth: Floats, among: Ints, ties: Callable[[Ints], Uints]) -> None:
        self._worth = worth
        self._near = among[:0]  # hosts that are better than all hosts in `_far`
        self._far = among
        self._ties = ties
        self._page = FIRST_PAGE

    def page(self) -> tuple[Ints, Uints]:
        """Return the next best hosts and the hashes that order equal scores; empty after the last page."""
        page, self._page = self._page, self._page * GROWTH
        if self._near.size < page and self._far.size:
            nearer, self._far = self._split(self._far, AHEAD * page)
            self._near = np.concatenate((self._near, nearer))
        taken, self._near = self._split(self._near, page)
        ties = self._ties(taken)
        order = np.lexsort((ties, -self._worth.take(taken)))
        return taken.take(order), ties.take(order)

    def _split(self, among: Ints, several: int) -> tuple[Ints, Ints]:
        if among.size <= ALIKE * several:
            return among, among[:0]
        # If `among` has all hosts, they are in the order of `_worth`.
        worths = self._worth if among.size == self._worth.size else self._worth.take(among)
        edge = best_value(worths, several)
        within = worths >= edge
        taken: Ints = among.compress(within)
        if taken.size <= ALIKE * several:
            return taken, among.compress(~within)
        # Of the hosts with exactly the lowest score, those with the lowest hashes are taken.
        better, alike = among.compress(worths > edge), among.compress(worths == edge)
        wanted = several - better.size
        if wanted < alike.size:
            alike = alike[np.argpartition(self._ties(alike), wanted)]
        best: Ints = np.concatenate((better, alike[:wanted]))
        return best, np.concatenate((alike[wanted:], among.compress(worths < edge)))


class HostOrder:
    """The hosts of one evaluation, sorted best first, as indices into the search's arrays."""

    def __init__(
        self, seed: str, hosts: HostMap, positions: Ints, worths: Floats, tiers: Ints | None, admitted: Ints
    ) -> None:
        self.admitted = admitted  # indices of the hosts that all filters on arrays accept
        # No bound method: it would make a reference cycle, which only the garbage collector frees.
        self.ties = partial(_ties_of, seed, hosts, positions)
        self.moved: dict[int, Entry] = {}  # index of a host whose place changed → its new place
        self._hosts = hosts
        self._positions = positions
        self._worths = worths
        self._tiers = tiers
        # Each tier is sorted alone: an offset for the tier in the score would lose small differences of
        # floats.
        slices = [admitted]
        if tiers is not None:
            slices = [admitted[tiers[admitted] == tier] for tier in range(UNKNOWN_HOSTS + 1)]
        self._orders = [(tier, Frontier(worths, indices, self.ties)) for tier, indices in enumerate(slices)]
        self._sorted: list[Entry] = []  # hosts sorted so far, by their scores before any choice
        self._of_cell: dict[int, list[Entry]] = {}  # the same hosts by number of the cell
        self._at = 0  # number of hosts in `_sorted` that were returned
        self._left: list[Entry] = []  # hosts that were evaluated but not chosen, the best last
        self._heap: list[Entry] = []  # a heap of chosen or released hosts, with their present scores

    def tier(self, index: int) -> int:
        return OUR_HOSTS if self._tiers is None else self._tiers.item(index)

    def pop(self, *, only_examined: bool = False) -> Entry | None:
        """Remove and return the best host. `only_examined`: of those that were returned or moved before."""
        while True:
            if self._at == len(self._sorted):
                self._turn_page()
            heap, front, left = self._heap, self._sorted, self._left
            first = front[self._at] if self._at < len(front) and not only_examined else _NOBODY
            if left and left[-1] < first and not (heap and heap[0] <= left[-1]):
                entry = left.pop()
            elif heap and heap[0] < first:
                entry = heappop(heap)
                while heap and heap[0] == entry:  # the same entry was pushed twice
                    heappop(heap)
                while left and left[-1] == entry:
                    left.pop()
            elif first is not _NOBODY:
                entry = first
                self._at += 1
            else:
                return None
            if self.moved.get(entry[-1], entry) == entry:
                return entry

    def pop_left(self, several: int) -> list[Entry]:
        """Remove and return the best `several` hosts that `leave` stored, best first. Return an empty list if
        a host that is not stored ranks at least as high as the lowest of them.
        """
        left, heap = self._left, self._heap
        if not left or (heap and heap[0] <= left[-several:][0]):
            return []
        best = left[: -several - 1 : -1]
        del left[-several:]
        return best

    def leave(self, entries: Sequence[Entry]) -> None:
        """Store hosts that were evaluated but not chosen. `pop_left` returns them without running filters
        again, until `evaluate_again` is called.
        """
        self._left += entries
        self._left.sort(reverse=True)

    def evaluate_again(self) -> None:
        """Let the filters run again on evaluated but unused hosts, because the hosts may have changed."""
        self.push(self._left)
        self._left.clear()

    def push(self, entries: Collection[Entry]) -> None:
        for entry in entries:
            heappush(self._heap, entry)

    def move(self, entry: Entry) -> None:
        self.moved[entry[-1]] = entry
        heappush(self._heap, entry)

    def of_cell(self, cell: str, beyond: int) -> list[Entry]:
        """Return the hosts of a cell that are sorted so far, by their scores before any choice. More hosts
        are sorted until there are `beyond` + 1, or the cell has no more.
        """
        number = self._hosts.number(cell)
        while len(self._of_cell.get(number, ())) <= beyond and self._turn_page():
            pass
        return self._of_cell.get(number, [])

    def _turn_page(self) -> bool:
        (tier, order), *later = self._orders
        indices, its_ties = order.page()
        if not indices.size and later:
            self._orders = later
            return self._turn_page()
        several, worths = len(indices), (-self._worths[indices]).tolist()
        columns = [tier] * several, worths, [0] * several, its_ties.tolist(), indices.tolist()
        entries = list(zip(*columns, strict=True))
        self._sorted += entries
        of_cell = self._of_cell
        cells = self._hosts.cell_at[self._positions[indices]].tolist()
        for cell, entry in zip(cells, entries, strict=True):
            if cell in of_cell:
                of_cell[cell].append(entry)
            else:
                of_cell[cell] = [entry]
        return bool(entries)


def tiers_of(positions: Ints, ours: Bools | None, unknown: Bools | None) -> Ints | None:
    """Return each host's tier: first the hosts that this scheduler prefers, last hosts of unknown health.
    None: all hosts are of one tier.
    """
    tiers: Ints | None = None
    if ours is not None:
        tiers = np.where(ours[positions], OUR_HOSTS, THEIR_HOSTS)
    if unknown is not None:
        known = OUR_HOSTS if tiers is None else tiers
        tiers = np.where(unknown[positions], UNKNOWN_HOSTS, known)
    return tiers


def _ties_of(seed: str, hosts: HostMap, positions: Ints, indices: Ints) -> Uints:
    return ties(seed, hosts.mixed.take(positions.take(indices)))


MOST_CORRECTED = 64  # hosts whose candidates are examined for one choice because their estimates are high
EMPTIEST = 64  # most hosts of a cell that are alternates in turn


@dataclass(eq=False)
class CapacityByHost:
    """Computes for each accepted host the number of further instances that it could take."""

    found: FoundHosts
    order: HostOrder

    @cached_property
    def _counted(self) -> list[tuple[Floats, float]]:
        shared = set[str]().union(*self.found.source.sharing.values())
        asked = self.found.alternative.asked.items()
        counted = [(name, float(amount)) for name, amount in asked if amount and name not in shared]
        return [(self.found.search.free(name), amount) for name, amount in counted]

    @cached_property
    def at_most(self) -> float:
        """Return an upper limit for the number of instances that fit on any single host."""
        return max(min([free.max(initial=0.0) // amount for free, amount in self._counted], default=inf), 0.0)

    def of(self, index: int) -> float:
        return min([free.item(index) // amount for free, amount in self._counted], default=inf)

    def most(self, cell: str) -> float:
        number = self.found.hosts.cells.get(cell)
        most = self._in_order.most
        return 0.0 if number is None or number >= len(most) else most[number]

    def emptiest(self, cell: str, least: float) -> list[int]:
        """Return up to 64 of a cell's emptiest hosts, in random order; each can take `least` instances."""
        positions, in_order = self._where_is(cell), self._in_order
        indices, capacities = in_order.indices[positions], in_order.capacities[positions]
        several = min(indices.size // 4 + 1, EMPTIEST)
        if indices.size > several:  # only the emptiest hosts must be sorted
            least = max(least, best_value(capacities, several))
        near = np.flatnonzero(capacities >= least)
        indices, capacities = indices.take(near), capacities.take(near)
        its_ties = self.order.ties(indices)
        if indices.size > several:
            first = np.lexsort((its_ties, -capacities))[:several]
            indices, its_ties = indices.take(first), its_ties.take(first)
        emptiest: list[int] = indices.take(np.argsort(its_ties)).tolist()
        return emptiest

    def _where_is(self, cell: str) -> slice:
        number, first_of = self.found.hosts.cells.get(cell), self._in_order.first_of
        if number is None or number + 1 >= len(first_of):
            return slice(0, 0)
        return slice(first_of[number], first_of[number + 1])

    @cached_property
    def _in_order(self) -> "_ByCell":
        positions, admitted, hosts = self.found.positions, self.order.admitted, self.found.hosts
        capacities: Floats = np.full(len(positions), np.inf)
        for free, amount in self._counted:
            np.minimum(capacities, free / amount, out=capacities)
        # Faster than //, with the same result for whole numbers below 2⁵³.
        np.floor(capacities, out=capacities)
        at: Ints = np.full(len(hosts.served), -1, np.intp)
        at[positions if len(admitted) == len(positions) else positions.take(admitted)] = admitted
        at = at.take(hosts.by_cell)
        found = np.flatnonzero(at >= 0)
        indices = at.take(found)
        capacities = capacities.take(indices)
        bounds = np.searchsorted(found, hosts.first_of_cell)
        with_hosts = np.flatnonzero(bounds[1:] > bounds[:-1])  # numbers of the cells that have hosts
        most = np.zeros(len(bounds))
        if with_hosts.size:
            most[with_hosts] = np.maximum.reduceat(capacities, bounds.take(with_hosts))
        return _ByCell(indices, capacities, bounds.tolist(), np.maximum(most, 0.0, out=most).tolist())


@dataclass(frozen=True, slots=True)
class _ByCell:
    """The accepted hosts grouped by cell, with the number of instances that each could take."""

    indices: Ints
    capacities: Floats
    first_of: list[int]  # by number of the cell: the index of its first host
    most: list[float]  # by number of the cell: how many instances its emptiest host could take


# Section: computes scores of hosts from their weighers' values, chooses a host for each instance, and records
# the choice so that it can be computed again.


Scales = Sequence[RecordedScale]

# A host that is an alternate of an instance counts less by this for each weigher of candidates, so that other
# instances get other alternates.
LESS = 0.05
Values = tuple[float, ...]  # one host's value of each weigher in `_scales_of`
RECORDED_REFUSED = 2  # better hosts in a record that were rejected
AVOIDED = "placement refused it a moment ago"


@dataclass(frozen=True, slots=True)
class Scale:
    """A weigher, with its lowest and highest value over all fitting hosts before the first choice."""

    weigher: Weigher
    values: Floats
    recorded: RecordedScale
    of_ways: bool = False  # whether it weighs candidates; then `values` are estimates

    def read(self, view: View, alternative: Alternative) -> float:
        value = float(self.weigher.value(view, alternative))
        return value if -MOST < value < MOST else float(_finite(np.array(value), self.recorded.lowest))


def _scales_of(found: FoundHosts) -> tuple[Scale, ...]:
    """Return each weigher that gives hosts different values, with its lowest and its highest value."""
    scales = []
    view = found.view
    for weigher in found.policy.weighers if found.positions.size else ():
        if not weigher.multiplier and isinstance(view.override(weigher.key, 0.0), float):
            continue
        if weigher.of_ways is not None:  # below
            continue
        values: Floats = np.asarray(weigher.value(view, found.alternative), np.float64)
        if values.ndim == 0:
            continue
        if len(values) != found.positions.size:
            why = ValueError(f"{len(values)} numbers for {found.positions.size} hosts")
            raise RuleError(f"the weigher {weigher.name}", why)
        least, highest = float(values.min()), float(values.max())
        if not -MOST < least <= highest < MOST:
            values = _finite(values, weigher.lowest or 0.0)
            least, highest = float(values.min()), float(values.max())
        lowest = least if weigher.lowest is None else weigher.lowest
        if least == highest or highest <= lowest:
            continue
        highest = max(highest, lowest + weigher.least_span)
        clamped = weigher.lowest is not None
        recorded = RecordedScale(weigher.name, weigher.multiplier, lowest, highest, clamped)
        scales.append(Scale(weigher, values, recorded))
    for weighed in found.way_values:
        recorded = RecordedScale(weighed.weigher.name, weighed.weigher.multiplier, 0.0, 1.0, False)
        scales.append(Scale(weighed.weigher, weighed.estimates, recorded, of_ways=True))
    return tuple(scales)


def _worths(scales: Sequence[Scale], found: FoundHosts) -> Floats:
    """Return the score of each host. With the setting `near`, nearly equal scores are rounded to equal."""
    count, near = found.positions.size, found.policy.near
    score, counts = np.zeros(count), np.empty(count)
    for scale in scales:
        values, lowest, highest = scale.values, scale.recorded.lowest, scale.recorded.highest
        if scale.recorded.clamped:
            values = np.maximum(values, lowest)
        if lowest:
            values = values - lowest
        np.divide(values, highest - lowest, out=counts)
        multiplier = found.view.override(scale.weigher.key, scale.weigher.multiplier)
        if scale.of_ways:
            multiplier = np.maximum(multiplier, 0.0)
        if np.ndim(multiplier) or multiplier != 1.0:
            counts *= multiplier
        score += counts
    return np.rint(score / near) if near else score


def _points(scales: Scales, values: Sequence[float], multipliers: Sequence[float]) -> list[float]:
    """Return each weigher's contribution to the score of one host."""
    return [
        (0.0 if scale.clamped and value < scale.lowest else value - scale.lowest)
        / (scale.highest - scale.lowest)
        * multiplier
        for scale, value, multiplier in zip(scales, values, multipliers, strict=True)
    ]


def _score(scales: Scales, values: Sequence[float], multipliers: Sequence[float], near: float) -> float:
    score = 0.0
    for counts in _points(scales, values, multipliers):
        score += counts
    return float(round(score / near)) if near else score


def _multipliers(scales: Scales, host: RecordedHost) -> list[float]:
    return [host.multipliers.get(scale.weigher, scale.multiplier) for scale in scales]


def scores(scales: Scales, host: RecordedHost) -> dict[str, float]:
    """Return each weigher's contribution to a host's score, by name, and their sum as `total`."""
    points = _points(scales, host.values, _multipliers(scales, host))
    by_weigher = {scale.weigher: round(counts, 6) for scale, counts in zip(scales, points, strict=True)}
    return {**by_weigher, "total": round(sum(points), 6)}


def _finite(values: Floats, unknown: float) -> Floats:
    return np.nan_to_num(values, nan=unknown, posinf=MOST, neginf=-MOST)


class Weights:
    """Computes the scores of all hosts of an evaluation; hosts with equal weigher values share one result."""

    def __init__(self, found: FoundHosts) -> None:
        self.found = found
        self._scales = scales = _scales_of(found)
        self.worths = _worths(scales, found)
        self.recorded = tuple([scale.recorded for scale in scales])
        self._overriding = any(found.view.now.limits(scale.weigher.key) for scale in scales)
        self._multipliers = [scale.weigher.multiplier for scale in scales]
        self._reads = [scale.weigher.value for scale in scales if not scale.of_ways]
        # whether candidates are weighed: the last scales are theirs, and scores before a choice are estimates
        self.weighs_ways = bool(found.way_values)
        self._multipliers_of_ways = [weighed.weigher.multiplier for weighed in found.way_values]
        self._one_more: float | None = None
        self._worth_of: dict[Values, float] = {}
        self._scores_of: dict[Values, dict[str, float]] = {}

    def at_first(self, index: int) -> Values:
        """Return each weigher's value for a host before any host of this evaluation was chosen."""
        return tuple([scale.values.item(index) for scale in self._scales])

    def read(self, index: int, facts: HostFacts) -> Values:
        """Return each weigher's value for a host with these facts, and for its candidates as of now."""
        view, alternative = OneHost(facts), self.found.alternative
        values = tuple([float(value(view, alternative)) for value in self._reads])
        if not sum(map(abs, values)) < MOST:  # not below the limit: a value may be infinite or unknown
            values = tuple([scale.read(view, alternative) for scale in self._scales if not scale.of_ways])
        return (*values, *self.found.values_of_best(index)) if self.weighs_ways else values

    def worth(self, facts: HostFacts, values: Values) -> float:
        near = self.found.policy.near
        if self._overriding:
            return _score(self.recorded, values, self._overridden(facts), near)
        known = self._worth_of.get(values)
        if known is None:
            known = self._worth_of[values] = _score(self.recorded, values, self._multipliers, near)
        return known

    def one_more(self, index: int) -> float:
        """Return how much one more instance lowers a host's score; computed once and used for all hosts."""
        if self._one_more is None:
            now = self.found.facts(index)
            then = with_more(now, self.found.alternative.asked, 1)
            self._one_more = self.worth(now, self.read(index, now)) - self.worth(then, self.read(index, then))
            self._one_more += sum(map(abs, self._multipliers_of_ways)) * LESS
        return self._one_more

    def _overridden(self, facts: HostFacts) -> list[float]:
        view = OneHost(facts)
        multipliers = [view.override(scale.weigher.key, scale.weigher.multiplier) for scale in self._scales]
        return [
            max(multiplier, 0.0) if scale.of_ways else multiplier
            for scale, multiplier in zip(self._scales, multipliers, strict=True)
        ]

    def overrides(self, index: int) -> dict[str, float]:
        """Return by weigher the multipliers of the host's aggregates, which override those of the
        settings.
        """
        if not self._overriding:
            return {}
        found = zip(self.recorded, self._overridden(self.found.facts(index)), strict=True)
        return {scale.weigher: number for scale, number in found if number != scale.multiplier}

    def scores(self, host: RecordedHost) -> dict[str, float]:
        """Return each weigher's contribution to a host's score, by name, and their sum as `total`. The caller
        must not change the returned mapping.
        """
        if host.multipliers:
            return scores(self.recorded, host)
        known = self._scores_of.get(host.values)
        if known is None:
            known = self._scores_of[host.values] = scores(self.recorded, host)
        return known


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of computing a recorded decision again: the chosen host, and all hosts sorted by score."""

    host: RecordedHost | None  # the chosen host; None: every recorded host was rejected
    order: tuple[RecordedHost, ...] = ()  # the accepted hosts, best first, before one is drawn at random


def replay(build: str, record: Record) -> Replayed:
    """Choose a build's host again from its decision record, to verify or explain the recorded choice."""

    def place(host: RecordedHost) -> tuple[int, float, int, int]:  # the same order as in `HostOrder`
        score = _score(record.scales, host.values, _multipliers(record.scales, host), record.near)
        return host.outside + host.unknown, -score, host.chosen, tie(record.seed, host.root)

    order = sorted((host for host in record.hosts if not host.refused), key=place)
    best = list(order)
    if best:
        best.insert(0, best.pop(drawn(record.seed, build, min(record.subset, len(best)))))
    left = (host for host in best if host.root not in record.turned_down)
    return Replayed(next(left, None), tuple(order))


class ChoiceRecorder:
    """Makes the decision record for each choice of an evaluation."""

    def __init__(self, seed: str, weights: Weights) -> None:
        self.values: dict[int, Values] = {}  # index of a host with a changed score → its present values
        self.hosts: dict[int, RecordedHost] = {}  # index of an accepted host → its part of the record
        self._seed = seed
        self._weights = weights
        self._passed_over: list[Entry] = []  # the best hosts that filters rejected

    def pass_over(self, entry: Entry) -> None:
        """Add to the decision record a rejected host that scored higher than the chosen host."""
        if entry[2] == 0 and len(self._passed_over) < RECORDED_REFUSED:
            self._passed_over.append(entry)

    def record(self, best: Sequence[Entry], avoided: Sequence[Entry]) -> Record:
        """Return the decision record of a choice: the best hosts with their weighers' values, and some better
        hosts with the reason why they were not chosen: a filter rejected them, or placement refused them
        before (`avoided`).
        """
        found = self._weights.found
        shown = [(entry, "") for entry in best]
        if avoided or self._passed_over or found.policy.subset > 1:
            shown += [(entry, AVOIDED) for entry in avoided[:RECORDED_REFUSED]]
            for entry in self._passed_over:
                if refusal := found.refused.get(entry[-1]):
                    shown.append((entry, f"{refusal[0].name}: {refusal[1]}"))
            shown.sort()
        return Record(
            flavor=found.alternative.alternative_index,
            seed=self._seed,
            near=found.policy.near,
            subset=found.policy.subset,
            scales=self._weights.recorded,
            hosts=tuple([self._recorded(*each) for each in shown]),
        )

    def _recorded(self, entry: Entry, refused: str) -> RecordedHost:
        index, weights = entry[-1], self._weights
        known = None if refused else self.hosts.get(index)
        if known is None:
            host = weights.found.host(index)
            known = RecordedHost(
                host.uuid,
                host.host,
                self.values.get(index) or weights.at_first(index),
                refused,
                weights.overrides(index),
                entry[2],
                entry[0] > OUR_HOSTS,
                entry[0] == UNKNOWN_HOSTS,
            )
            if not refused:
                self.hosts[index] = known
        return known


class CapacityReservation(Protocol):
    """Capacity of a chosen host that counts as used until placement's index shows the claim."""

    @property
    def allocations(self) -> Allocations: ...

    @property
    def root(self) -> str: ...


class HasReservations(Protocol):
    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        """Return the reservations for claims that placement has not answered yet."""

    def drawn_from(self, source: Id) -> Sequence[CapacityReservation]:
        """Return the unsettled reservations that were entered with this source (`Scope.source`)."""

    def enter(self, way: Candidate, scope: Scope = PLAIN) -> CapacityReservation:
        """Reserve the capacity of a candidate, except what the instance holds already (`scope.held`)."""

    def drop(self, reservation: CapacityReservation) -> None:
        """Release the capacity reserved for a claim that failed."""


class Pick(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The hosts chosen for one instance, best first. Capacity is reserved only on the first host."""

    choices: tuple[Candidate, ...]
    reservation: CapacityReservation
    considered: int
    removals: tuple[Removal, ...]
    record: Record
    scores: dict[str, float]  # score of the first host by weigher, and `total`
    notes: tuple[str, ...] = ()
    alternates: tuple[Candidate, ...] = ()
    crossed: bool = False  # whether the first host is preferred by another scheduler
    scope: Scope = PLAIN  # how the hosts of its order are chosen
    parts: tuple[ClaimPart, ...] = ()  # what features add to its claim

    @property
    def root(self) -> str:
        return self.choices[0].root

    def decision(self, root: str, refused: tuple[str, ...], asked: AlsoAsked | None = None) -> Decision:
        """Return the decision record for the claimed host, which may differ from the first choice."""
        record = self.record
        if root != self.root or asked is not None:
            better = takewhile(lambda way: way.root != root, self.choices)
            turned_down = tuple(dict.fromkeys(way.root for way in better))
            record = msgspec.structs.replace(record, turned_down=turned_down, asked=asked)
        return Decision(
            considered=self.considered,
            removals=self.removals,
            scores=self.scores if root == self.root else scores_of(record, root),
            refused=refused,
            notes=self.notes,
            record=record,
        )


def scores_of(record: Record, root: str) -> dict[str, float]:
    for host in record.hosts:
        if host.root == root and not host.refused:
            return scores(record.scales, host)
    return {}


TIGHT = 0.75  # alternates with less than this fraction of the largest capacity count as nearly full
_NOWHERE = (0, float("inf"), 0, 0, -1)
WAYS_OF_THE_NEXT = 4  # allocation candidates of each host in a claim, except the best host


class Ranking:
    """All hosts for equal requests, sorted by score; the caller must not await anything between choices."""

    def __init__(self, found: FoundHosts, reservations: HasReservations, seed: str) -> None:
        self.alternative = alternative = found.alternative
        self.found = found
        self._subset = found.policy.subset
        self._reservations = reservations
        liked = [trait for trait, weight in alternative.preferred.items() if weight > 0]
        missing = [trait for trait in liked if not np.any(found.view.has(trait))]
        notes = [f"preferred_traits: no host that fits has {trait}" for trait in missing]
        notes += [
            f"preferred_resources: no host that fits has {amount} {name} free"
            for name, (amount, weight) in alternative.preferred_amounts.items()
            if weight > 0 and not np.any(found.view.free(name) >= amount)
        ]
        self._notes = (*alternative.notes, *notes)
        self.verdicts = Verdicts(found, self._notes)
        self._weights = Weights(found)
        # A request that names its hosts is not restricted to this scheduler's preferred hosts.
        ours = None if alternative.question.roots else found.hosts.ours
        tiers = tiers_of(found.positions, ours, found.view.now.unknown)
        worths = self._weights.worths
        self._order = HostOrder(seed, found.hosts, found.positions, worths, tiers, found.passing)
        self._recorder = ChoiceRecorder(seed, self._weights)
        self.capacities = CapacityByHost(found, self._order)
        self._alternates: dict[str, AlternatesOfCell] = {}
        self.turns = 0  # counts the choices and releases of hosts
        self._corrections = 0  # of estimates, for the present choice
        self._exact: set[int] = set()  # indices of hosts whose scores are no estimates any more

    @property
    def worths(self) -> Floats:
        """Return the score of each found host before any choice."""
        return self._weights.worths

    def take(
        self,
        several: int = 1,
        most: int = 64,
        avoid: Collection[str] = (),
        draw: Callable[[int], int] | None = None,
        scope: Scope = PLAIN,
    ) -> Pick | None:
        """Reserve the best host, and return it with the next best hosts in case placement refuses it: at most
        `several` hosts, with at most `most` allocation candidates in total. Return None if no host fits.

        Hosts that require a provider in `avoid` are chosen only if no other host fits. With the setting
        `subset`, `draw(n)` returns the index of the host to choose among the n best. What the instance holds
        already (`scope.held`) is not reserved again.
        """
        subset, found, order = self._subset, self.found, self._order
        self._corrections = 0
        wanted = max(several, subset)
        best = [] if avoid or found.keeps_together is not None else order.pop_left(wanted)
        avoided: list[Entry] = []
        while len(best) < wanted and (entry := self._next()) is not None:
            (avoided if avoid and not found.ways(entry[-1], 1, avoid) else best).append(entry)
        best.sort()  # a candidate can be worth more than the estimate
        if late := bool(avoided and not best):
            best, avoided = avoided, []
        if not best:
            return None
        if draw is not None and subset > 1 and len(best) > 1:
            best.insert(0, best.pop(draw(min(subset, len(best)))))
        winner = best[0][-1]
        choices: list[Candidate] = []
        shunned = () if late else avoid
        lone_ways: Mapping[int, tuple[Candidate, ...]] = {} if shunned else found.lone_ways
        for entry in best[:several]:
            ways = lone_ways.get(entry[-1])
            if ways is None:
                enough = WAYS_OF_THE_NEXT if choices else WAYS_OF_THE_BEST
                ways = found.ways(entry[-1], enough, shunned)
            choices += ways
        record, removals = self._recorder.record(best, avoided), self.verdicts.removals()
        order.leave([*best[1:], *avoided])
        pick = Pick(
            crossed=order.tier(winner) == THEIR_HOSTS,
            choices=tuple(choices[:most]),
            reservation=self._reservations.enter(choices[0], scope),
            scope=scope,
            considered=found.search.considered,
            removals=removals,
            record=record,
            scores=self._weights.scores(self._recorder.hosts[winner]),
            notes=self._notes,
        )
        found.chosen[winner] = found.chosen.get(winner, 0) + 1
        self._changed(winner, best[0][3], choices[0])
        return pick

    def put_back(self, picks: Collection[Pick]) -> None:
        """Release the reservations of chosen hosts, which then can be chosen again."""
        found, order = self.found, self._order
        for pick in picks:
            self._reservations.drop(pick.reservation)
        for pick in picks:
            index = found.index(pick.root)
            found.chosen[index] -= 1
            found.full.pop(index, None)
            self._changed(index, order.moved[index][3], pick.choices[0])
        order.push(found.full.values())
        found.full.clear()
        order.evaluate_again()

    def alternates(
        self, cell: str, several: int, excluding: Collection[str], avoid: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """Return the next best hosts of a cell as alternates of one instance. Hosts returned before rank
        lower, so that instances get different alternates.
        """
        if not several:
            return ()
        alternates = self._alternates.get(cell)
        if alternates is None:
            alternates = AlternatesOfCell(cell, self.found, self._order, self.capacities, self._weights)
            self._alternates[cell] = alternates
        return alternates.take(several, excluding, avoid)

    def _next(self) -> Entry | None:
        found, pop = self.found, self._next_in_order
        admitted, lone_ways, keeps_together = found.admitted, found.lone_ways, found.keeps_together
        while (entry := pop()) is not None:
            index = entry[-1]
            fits = index in admitted or found.admits(index)
            if not fits or (keeps_together is not None and found.fits_too_few(index)):
                self._recorder.pass_over(entry)
            elif index in lone_ways or found.ways(index, 1):
                # the score of a host with one candidate is exact
                if not self._weights.weighs_ways or index in lone_ways or index in self._exact:
                    return entry
                if not self._corrected(entry):
                    return entry
            else:
                found.full[index] = entry
        return None

    def _next_in_order(self) -> Entry | None:
        """Return the next best host. If many estimates were too high, return the best of the corrected hosts:
        it may be worse than others that were not corrected.
        """
        if self._corrections >= MOST_CORRECTED:
            entry = self._order.pop(only_examined=True)
            if entry is not None:
                return entry
        return self._order.pop()

    def _corrected(self, entry: Entry) -> bool:
        """Compute a host's score from its best candidate; return whether it differs from the estimate. Then
        the host was sorted in again.
        """
        index = entry[-1]
        self._corrections += 1
        self._exact.add(index)
        facts = self.found.facts(index)
        values = self._recorder.values[index] = self._weights.read(index, facts)
        now = (entry[0], -self._weights.worth(facts, values), *entry[2:])
        if now == entry:
            return False
        self._recorder.hosts.pop(index, None)
        self._order.move(now)
        return True

    def _changed(self, index: int, its_tie: int, way: Candidate) -> None:
        """Compute a host's score again after the allocations `way` were reserved or released there, and
        correct the host's place in the ranking. `its_tie` is the hash that orders equal scores.
        """
        self.turns += 1
        found, order, recorder = self.found, self._order, self._recorder
        found.forget(index)
        if len(way.allocations) > 1 or way.root not in way.allocations:
            found.forget_trees()
            order.evaluate_again()
        recorder.hosts.pop(index, None)
        self._exact.add(index)
        facts, weights = found.read_again(index), self._weights
        values = recorder.values[index] = weights.read(index, facts)
        score = weights.worth(facts, values)
        order.move((order.tier(index), -score, found.chosen[index], its_tie, index))
        alternates = self._alternates.get(way.cell)
        if alternates is not None:
            alternates.moved(index)


class AlternatesOfCell:
    """Selects alternates for builds of one cell, from one evaluation. No capacity is reserved for them.

    The next best hosts are selected; each selected host then ranks as if it were fuller. If weighers prefer
    full hosts, an alternate can be full before it is needed, and a cell cannot request more alternates. So if
    an instance gets two or more alternates, nearly full hosts are replaced by some of the emptiest hosts of
    the cell.
    """

    def __init__(
        self, cell: str, found: FoundHosts, order: HostOrder, capacities: CapacityByHost, weights: Weights
    ) -> None:
        self._found = found
        self._order = order
        self._capacities = capacities
        self._weights = weights
        self._cell = cell
        self._sorted: list[Entry] = []  # the hosts of the cell, sorted by their scores before any choice
        self._at = 0
        self._heap: list[Entry] = []
        self._named: dict[int, int] = {}
        self._fuller: dict[int, Entry] = {}  # index of an alternate → its present place in the order
        self._asked = found.alternative.asked
        self._enough: float | None = None  # least capacity that is not nearly full; None: not computed yet
        self._roomy: deque[int] | None = None  # the emptiest hosts, in rotation; None: not computed yet

    def take(self, several: int, excluding: Collection[str], avoid: Collection[str]) -> tuple[Candidate, ...]:
        found: list[Entry] = []
        alternates: list[Candidate] = []
        passed_over: list[Entry] = []
        while len(found) < several and (entry := self._next()) is not None:
            index = entry[-1]
            way = self._found.way(index)
            if way is None:
                continue
            if way.root in excluding or (avoid and (way := self._found.way(index, avoid)) is None):
                passed_over.append(entry)
            else:
                found.append(entry)
                alternates.append(way)
        roomy: list[Candidate] = []
        taken = {way.root for way in alternates}.union(excluding)
        complete = several > 1 and len(found) == several
        while complete and found and not self._is_empty_enough(found[-1][-1]):
            way = self._next_emptiest(taken, avoid)
            if way is None:
                break
            roomy.append(way)
            taken.add(way.root)
            passed_over.append(found.pop())
            alternates.pop()
        for entry in passed_over:
            heappush(self._heap, entry)
        for entry, way in zip(found, alternates, strict=True):
            self._name(entry, way)
        return (*alternates, *roomy)

    def _is_empty_enough(self, index: int) -> bool:
        capacities = self._capacities
        has = capacities.of(index)
        if self._enough is None:
            if has >= TIGHT * capacities.at_most:
                return True
            self._enough = TIGHT * capacities.most(self._cell)
        return has >= self._enough

    def _next_emptiest(self, taken: Collection[str], avoid: Collection[str]) -> Candidate | None:
        """Return one of the emptiest hosts as an alternate, except hosts in `taken` (root ids), with none of
        the providers in `avoid`; None if no host fits. Successive calls return different hosts.
        """
        if self._roomy is None:
            assert self._enough is not None  # the caller has computed it
            self._roomy = deque(self._capacities.emptiest(self._cell, self._enough))
        for _ in range(len(self._roomy)):
            index = self._roomy.popleft()
            way = self._found.way(index)
            if way is None:
                continue  # the host is full now, or a filter rejects it
            self._roomy.append(index)
            if way.root not in taken and (way := self._found.way(index, avoid)):
                return way
        return None

    def moved(self, index: int) -> None:
        """Sort a host among the possible alternates again after it received or lost a build."""
        now = self._order.moved[index]
        named = self._named.get(index)
        if named:
            less = named * self._weights.one_more(index)
            now = self._fuller[index] = (now[0], now[1] + less, now[2] + named, now[3], index)
        heappush(self._heap, now)

    def _next(self) -> Entry | None:
        while True:
            if self._at == len(self._sorted):
                self._sorted = self._order.of_cell(self._cell, self._at)
            heap, front = self._heap, self._sorted
            if heap and (self._at == len(front) or heap[0] <= front[self._at]):
                entry = heappop(heap)
                while heap and heap[0] == entry:
                    heappop(heap)
            elif self._at < len(front):
                entry = front[self._at]
                self._at += 1
            else:
                return None
            now = self._fuller.get(entry[-1]) or self._order.moved.get(entry[-1], entry)
            if now == entry:
                return entry

    def _name(self, entry: Entry, way: Candidate) -> None:
        """Rank a host that became an alternate as if it had one more instance, so that not too many builds
        get the same alternate.
        """
        outside, worth, chosen, its_tie, index = entry
        self._named[index] = named = self._named.get(index, 0) + 1
        free = way.free
        for name, amount in self._asked.items():
            if name in free and free[name] < (named + 1) * amount:
                self._fuller[index] = _NOWHERE
                return
        one_more = self._weights.one_more(index)
        self._fuller[index] = entry = (outside, worth + one_more, chosen + 1, its_tie, index)
        heappush(self._heap, entry)
