"""Sorts all hosts once for equal requests, and chooses the best hosts one after another.

A chosen host is reserved immediately, and sorted again by its remaining capacity.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import takewhile
from math import inf
from typing import Protocol

import msgspec
import numpy as np

from bus.candidates import Floats, Ints
from bus.decisions import AlsoAsked, Decision, Record, Removal
from bus.queries import Candidate
from bus.vocabulary import Allocations, Id
from scheduler_worker.core.fitting import WAYS_OF_THE_BEST, Entry, FoundHosts
from scheduler_worker.core.host_order import THEIR_HOSTS, HostOrder, best_value, tiers_of
from scheduler_worker.core.rule import PLAIN, ClaimPart, Scope
from scheduler_worker.core.scores import ChoiceRecorder, Weights, scores
from scheduler_worker.core.shortage import Verdicts

MOST_CORRECTED = 64  # hosts whose candidates are examined for one choice because their estimates are high
EMPTIEST = 64  # most hosts of a cell that are alternates in turn


@dataclass(eq=False)
class CapacityByHost:
    """Computes for each accepted host the number of further instances that it could take."""

    found: FoundHosts
    order: HostOrder

    @cached_property
    def _counted(self) -> list[tuple[Floats, float]]:
        """Return the free amounts and the asked amount of each class that hosts do not share."""
        shared = set[str]().union(*self.found.source.sharing.values())
        asked = self.found.alternative.asked.items()
        counted = [(name, float(amount)) for name, amount in asked if amount and name not in shared]
        return [(self.found.search.free(name), amount) for name, amount in counted]

    @cached_property
    def at_most(self) -> float:
        """Return an upper limit for the number of instances that fit on any single host."""
        return max(min([free.max(initial=0.0) // amount for free, amount in self._counted], default=inf), 0.0)

    def of(self, index: int) -> float:
        """Return how many instances of the class fit on the host."""
        return min([free.item(index) // amount for free, amount in self._counted], default=inf)

    def most(self, cell: str) -> float:
        """Return how many instances fit on the host of the cell with most free capacity."""
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
        """Return where the hosts of a cell are in the arrays by cell."""
        number, first_of = self.found.hosts.cells.get(cell), self._in_order.first_of
        if number is None or number + 1 >= len(first_of):
            return slice(0, 0)
        return slice(first_of[number], first_of[number + 1])

    @cached_property
    def _in_order(self) -> "_ByCell":
        """Sort the admitted hosts by cell, with how many instances fit on each."""
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


class CapacityReservation(Protocol):
    """Capacity of a chosen host that counts as used until placement's index shows the claim."""

    @property
    def allocations(self) -> Allocations:
        """The reserved amounts."""

    @property
    def root(self) -> str:
        """The root of the host."""


class HasReservations(Protocol):
    """Reserves the capacity of chosen hosts, until their claims are visible or have failed."""

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
    """Return the weighted scores of a host in a recorded decision; empty if it was rejected or
    not recorded.
    """
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
        """Return the best host that is left and fits, or None."""
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
        if self.turns == 1 and weights.weighs_ways:
            for weighed in found.way_values:
                weighed.expect(order.foremost)
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
        """Return the next best hosts, at most `several`, without those in `excluding` and without use of what
        is in `avoid`.
        """
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
        """Return whether a host has enough free capacity in comparison with the emptiest one to be an
        alternate.
        """
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
