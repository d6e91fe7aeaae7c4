"""Finds the hosts that fit a request, and caches filter results and allocation candidates of each host."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from operator import and_

import numpy as np
from msgspec import structs

from bus.candidates import CandidateSearch, Floats, FreeProvider, Ints, PlacedHost, SenselessQuery
from bus.decisions import EXCLUDED, OF_HOSTS, REASONS, Decision, NearMiss, Removal
from bus.messages import BuildRequested
from bus.queries import Candidate
from scheduler_worker.core.host_map import NO_AGENT, AllHosts, HostMap, HostsNow
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rule import (
    Alternative,
    HostFacts,
    Number,
    OneHost,
    Rule,
    RuleError,
    View,
    WayValues,
    Weigher,
    WeightedCandidates,
    guarded,
)

WAYS_OF_THE_BEST = 16  # most allocation candidates of one host in a claim
MOST_WEIGHED = 128  # most candidates of one host that are weighed
ALL_WAYS = 2048  # allocation candidates examined if some providers are to be avoided
MOST = 1e300  # values of weighers are limited to ± this
Mask = tuple[Rule, Number]  # a filter, and the hosts that it accepts
Refusal = tuple[Rule, str]

Entry = tuple[int, float, int, int, int]  # tier, −score, number of choices, hash, index; smallest is best


def masks_of(rules: Sequence[Rule], view: View, alternative: Alternative, size: int) -> Iterator[Mask]:
    """Yield each filter that evaluates all `size` hosts as arrays, with its mask (True: host accepted).
    Filters that accept all hosts are skipped.
    """
    for rule in rules:
        if rule.admits is not None:
            mask = rule.admits(view, alternative)
            if np.ndim(mask) and len(mask) != size:
                raise RuleError(
                    f"the filter {rule.name}", ValueError(f"{len(mask)} results for {size} hosts")
                )
            if np.ndim(mask) or not mask:
                yield rule, mask


class WeighedWays:
    """The candidates of hosts as one weigher counts them: the best counts 1."""

    def __init__(self, weigher: Weigher, values: WayValues, among: Ints, hosts: int) -> None:
        given = np.asarray(values.highest, np.float64)
        if given.ndim and given.shape != (hosts,):
            raise RuleError(
                f"the weigher {weigher.name}", ValueError(f"{given.size} numbers for {hosts} hosts")
            )
        highest = given if given.ndim else np.full(hosts, given)
        if not -MOST < given.min(initial=0.0) <= given.max(initial=0.0) < MOST:
            highest = np.nan_to_num(highest, nan=-MOST, posinf=MOST, neginf=-MOST)
        self.weigher = weigher
        passing = highest if len(among) == hosts else highest[among]
        self._best = float(passing.max(initial=-MOST))
        self._values_of = guarded(f"the weigher {weigher.name}", values.of)
        lower = self._best - highest
        # what the best candidate of each host counts, before any host is chosen: an estimate
        self.estimates: Floats = 1.0 - lower / (weigher.half_at + np.abs(lower))

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        """Return what the candidates of a host count, as of now."""
        return [self._counts(value) for value in self._values_of(tree, ways)]

    def _counts(self, value: float) -> float:
        if not -MOST < value < MOST:
            return 2.0 if value > 0 else 0.0
        lower = self._best - value
        return 1.0 - lower / (self.weigher.half_at + abs(lower))


def capacities(asked: Mapping[str, int], free: Mapping[str, int]) -> int:
    """Estimate how many instances of a flavor fit on a host that fits one; resources of pools are ignored."""
    several = [free[name] // amount for name, amount in asked.items() if name in free]
    return max(min(several, default=1), 1)


def with_more(facts: HostFacts, asked: Mapping[str, int], several: int) -> HostFacts:
    """Return a host's data for filters as if `several` further instances were already placed on it."""
    free = {name: amount - several * asked.get(name, 0) for name, amount in facts.free.items()}
    return structs.replace(facts, free=free, building=facts.building + several)


class FoundHosts:
    """The hosts that a search found for a flavor, identified by their indices in the search's arrays.

    The data, filter results and candidates of a host are cached until the host, or a pool that it uses,
    changes.
    """

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        hosts: HostMap,
        policy: ChoicePolicy,
    ) -> None:
        self.alternative = alternative
        self.search = search
        self.source = now.source
        self.hosts = hosts
        self.policy = policy
        self.positions = search.positions
        self.view = AllHosts(search, now)
        self.rules = policy.rules_for(alternative)
        self.lazy = [rule for rule in self.rules if rule.admits is None]
        with_agent = hosts.has_agent, hosts.served.take(search.positions)
        self.masks: list[Mask] = [
            with_agent,
            *masks_of(self.rules, self.view, alternative, self.positions.size),
        ]
        if (allowed := alternative.allowed) is not None:
            self.masks.append((allowed.rule, allowed.mask.take(search.positions)))
        # the filter that demands that the host fits several instances; None: no such demand
        self.keeps_together = (
            None
            if (together := alternative.together) is None
            else next((rule for rule in self.rules if rule.name == together.rule), None)
        )
        self.refused: dict[int, Refusal] = {}  # index of a host → the filter that rejected it, and why
        self.full: dict[int, Entry] = {}  # index of a host without capacity → its last place in the ranking
        self.chosen: dict[int, int] = {}  # index of a host → how often it was chosen
        self.admitted: set[int] = set()  # indices of hosts that all filters accepted
        self.lone_ways: dict[int, tuple[Candidate, ...]] = {}  # index of a host → its only candidate
        self._tree_ways: dict[int, tuple[Candidate, ...]] = {}
        self._values_of_best: dict[int, tuple[float, ...]] = {}  # index of a host → by `way_values`
        self._facts: dict[int, HostFacts] = {}
        # root → allocations of which one must cover the host's candidates
        self._within = alternative.restriction.within if alternative.restriction is not None else {}

    @cached_property
    def way_values(self) -> list[WeighedWays]:
        """Return the weighers of candidates, with what they found."""
        hosts = self.positions.size
        return [
            WeighedWays(weigher, weigher.of_ways(self.view, self.alternative), self.passing, hosts)
            for weigher in self.policy.of_ways
            if weigher.of_ways is not None
            and hosts
            and (weigher.multiplier or self.view.now.limits(weigher.key))  # an aggregate's multiplier
        ]

    @cached_property
    def passing(self) -> Ints:
        """Return the indices of hosts that all filters on arrays accept. Filters for single hosts may still
        reject some of them.
        """
        return np.flatnonzero(reduce(and_, [mask for _, mask in self.masks]))

    def host(self, index: int) -> PlacedHost:
        return self.search.host(self.positions.item(index))

    def facts(self, index: int) -> HostFacts:
        """Return the data of a host that filters and weighers read, cached until `read_again` is called."""
        facts = self._facts.get(index)
        return self.read_again(index) if facts is None else facts

    def read_again(self, index: int) -> HostFacts:
        """Read the data of a host again, because its free capacity changed."""
        facts = self._facts[index] = self.view.now.facts(self.search, self.positions.item(index))
        return facts

    def index(self, root: str) -> int:
        position = self.source.position(root)
        return int(np.searchsorted(self.positions, -1 if position is None else position))

    def admits(self, index: int) -> bool:
        """Return whether all filters accept a host. The result is cached until the host changes."""
        if index in self.refused:
            return False
        if index in self.admitted:
            return True
        # The filters on arrays saw a chosen host before it was chosen, so they are applied to it again.
        rules = self.rules if index in self.chosen else self.lazy
        if rules:
            facts = self.facts(index)
            for rule in rules:
                why = rule.refuses(facts, self.alternative)
                if why is not None:
                    self.refused[index] = rule, why
                    return False
        self.admitted.add(index)
        return True

    def fits_too_few(self, index: int) -> bool:
        """Return True if a host fits one instance, but not all instances that need to be on one host."""
        keeps_together, together = self.keeps_together, self.alternative.together
        if keeps_together is None or together is None or not self.ways(index, 1):
            return False
        more = together.several - 1
        facts = with_more(self.facts(index), self.alternative.asked, more)
        last = together.placed(self.alternative, facts.root, more)
        for rule in self.rules:
            why = rule.refuses(facts, last)
            if why is not None:
                self.refused[index] = rule, f"{why} (with {more} more of the request there)"
                return True
        capacity = 1 + self._count_after_first(index, more)
        if capacity <= more:
            self.refused[index] = keeps_together, f"room for {capacity} of {more + 1} that are to be together"
        return capacity <= more

    def _count_after_first(self, index: int, more: int) -> int:
        """Return how many instances fit after a first one, at most `more`; -1 if the first does not fit."""
        found = self.find_ways(index, 1)
        if not found:
            return -1
        if not found[0].free_by_provider:
            (asked,) = found[0].allocations.values()
            return min(more, *(found[0].free[name] // amount - 1 for name, amount in asked.items()))
        count = 0
        with self.source.packing.trying() as trial:
            while found and count < more:
                trial.claim(found[0].allocations)
                count += 1
                found = self.find_ways(index, 1)
        return count if found else count - 1

    def forget(self, index: int) -> None:
        """Drop the cached filter result and allocation candidates of a host, because the host has changed."""
        self.lone_ways.pop(index, None)
        self._tree_ways.pop(index, None)
        self.refused.pop(index, None)
        self.admitted.discard(index)

    def forget_trees(self) -> None:
        """Drop cached candidates that use several providers, because shared resources may have changed."""
        self._tree_ways.clear()

    def passing_after(self, position: int) -> Sequence[int]:
        """Return those of the `passing` hosts that come after a position in placement's index."""
        first = np.searchsorted(self.positions[self.passing], position, side="right")
        indices: list[int] = self.passing[first:].tolist()
        return indices

    def any_way(self, index: int) -> Candidate | None:
        """Return an allocation candidate of a host, not always the best; None if no candidate fits or a
        filter rejects the host.
        """
        ways = self.find_ways(index, 1) if self.admits(index) else ()
        return ways[0] if ways else None

    def way(self, index: int, avoid: Collection[str] = ()) -> Candidate | None:
        """Return a host's best allocation candidate that uses no provider in `avoid`; None if no candidate
        fits or a filter rejects the host.
        """
        if index not in self.admitted and not self.admits(index):
            return None
        ways = self.lone_ways.get(index)
        if ways is None or avoid:
            ways = self.ways(index, 1, avoid)
        return ways[0] if ways else None

    def ways(self, index: int, most: int, avoid: Collection[str] = ()) -> tuple[Candidate, ...]:
        """Return at most `most` of a host's allocation candidates that fit now and use no provider in
        `avoid`, best first.
        """
        ways = self.lone_ways.get(index)
        if ways is not None and not avoid:
            return ways
        ways = ways or self._tree_ways.get(index)
        if ways is None:
            ways = self._best_first(index, self.find_ways(index, self._most_ways))
            lone = len(ways) == 1 and len(ways[0].allocations) == 1 and ways[0].root in ways[0].allocations
            if ways:
                (self.lone_ways if lone else self._tree_ways)[index] = ways
        if avoid and any(not way.allocations.keys().isdisjoint(avoid) for way in ways):
            if len(ways) == WAYS_OF_THE_BEST or self.way_values:  # there may be more
                ways = self._best_first(index, self.find_ways(index, ALL_WAYS))
            ways = tuple([way for way in ways if way.allocations.keys().isdisjoint(avoid)])
        return ways[:most]

    def find_ways(self, index: int, most: int) -> tuple[Candidate, ...]:
        """Return at most `most` allocation candidates of a host from a new search, not from the cache. A
        single one is not compared with others, so weighers of candidates are not computed for it.
        """
        within = self._within.get(self.host(index).uuid, ()) if self._within else ()
        weighed = 1 < most <= MOST_WEIGHED and bool(self.way_values)
        return tuple(self.search.ways(self.positions.item(index), most, within, distinct=weighed))

    @property
    def _most_ways(self) -> int:
        return MOST_WEIGHED if self.way_values else WAYS_OF_THE_BEST

    def _best_first(self, index: int, ways: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the candidates of a host sorted by their scores, the best first."""
        self._values_of_best.pop(index, None)
        if len(ways) < 2:
            return ways
        if not self.way_values:
            return best_first(ways, self.policy.of_candidates)
        values = self._values_of(index, ways)
        scores, host = [0.0] * len(ways), OneHost(self.facts(index))
        for weighed, of_weigher in zip(self.way_values, values, strict=True):
            multiplier = max(host.override(weighed.weigher.key, weighed.weigher.multiplier), 0.0)
            for number, value in enumerate(of_weigher):
                scores[number] -= multiplier * value
        for multiplier, value_of in self.policy.of_candidates:
            for number, way in enumerate(ways):
                scores[number] -= multiplier * value_of(way)
        order = sorted(range(len(ways)), key=scores.__getitem__)
        self._values_of_best[index] = tuple([of_weigher[order[0]] for of_weigher in values])
        return tuple([ways[number] for number in order[:WAYS_OF_THE_BEST]])

    def _values_of(self, index: int, ways: Sequence[Candidate]) -> list[list[float]]:
        tree = self.search.tree(self.positions.item(index))
        return [weighed.of(tree, ways) for weighed in self.way_values]

    def values_of_best(self, index: int) -> tuple[float, ...]:
        """Return what a host's best candidate counts, in the order of `way_values`; 0 if none fits."""
        ways = self.ways(index, 1)
        if not ways:
            return (0.0,) * len(self.way_values)
        known = self._values_of_best.get(index)
        if known is None:
            values = self._values_of(index, ways)
            known = self._values_of_best[index] = tuple([of_weigher[0] for of_weigher in values])
        return known


def best_first(candidates: tuple[Candidate, ...], weighers: WeightedCandidates) -> tuple[Candidate, ...]:
    """Return the candidates of one host sorted by their scores, the best first; ties keep their sequence."""
    if len(candidates) < 2 or not weighers:
        return candidates
    scores = [0.0] * len(candidates)
    for multiplier, value in weighers:
        for number, candidate in enumerate(candidates):
            scores[number] -= multiplier * value(candidate)
    order = sorted(range(len(candidates)), key=scores.__getitem__)
    return tuple([candidates[number] for number in order])


# Section: explains why no host fits: counts the hosts that each requested resource and filter rejected, finds
# the hosts that came closest, and states the reason as a sentence.


NEAREST = 5  # nearly fitting hosts in a record
NEAREST_BEYOND = 16  # nearly fitting hosts that placement is asked for; filters reject some of them
EXAMPLES = 3  # hosts named as examples for each constraint
MAX_REFUSED = 16  # refused hosts in a record
SIBLINGS = "taken by other instances of the request"
CLOSED = frozenset({"disabled", "down", "tenant", NO_AGENT})  # codes of hosts that no similar request may use


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why no host fits: the hosts that each filter rejected, and the hosts that came closest."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()  # hosts removed by each constraint of placement, then by each filter
    nearest: tuple[NearMiss, ...] = ()
    held: tuple[
        NearMiss, ...
    ] = ()  # hosts that fit, but are reserved for waiting requests; in `nearest`, too
    may_pass: bool = False  # whether some host is rejected for a temporary reason only
    is_reserved: bool = False  # whether only other requests' reserved capacity prevents the placing
    named: bool = False  # True if `nearest` has the hosts that the request names
    fitted: int = 0  # number of instances that fit, if all must be placed together
    alternative_index: int = 0  # 0: the preferred flavor; n: the n-th flavor of `or_else`
    notes: tuple[str, ...] = ()
    unknown: str = ""  # why the request's cell or zone has no hosts, or its reservation no slot; "" otherwise
    refusal: str = ""  # why the request is invalid, or a filter or weigher failed
    refusal_code: str = "unreadable"
    unfit: str = ""  # code of the reason if it was known before the search that no host fits
    optional: bool = False  # whether further alternatives follow, so that this shortage is no reason

    @classmethod
    def of_problem(
        cls, problem: SenselessQuery, alternative_index: int, optional: bool = False
    ) -> "Shortage":
        return cls(
            alternative_index=alternative_index,
            refusal=str(problem),
            refusal_code=problem.code,
            optional=optional,
        )

    @property
    def code(self) -> str:
        """Return the code for the reason why no host fits (docs/reasons.md), such as `no_hosts`."""
        if self.refusal:
            return self.refusal_code
        if self.unfit:
            return self.unfit
        if self.fitted:
            return "room"
        if self.held:
            return "reserved"
        deciding = next((removal for removal in self.removals if not removal.left), None)
        if deciding is None:
            return "room" if self.considered else "no_hosts"
        return deciding.code or deciding.about or deciding.constraint

    def decision(self, refused: tuple[str, ...]) -> Decision:
        return Decision(
            considered=self.considered,
            removals=self.removals,
            nearest=self.nearest,
            refused=refused,
            code=self.code,
            notes=self.notes,
        )

    def reason(self, request: BuildRequested, instances: int, refused: Sequence[str]) -> str:
        if self.refusal or self.unknown:
            return self.refusal or self.unknown
        parts = [f"no valid host among {self.considered}"]
        if self.held and not self.named:
            parts.append(f"it fits {_grouped(self.held)}")
        if self.removals:
            parts.append(", ".join(map(_removed, self.removals)))
        if refused:
            parts.append(f"placement refused {'; '.join(refused)}")
        closest = [miss for miss in self.nearest if miss not in self.held]
        if closest and not self.named:
            parts.append(f"closest {_grouped(closest)}")
        if self.fitted:
            needed = request.at_least or instances
            parts.append(f"free capacity for {self.fitted} of the {needed} instances needed at once")
        whole = ": ".join((parts[0], ". ".join(parts[1:]))) if parts[1:] else parts[0]
        if not self.named:
            return whole
        return ". ".join([*(f"{miss.host}: {miss.lacks}" for miss in self.nearest), whole])


def with_siblings(short: Shortage, hosts: Sequence[str]) -> tuple[Removal, ...]:
    """Return the counts of a shortage before any instance of the request was chosen, and last the `hosts`
    that other instances of the request would take.
    """
    left = short.removals[-1].left if short.removals else short.considered
    if not left:
        return short.removals
    taken = Removal(constraint=SIBLINGS, removed=left, left=0, code="chosen", hosts=tuple(hosts[:EXAMPLES]))
    return (*short.removals, taken)


def _grouped(misses: Sequence[NearMiss]) -> str:
    """Return the names of hosts, grouped by what they lack, as text."""
    by_lack: dict[str, list[str]] = {}
    for miss in misses:
        by_lack.setdefault(miss.lacks, []).append(miss.host)
    return "; ".join(f"{', '.join(hosts)} ({lacks})" for lacks, hosts in by_lack.items())


def _removed(removal: Removal) -> str:
    state = REASONS[OF_HOSTS].counted.get(removal.code)
    if state is None:
        return f"{removal.constraint} removed {removal.removed}"
    return f"{state or removal.constraint}: {removal.removed} host{'' if removal.removed == 1 else 's'}"


class Verdicts:
    """Counts the hosts that one evaluation rejected: by placement's search for the requested resources, then
    by each filter."""

    def __init__(self, found: FoundHosts, notes: tuple[str, ...]) -> None:
        keeps_together = found.keeps_together
        self._found = found
        self._notes = notes
        self._lazy = found.lazy if keeps_together is None else [*found.lazy, keeps_together]
        self._by_placement: tuple[Removal, ...] | None = None
        self._counted: set[int] = set()  # positions of hosts counted in placement's removals
        self._removals: tuple[tuple[int, int], tuple[Removal, ...]] | None = None

    def removals(self) -> tuple[Removal, ...]:
        """Return how many hosts each requested resource and then each filter rejected."""
        found = self._found
        state = len(found.refused), len(found.full)
        if self._removals is None or self._removals[0] != state:
            if self._by_placement is None:
                removals = found.search.removals()
                self._by_placement = tuple([_named_limits(found.alternative, each) for each in removals])
                left = removals[-1].left if removals else found.search.considered
                if left < len(found.positions):
                    refused = [index for index in found.refused if index in found.chosen]
                    self._counted = {index for index in refused if not found.ways(index, 1)}.union(found.full)
                else:
                    self._counted = set()
            self._removals = state, (*self._by_placement, *self._by_filters())
        return self._removals[1]

    def _by_filters(self) -> Iterator[Removal]:
        by_rule: dict[tuple[str, str], list[int]] = {}
        for index, (rule, _) in self._found.refused.items():
            if index not in self._counted:
                by_rule.setdefault((rule.name, rule.code), []).append(index)
        full = [index for index in self._found.full if index not in self._counted]
        left = len(self._found.positions) - len(self._counted)
        for removal in (
            *(removal for removal, *_ in self._removed_at_once),
            *(self._removal(*rule, indices) for rule, indices in by_rule.items()),
            self._removal("free capacity taken by instances just placed", code="chosen", indices=full),
        ):
            if removal.removed:
                left -= removal.removed
                yield structs.replace(removal, left=left)

    @cached_property
    def _removed_at_once(self) -> list[tuple[Removal, Rule, Ints]]:
        found: list[tuple[Removal, Rule, Ints]] = []
        left = np.ones(len(self._found.positions), np.bool_)
        for rule, mask in self._found.masks:
            removed = np.flatnonzero(left > mask)
            if removed.size:
                left &= mask
                found.append((self._removal(rule.name, rule.code, removed), rule, removed))
        return found

    def _removal(self, constraint: str, code: str, indices: Sequence[int] | Ints) -> Removal:
        hosts = tuple([self._found.host(int(index)).host for index in indices[:EXAMPLES]])
        return Removal(constraint=constraint, removed=len(indices), left=0, code=code, hosts=hosts)

    def shortage(self) -> Shortage:
        alternative, search = self._found.alternative, self._found.search
        self._by_placement = self._removals = None
        held, nearest = self._held(), self._nearest()
        if not alternative.pinned:
            nearest = (*held, *(miss for miss in nearest if miss not in held))[:NEAREST]
        return Shortage(
            considered=search.considered,
            removals=self.removals(),
            nearest=nearest,
            held=held,
            named=bool(alternative.pinned),
            may_pass=self._may_pass(),
            alternative_index=alternative.alternative_index,
            notes=self._notes,
        )

    def _held(self) -> tuple[NearMiss, ...]:
        """Return hosts that fit except that they are reserved for other requests."""
        alternative, found = self._found.alternative, self._found
        ignored = {*alternative.request.ignore_hosts}
        roots = sorted({root for limit in alternative.limits for root in limit.roots} - ignored)
        beyond = found.search.nearest(roots, NEAREST_BEYOND) if roots else ()
        held = [miss for miss in beyond if miss.lacks == EXCLUDED and miss.host not in ignored]
        fitting = [miss for miss in held if not self._refusals(miss, found.rules)][:NEAREST]
        return tuple(_lacking_limited(alternative, miss, found.source.named(miss.host)) for miss in fitting)

    def _nearest(self) -> tuple[NearMiss, ...]:
        """Return the hosts that come closest to fitting, best first, or the hosts that the request names.
        Disabled hosts are left out unless all hosts are disabled or the request names them.
        """
        alternative, found = self._found.alternative, self._found
        nearest, named = found.search.nearest(alternative.pinned, NEAREST_BEYOND), found.source.named
        beyond = [_lacking_limited(alternative, miss, named(miss.host)) for miss in nearest]
        if alternative.pinned:
            by_host: dict[str, NearMiss] = {}
            for miss in self._misses():
                by_host.setdefault(miss.host, miss)
            for miss in beyond:
                why = [why for why in self._refusals(miss, found.rules) if why not in miss.lacks]
                by_host.setdefault(miss.host, structs.replace(miss, lacks="; ".join((*why, miss.lacks))))
            return tuple(by_host.values())[:NEAREST]
        closing = [rule for rule in found.rules if rule.code in CLOSED]
        closed, open_ = list[NearMiss](), list[NearMiss]()
        for misses, rules in ((self._misses(), ()), (beyond, closing)):
            for miss in misses:
                if self._refusals(miss, rules):
                    continue  # a host that is also disabled or down is not near to fitting
                if miss.code not in CLOSED:
                    open_.append(miss)
                elif miss.code != "tenant" and len(closed) < NEAREST:
                    closed.append(miss)
                if len(open_) == NEAREST:
                    return tuple(open_)
        return tuple(open_ or closed)

    def _refusals(self, miss: NearMiss, rules: Sequence[Rule]) -> list[str]:
        found = self._found
        positions = [found.source.position(root) for root in found.source.named(miss.host)] if rules else []
        if len(positions) != 1 or positions[0] is None:  # no host or several hosts have this name
            return []
        facts = found.view.now.facts(found.search, positions[0])
        return [why for rule in rules if (why := rule.refuses(facts, found.alternative)) is not None]

    def _misses(self) -> Iterator[NearMiss]:
        """Yield the hosts that were found but rejected; hosts that passed the most filters come first."""
        found, pinned = self._found, self._found.alternative.pinned
        positions = [found.source.position(root) for root in pinned]
        known = [position for position in positions if position is not None]
        named = np.flatnonzero(np.isin(found.positions, known)).tolist()
        refused, full = found.refused, list(found.full)
        if pinned:
            refused = {index: refused[index] for index in named if index in refused}
            full = [index for index in full if index in named]
        for index in full:
            yield self._miss(index, "free capacity: taken by instances just placed", code="chosen")
        for asked in reversed(self._lazy):
            for index, (rule, why) in islice(refused.items(), 50 * NEAREST):
                if rule is asked:
                    yield self._miss(index, why, rule.code)
        for _, rule, removed in reversed(self._removed_at_once):
            for index in (removed[np.isin(removed, named)] if pinned else removed[:NEAREST]).tolist():
                lacks = rule.refuses(found.facts(index), found.alternative)
                yield self._miss(index, lacks or rule.name, rule.code)

    def _miss(self, index: int, lacks: str, code: str) -> NearMiss:
        return NearMiss(host=self._found.host(index).host, lacks=lacks, code=code)

    def _may_pass(self) -> bool:
        """Return True if some host may fit within seconds: only short-lived reasons reject it now."""
        lasting = [rule for rule in self._lazy if not self._passes(rule)]
        indices = [index for index, (rule, _) in self._found.refused.items() if self._passes(rule)]
        strict = np.ones(len(self._found.positions), np.bool_)
        admitted = strict.copy()
        for rule, mask in self._found.masks:
            admitted &= mask
            if not self._passes(rule):
                strict &= mask
        indices += np.flatnonzero(strict & ~admitted).tolist()
        return any(
            all(rule.refuses(self._found.facts(index), self._found.alternative) is None for rule in lasting)
            for index in indices
        )

    def _passes(self, rule: Rule) -> bool:
        """Return whether rejections by a filter are temporary. If the request names hosts, the rejection of a
        host as down counts as permanent.
        """
        return rule.passes and not (self._found.alternative.pinned and rule.code == "down")


def _named_limits(alternative: Alternative, removal: Removal) -> Removal:
    if not alternative.limits or removal.code != "forbidden_host":
        return removal
    named = [EXCLUDED] if alternative.request.ignore_hosts else []
    named += dict.fromkeys(limit.what for limit in alternative.limits)
    return structs.replace(removal, constraint=" or ".join(named), code=alternative.limits[0].code)


def _lacking_limited(alternative: Alternative, miss: NearMiss, roots: Sequence[str]) -> NearMiss:
    """Return the record `miss` of a rejected host; `roots` are the roots of the hosts with its name. If a
    limit excludes one of them, the returned reason is that of the limit.
    """
    for root in roots:
        for limit in alternative.limits:
            if root in limit.roots:
                code = limit.code if miss.code == "forbidden_host" else miss.code
                return structs.replace(miss, lacks=miss.lacks.replace(EXCLUDED, limit.why(root)), code=code)
    return miss
