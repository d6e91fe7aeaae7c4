"""One evaluation of all hosts for equal requests, from which hosts are handed out best first.

A host that is handed out is reserved immediately, weighed again with its remaining capacity, and sorted in
again. So each choice is the best at its moment, on the scales of the beginning.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

import numpy as np

from bus.candidates import Bools, CandidateSearch, Floats, Ints, PlacedHost
from bus.decisions import NearMiss, Record, RecordedHost, Removal
from bus.queries import Candidate
from scheduler_worker.core.alternates import AlternatesOfRanking
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.capacities import CapacityByHost
from scheduler_worker.core.choice import HasReservations, Pick
from scheduler_worker.core.fitting import rules_for
from scheduler_worker.core.found_hosts import FoundHosts
from scheduler_worker.core.frontier import Frontier
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.one_host import all_of_them, with_more
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rejections import Mask, Refusal, Verdicts
from scheduler_worker.core.rules.neighbours import AFFINITY
from scheduler_worker.core.shortage import Shortage, lacking_reserved, named_reserved
from scheduler_worker.core.tie_break import Uints, ties
from scheduler_worker.core.view import AllHosts, HostsNow
from scheduler_worker.core.weights import Weights

WAYS_OF_THE_BEST = 16  # of a tree, how many are named in one claim
WAYS_OF_THE_NEXT = 4  # for each of the following hosts
ALL_WAYS = 2048  # allocation candidates examined if some providers are to be avoided
NEAREST_BEYOND = 16  # near misses asked of placement: rules leave some out
RECORDED_REFUSED = 2  # rejected hosts in the record that would have been better

AVOIDED = "placement refused it a moment ago"
# Hosts of a later tier are chosen only if no host of an earlier tier is left.
OUR_HOSTS, THEIR_HOSTS, UNKNOWN_HOSTS = range(3)  # of other schedulers' shares; without a heartbeat so far
Entry = tuple[int, float, int, int, int]  # least first: tier, −worth, how often chosen, tie, index
_NOBODY: Entry = (UNKNOWN_HOSTS + 1, 0.0, 0, 0, -1)  # after everybody


def _missing_preferred(alternative: Alternative, view: AllHosts) -> list[str]:
    """Return a note for each preferred trait that no host with free capacity has."""
    return [
        f"preferred_traits: no host that fits has {trait}"
        for trait, weight in alternative.preferred.items()
        if weight > 0 and not np.any(view.has(trait))
    ]


class Ranking:
    """Hosts are known by their index into the arrays of the search. Nothing may be awaited meanwhile."""

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        hosts: HostMap,
        policy: ChoicePolicy,
        promises: HasReservations,
        seed: str,
    ) -> None:
        self.alternative = alternative
        self._search = search
        self._now = now
        self._hosts = hosts
        self._policy = policy
        self._promises = promises
        self._seed = seed
        self._positions = search.positions
        self._found = FoundHosts(search, now, hosts)
        # Bound methods are not passed on: a reference cycle would wait for the garbage collector.
        self._ties = partial(_ties_of, seed, hosts, self._positions)
        self._view = AllHosts(search, now)
        self._notes = (
            (*alternative.notes, *_missing_preferred(alternative, self._view))
            if alternative.preferred
            else alternative.notes
        )
        self._rules = rules_for(alternative, policy)
        self._lazy = [rule for rule in self._rules if rule.admits is None]
        keeps = (rule for rule in self._rules if rule.name == AFFINITY and alternative.together is not None)
        self._keeps_together = next(keeps, None)
        self._masks: list[Mask] = []
        served = hosts.served.take(self._positions)
        admitted = self._admitted(served)
        self._verdicts = Verdicts(
            alternative,
            served,
            self._masks,
            self._lazy if self._keeps_together is None else [*self._lazy, self._keeps_together],
            self._rules,
            self._found,
        )
        count = len(self._positions)
        self._weights = Weights(alternative, self._view, now, policy, count)
        self._worths = self._weights.worths
        self._tiers = self._preferred()
        self._admitted_first = admitted
        # Tiers are evaluated one by one. Adding an offset to the weights would lose small differences of
        # floats.
        slices = (
            [admitted]
            if self._tiers is None
            else [admitted[self._tiers[admitted] == tier] for tier in range(UNKNOWN_HOSTS + 1)]
        )
        self._orders = [
            (tier, Frontier(self._worths, those, self._ties)) for tier, those in enumerate(slices)
        ]
        self._sorted: list[Entry] = []  # the hosts of the beginning that have been sorted so far
        self._of_cell: dict[int, list[Entry]] = {}  # the same by cell
        self._at = 0  # so far they were handed out
        self._left: list[Entry] = []  # hosts that were evaluated and not chosen, the last first
        self._heap: list[Entry] = []  # hosts that were handed out or released, with their present weight
        self.moved: dict[int, Entry] = {}  # hosts whose place has changed since the beginning
        self._chosen: dict[int, int] = {}
        self._turns = 0
        self._refused: dict[int, Refusal] = {}  # by a rule, when it was their turn
        self._admits_now: set[int] = set()
        self._passed_over: list[Entry] = []  # the best of them
        self._full: dict[int, Entry] = {}  # hosts without capacity
        self._values: dict[int, tuple[float, ...]] = {}  # values of hosts that moved
        self._recorded: dict[int, RecordedHost] = {}  # as admitted
        self._lone_ways: dict[int, tuple[Candidate, ...]] = {}
        self._tree_ways: dict[int, tuple[Candidate, ...]] = {}
        self._spares: dict[str, AlternatesOfRanking] = {}
        self._one_more: float | None = None
        self._rooms: CapacityByHost | None = None
        self._beforehand: tuple[Removal, ...] | None = None  # what placement's constraints removed
        self._counted: set[int] = set()  # so they are not removed once more by ours
        self._removals: tuple[tuple[int, int], tuple[Removal, ...]] | None = None

    # Handing out

    def take(
        self,
        several: int = 1,
        most: int = 64,
        avoid: Collection[str] = (),
        draw: Callable[[int], int] | None = None,
    ) -> Pick | None:
        """The best host, from now on counted as used, and the next best should it be refused.

        Hosts that cannot be used without a provider to avoid come only when there is no other.
        """
        subset = self._policy.subset
        wanted = max(several, subset)
        best = [] if avoid else self._left_again(wanted)
        avoided: list[Entry] = []
        while len(best) < wanted and (entry := self._next()) is not None:
            (avoided if avoid and not self.ways(entry[-1], 1, avoid) else best).append(entry)
        late = bool(avoided and not best)
        if late:
            best, avoided = avoided, []
        if not best:
            return None
        if draw is not None and subset > 1 and len(best) > 1:
            best.insert(0, best.pop(draw(min(subset, len(best)))))
        winner = best[0][-1]
        choices: list[Candidate] = []
        shunned = () if late else avoid
        lone_ways: Mapping[int, tuple[Candidate, ...]] = {} if shunned else self._lone_ways
        for entry in best[:several]:
            ways = lone_ways.get(entry[-1])
            if ways is None:
                enough = WAYS_OF_THE_NEXT if choices else WAYS_OF_THE_BEST
                ways = self.ways(entry[-1], enough, shunned)
            choices += ways
        record, removals = self._record(best, avoided), self.removals()
        self._left += best[1:]
        self._left += avoided
        self._left.sort(reverse=True)
        pick = Pick(
            crossed=self._tier(winner) == THEIR_HOSTS,
            choices=tuple(choices[:most]),
            promise=self._promises.enter(choices[0]),
            considered=self._search.considered,
            removals=removals,
            record=record,
            scores=self._weights.scores(self._recorded[winner]),
            notes=self._notes,
        )
        self._chosen[winner] = self._chosen.get(winner, 0) + 1
        self._changed(winner, best[0][3], choices[0])
        return pick

    def put_back(self, picks: Collection[Pick]) -> None:
        """Release the picks as if they had never been chosen."""
        for pick in picks:
            self._promises.drop(pick.promise)
        for pick in picks:
            index = self._found.index(pick.root)
            self._chosen[index] -= 1
            self._full.pop(index, None)
            self._changed(index, self.moved[index][3], pick.choices[0])
        full, self._full = self._full, {}
        for entry in full.values():
            heappush(self._heap, entry)
        self._look_again()

    def spares(
        self, cell: str, several: int, beside: Collection[str], avoid: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """The next best hosts of a cell, without some roots. One named here counts as fuller for the next."""
        if not several:
            return ()
        spares = self._spares.get(cell)
        if spares is None:
            spares = self._spares[cell] = AlternatesOfRanking(cell, self.alternative.asked)
        return spares.take(self, several, beside, avoid)

    def admitted(self, beyond: int = -1) -> Sequence[int]:
        """Return the positions after `beyond` that no mask excludes; for provider trees as far as arrays can
        decide.
        """
        first = np.searchsorted(self._positions[self._admitted_first], beyond, side="right")
        indices: list[int] = self._admitted_first[first:].tolist()
        return indices

    def fits(self, index: int) -> bool:
        """Would it do, when it comes to it?"""
        return self.admits(index) and bool(self.ways(index, 1))

    def position(self, index: int) -> int:
        return self._positions.item(index)

    def host(self, index: int) -> PlacedHost:
        return self._found.host(index)

    def free(self, resource_class: str) -> Floats:
        """Return the free amount of the class in each tree."""
        return self._search.free(resource_class)

    def removals(self) -> tuple[Removal, ...]:
        """Return placement's constraints with the hosts they rejected, then the filters, as far as they were
        evaluated.
        """
        state = len(self._refused), len(self._full)
        if self._removals is None or self._removals[0] != state:
            if self._beforehand is None:
                self._beforehand = tuple(
                    [named_reserved(self.alternative, removal) for removal in self._search.removals()]
                )
                self._counted = self._gone_since(self._beforehand)
            refused, full, counted = self._refused, self._full, self._counted
            if counted:
                refused = {index: why for index, why in refused.items() if index not in counted}
                full = {index: entry for index, entry in full.items() if index not in counted}
            ours = self._verdicts.removals(refused, full, len(self._positions) - len(counted))
            self._removals = state, (*self._beforehand, *ours)
        return self._removals[1]

    def _gone_since(self, removals: Sequence[Removal]) -> set[int]:
        """Return hosts that fitted at the search and that placement's constraints reject by now."""
        left = removals[-1].left if removals else self._search.considered
        if left >= len(self._positions):
            return set()
        refused = (index for index in self._refused if index in self._chosen)
        return {*self._full, *(index for index in refused if not self.ways(index, 1))}

    @property
    def state(self) -> Hashable:
        """Another whenever something was handed out, or put back."""
        return self._turns

    def shortage(self) -> Shortage:
        """Return why no host is left."""
        self._beforehand = self._removals = None
        return Shortage(
            considered=self._search.considered,
            removals=self.removals(),
            nearest=self._nearest(),
            named=bool(self.alternative.pinned),
            may_pass=self._verdicts.may_pass(self._refused),
            alternative_index=self.alternative.alternative_index,
            notes=self._notes,
        )

    def _nearest(self) -> tuple[NearMiss, ...]:
        beyond = self._search.nearest(self.alternative.pinned, NEAREST_BEYOND)
        source = self._now.source
        reserved = [lacking_reserved(self.alternative, miss, source.named(miss.host)) for miss in beyond]
        return self._verdicts.nearest(self._refused, self._full, reserved)

    # The order

    def _admitted(self, served: Bools) -> Ints:
        """Return the hosts that pass all filters that evaluate arrays."""
        admitted = served.copy()
        for rule in self._rules:
            if rule.admits is not None:
                mask = rule.admits(self._view, self.alternative)
                if np.ndim(mask) == 0:
                    if mask:  # no host is rejected
                        continue
                    mask = np.broadcast_to(np.bool_(mask), len(self._positions))
                self._masks.append((rule, mask))
                admitted &= mask
        return np.flatnonzero(admitted)

    def _preferred(self) -> Ints | None:
        """Return the tier of each host, or None if all hosts are in one tier. Slices of schedulers do not
        apply to a request that names its hosts.
        """
        ours, unknown = self._hosts.ours, self._now.unknown
        tiers: Ints | None = None
        if ours is not None and not self.alternative.question.roots:
            tiers = np.where(ours[self._positions], OUR_HOSTS, THEIR_HOSTS)
        if unknown is not None:
            known = OUR_HOSTS if tiers is None else tiers
            tiers = np.where(unknown[self._positions], UNKNOWN_HOSTS, known)
        return tiers

    def _tier(self, index: int) -> int:
        return OUR_HOSTS if self._tiers is None else self._tiers.item(index)

    def _left_again(self, several: int) -> list[Entry]:
        """Return hosts that were evaluated and not chosen, if enough of them are still the best."""
        left, heap = self._left, self._heap
        if not left or self._keeps_together is not None or (heap and heap[0] <= left[-several:][0]):
            return []
        best = left[: -several - 1 : -1]
        del left[-several:]
        return best

    def _look_again(self) -> None:
        """Evaluate again the hosts that were not chosen: they may have changed."""
        for entry in self._left:
            heappush(self._heap, entry)
        self._left.clear()

    def _next(self) -> Entry | None:
        """The best there is room at that no rule refuses; it is taken out of the order."""
        while True:
            if self._at == len(self._sorted):
                self._turn_page()
            heap, front, left = self._heap, self._sorted, self._left
            first = front[self._at] if self._at < len(front) else _NOBODY
            if left and left[-1] < first and not (heap and heap[0] <= left[-1]):
                entry = left.pop()
            elif heap and heap[0] < first:
                entry = heappop(heap)
                while heap and heap[0] == entry:  # it came back to where it had been
                    heappop(heap)
                while left and left[-1] == entry:
                    left.pop()
            elif first is not _NOBODY:
                entry = first
                self._at += 1
            else:
                return None
            index = entry[-1]
            if self.moved.get(index, entry) != entry:
                continue
            admits = index in self._admits_now or self.admits(index)
            if not admits or (self._keeps_together is not None and self._parts(index)):
                if entry[2] == 0 and len(self._passed_over) < RECORDED_REFUSED:
                    self._passed_over.append(entry)
            elif index in self._lone_ways or self.ways(index, 1):
                return entry
            else:
                self._full[index] = entry

    def _turn_page(self) -> bool:
        """Sort the next page of hosts and return whether there is one."""
        (tier, order), *others = self._orders
        indices, its_ties = order.page()
        if not indices.size and others:
            self._orders = others
            return self._turn_page()
        entries = self._entries(tier, indices, its_ties)
        self._sorted += entries
        of_cell = self._of_cell
        cells = self._hosts.cell_at[self._positions[indices]].tolist()
        for cell, entry in zip(cells, entries, strict=True):
            if cell in of_cell:
                of_cell[cell].append(entry)
            else:
                of_cell[cell] = [entry]
        return bool(entries)

    def of_cell(self, cell: str, beyond: int) -> list[Entry]:
        """More than so many of a cell's hosts in the order of the beginning, or all of them."""
        number = self._hosts.number(cell)
        while len(self._of_cell.get(number, ())) <= beyond and self._turn_page():
            pass
        return self._of_cell.get(number, [])

    def _entries(self, tier: int, indices: Ints, its_ties: Uints) -> list[Entry]:
        worths = (-self._worths[indices]).tolist()
        every = indices.tolist()
        several = len(every)
        return list(zip([tier] * several, worths, [0] * several, its_ties.tolist(), every, strict=True))

    def admits(self, index: int) -> bool:
        """Does every rule admit it? Asked once, until it changes."""
        if index in self._refused:
            return False
        if index in self._admits_now:
            return True
        # Filters that evaluate arrays must be applied again to chosen hosts.
        rules = self._rules if index in self._chosen else self._lazy
        if rules:
            facts = self._found.facts(index)
            for rule in rules:
                why = rule.refuses(facts, self.alternative)
                if why is not None:
                    self._refused[index] = rule, why
                    return False
        self._admits_now.add(index)
        return True

    def _parts(self, index: int) -> bool:
        """Return whether the host has capacity for some instances of an affinity group, but not for all."""
        keeps = self._keeps_together
        if keeps is None or not self.ways(index, 1):
            return False
        refusal = all_of_them(
            self.alternative,
            self._rules,
            keeps,
            self._now.source,
            self._found.facts(index),
            lambda: self.look(index, 1),
        )
        if refusal is not None:
            self._refused[index] = refusal
        return refusal is not None

    def _changed(self, index: int, its_tie: int, way: Candidate) -> None:
        """Weigh a host again that was chosen or released, and sort it in."""
        self._turns += 1
        self._lone_ways.pop(index, None)
        self._tree_ways.pop(index, None)
        if len(way.allocations) > 1 or way.root not in way.allocations:
            self._tree_ways.clear()
            self._look_again()
        self._recorded.pop(index, None)
        self._refused.pop(index, None)
        self._admits_now.discard(index)
        facts, weights = self._found.read_again(index), self._weights
        values = self._values[index] = weights.read(facts)
        score, tier = weights.worth(facts, values), self._tier(index)
        self.moved[index] = entry = tier, -score, self._chosen[index], its_tie, index
        heappush(self._heap, entry)
        spares = self._spares.get(way.cell)
        if spares is not None:
            spares.moved(self, index)

    def one_more(self, index: int) -> float:
        """Return how much less a host weighs after one more instance of the request; about equal for all
        hosts.
        """
        if self._one_more is None:
            self._one_more = self._weighed_with_one_more(index)
        return self._one_more

    def _weighed_with_one_more(self, index: int) -> float:
        now, weights = self._found.facts(index), self._weights
        then = with_more(now, self.alternative.asked, 1)
        return weights.worth(now, weights.read(now)) - weights.worth(then, weights.read(then))

    @property
    def capacities(self) -> CapacityByHost:
        if self._rooms is None:
            shared = set[str]().union(*self._now.source.sharing.values())
            self._rooms = CapacityByHost(
                self.alternative, self._search, shared, self._hosts, self._admitted_first, self._ties
            )
        return self._rooms

    # One host

    def way(self, index: int, avoid: Collection[str] = ()) -> Candidate | None:
        """Return the first allocation candidate of the host, or None if a filter rejects the host."""
        if index not in self._admits_now and not self.admits(index):
            return None
        ways = self._lone_ways.get(index)
        if ways is None or avoid:
            ways = self.ways(index, 1, avoid)
        return ways[0] if ways else None

    def ways(self, index: int, most: int, avoid: Collection[str] = ()) -> tuple[Candidate, ...]:
        """Return the allocation candidates of the host that fit now, without providers to avoid."""
        ways = self._lone_ways.get(index)
        if ways is not None and not avoid:
            return ways
        ways = ways or self._tree_ways.get(index)
        if ways is None:
            ways = self.look(index, WAYS_OF_THE_BEST)
            lone = len(ways) == 1 and len(ways[0].allocations) == 1 and ways[0].root in ways[0].allocations
            if ways:
                (self._lone_ways if lone else self._tree_ways)[index] = ways
        if avoid and any(not way.allocations.keys().isdisjoint(avoid) for way in ways):
            if len(ways) == WAYS_OF_THE_BEST:
                ways = self.look(index, ALL_WAYS)
            ways = tuple([way for way in ways if way.allocations.keys().isdisjoint(avoid)])
        return ways[:most]

    def look(self, index: int, most: int) -> tuple[Candidate, ...]:
        """The ways there are at this moment, whatever was found before."""
        return tuple(self._search.ways(self._positions.item(index), most))

    # The record

    def _record(self, best: Sequence[Entry], avoided: Sequence[Entry]) -> Record:
        """Return the record of the evaluated hosts, best first, with the values of each."""
        if avoided or self._passed_over or self._policy.subset > 1:
            looked_at = self._with_refused(best, avoided)
            hosts = [self._recorded_host(entry, refused) for entry, refused in looked_at]
        else:
            hosts = [self._recorded.get(entry[-1]) or self._recorded_host(entry) for entry in best]
        return Record(
            flavor=self.alternative.alternative_index,
            seed=self._seed,
            near=self._policy.near,
            subset=self._policy.subset,
            scales=self._weights.recorded,
            hosts=tuple(hosts),
        )

    def _with_refused(self, best: Sequence[Entry], avoided: Sequence[Entry]) -> list[tuple[Entry, str]]:
        looked_at = [(entry, "") for entry in best]
        looked_at += [(entry, AVOIDED) for entry in avoided[:RECORDED_REFUSED]]
        for entry in self._passed_over:
            rule, why = self._refused.get(entry[-1], (None, ""))
            if rule is not None:
                looked_at.append((entry, f"{rule.name}: {why}"))
        return sorted(looked_at)

    def _recorded_host(self, entry: Entry, refused: str = "") -> RecordedHost:
        index, weights = entry[-1], self._weights
        known = None if refused else self._recorded.get(index)
        if known is None:
            host = self._found.host(index)
            known = RecordedHost(
                host.uuid,
                host.host,
                self._values.get(index) or weights.at_first(index),
                refused,
                weights.overridden(self._found.facts(index)) if weights.overriding else {},
                entry[2],
                entry[0] > OUR_HOSTS,
                entry[0] == UNKNOWN_HOSTS,
            )
            if not refused:
                self._recorded[index] = known
        return known


def _ties_of(seed: str, hosts: HostMap, positions: Ints, indices: Ints) -> Uints:
    return ties(seed, hosts.mixed.take(positions.take(indices)))
