"""Which hosts, in which order: filters, weighers, and a ranking that is used up as it is handed out."""

import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from bus.messages import BuildRequested
from bus.vocabulary import NearMiss
from scheduler_worker.core.filters import FILTERS, MAX_BUILDS, PASSING, Filter, at_most_building
from scheduler_worker.core.host import Host
from scheduler_worker.core.request import shape_of
from scheduler_worker.core.weighers import WEIGHERS, Scale, Weight

NEAREST = 5  # near misses a ranking remembers
NO_AGENT = "has_agent"  # the rule that no policy can leave out: somebody must be there to build
CHOSEN_BY_OTHERS = "already chosen by others of this batch"

Key = tuple[float, int, float, int]  # least first: −score, times chosen, tie-breaker, position


@dataclass(frozen=True)
class ChoicePolicy:
    """What admits a host and what makes one better than another."""

    filters: tuple[Filter, ...] = FILTERS
    weighers: tuple[Weight, ...] = WEIGHERS
    shape: Callable[[BuildRequested], Hashable] = shape_of  # requests alike in this share an evaluation
    passing: frozenset[str] = PASSING  # filters whose refusal passes by itself

    @classmethod
    def from_names(
        cls,
        filters: Iterable[str] | None = None,
        weighers: Iterable[str] | Mapping[str, float] | None = None,
        *,
        max_builds: int = MAX_BUILDS,
    ) -> "ChoicePolicy":
        """As an operator writes it: names in order, a mapping when weighers get multipliers, None for all."""
        known = {named(filter_): filter_ for filter_ in (*FILTERS, at_most_building(max_builds))}
        weights = {named(weight.weigher): weight for weight in WEIGHERS}
        chosen = known if filters is None else filters
        weighed = weights if weighers is None else weighers
        for kind, names, all_ in (("filter", chosen, known), ("weigher", weighed, weights)):
            for name in names:
                if name not in all_:
                    raise ValueError(f"unknown {kind} {name!r}; known {kind}s: {', '.join(all_)}")
        if isinstance(weighers, Mapping):
            weights |= {name: replace(weights[name], multiplier=by) for name, by in weighers.items()}
        return cls(tuple(known[name] for name in chosen), tuple(weights[name] for name in weighed))

    def refusal(self, host: Host, request: BuildRequested) -> str | None:
        return next((why for admits in self.filters if (why := admits(host, request)) is not None), None)


def rank(request: BuildRequested, hosts: Sequence[Host], policy: ChoicePolicy, seed: str) -> "Ranking":
    """The admitted hosts, best first; the same request, hosts and seed give the same ranking."""
    admitted: list[Host] = []
    crowded: list[Host] = []
    unowned: list[tuple[Host, str]] = []
    refused: list[list[tuple[Host, str]]] = [[] for _ in policy.filters]
    filters = tuple(enumerate(policy.filters))
    for host in hosts:
        if not host.candidate.agent or not host.candidate.cell:
            unowned.append((host, "no agent builds on it"))
            continue
        for position, admits in filters:
            why = admits(host, request)
            if why is not None:
                refused[position].append((host, why))
                break
        else:
            (admitted if host.fits() else crowded).append(host)
    removed = {NO_AGENT: len(unowned)}
    for filter_, gone in zip(policy.filters, refused, strict=True):
        name = named(filter_)
        removed[name] = removed.get(name, 0) + len(gone)
    removed[CHOSEN_BY_OTHERS] = len(crowded)
    closest = [
        *((host, "room: chosen by others a moment ago") for host in crowded[:NEAREST]),
        *(miss for gone in reversed(refused) for miss in gone[:NEAREST]),
        *unowned[:NEAREST],
    ]
    nearest = [NearMiss(host=host.candidate.host, lacks=why) for host, why in closest[:NEAREST]]
    return Ranking(request, admitted, policy, seed, removed, nearest)


class Ranking:
    """An evaluation that several requests of one shape share: what one takes, the next finds taken."""

    def __init__(
        self,
        request: BuildRequested,
        hosts: Sequence[Host],
        policy: ChoicePolicy,
        seed: str,
        removed: Mapping[str, int],
        nearest: Sequence[NearMiss],
    ) -> None:
        self.removed = {name: count for name, count in removed.items() if count}
        self.nearest = tuple(nearest)
        self.hosts = hosts
        self.handed_out = 0
        self._request = request
        self._policy = policy
        self._scales: tuple[Scale, ...] = ()
        scores = self._fit(hosts)
        chance = random.Random(seed)
        self._heap: list[Key] = [
            (-score, 0, chance.random(), position) for position, score in enumerate(scores)
        ]
        self._ties = [key[2] for key in self._heap]
        self._heap.sort()
        self._spares: dict[str, list[tuple[Key, Host]]] = {}

    @property
    def best_first(self) -> list[Host]:
        """Who is left, in the order of now."""
        return [self.hosts[key[3]] for key in sorted(self._heap)]

    @property
    def may_pass(self) -> bool:
        """Does something that passes by itself stand in the way? Then no host now is not no host."""
        passing = self._policy.passing
        return self.handed_out > 0 or any(
            name == CHOSEN_BY_OTHERS or name in passing for name in self.removed
        )

    def take(self, several: int = 1, avoid: Collection[str] = ()) -> "Pick | None":
        """The best host, from now on counted as used, and the next best should it be refused.

        Hosts to avoid come only when there is no other.
        """
        best: list[Key] = []
        avoided: list[Key] = []
        while self._heap and len(best) < several:
            key = heappop(self._heap)
            (avoided if self.hosts[key[3]].root in avoid else best).append(key)
        if not best:
            best, avoided = avoided[:several], avoided[several:]
        for key in (*best[1:], *avoided):
            heappush(self._heap, key)
        if not best:
            return None
        hosts = [self.hosts[key[3]] for key in best]
        winner = hosts[0]
        pick = Pick(self, hosts, self.scores(winner))
        winner.choose()
        self.handed_out += 1
        if winner.fits() and self._policy.refusal(winner, self._request) is None:
            heappush(self._heap, self._rekeyed(best[0], winner))
        self._spares.clear()
        return pick

    def put_back(self, picks: Collection["Pick"]) -> None:
        """These are not wanted after all: as if they had never been taken."""
        for pick in picks:
            pick.hosts[0].unchoose()
        self.handed_out -= len(picks)
        self._spares.clear()
        self._heap = [
            self._rekeyed((0.0, host.chosen - 1, self._ties[position], position), host)
            for position, host in enumerate(self.hosts)
            if not host.chosen or (host.fits() and self._policy.refusal(host, self._request) is None)
        ]
        heapify(self._heap)

    def alternates(self, cell: str, several: int, beside: Collection[str]) -> list[Host]:
        """The next best hosts of a cell. One named here counts as fuller for the next."""
        if not several:
            return []
        spares = self._spares.get(cell)
        if spares is None:
            spares = self._spares[cell] = [
                (key, self.hosts[key[3]]) for key in self._heap if self.hosts[key[3]].candidate.cell == cell
            ]
            heapify(spares)
        found: list[tuple[Key, Host]] = []
        passed_over: list[tuple[Key, Host]] = []
        while spares and len(found) < several:
            spare = heappop(spares)
            (passed_over if spare[1].root in beside else found).append(spare)
        for spare in passed_over:
            heappush(spares, spare)
        for key, host in found:
            fuller = host.copy()
            fuller.choose()
            heappush(spares, (self._rekeyed(key, fuller), fuller))
        return [host for _, host in found]

    def scores(self, host: Host) -> dict[str, float]:
        """What each weigher gives this host, and their sum: by these it was compared with the others."""
        each = {named(scale.weigher): round(scale.score(host, self._request), 6) for scale in self._scales}
        return {**each, "total": round(sum(each.values()), 6)}

    def _fit(self, hosts: Sequence[Host]) -> list[float]:
        """Everyone's score; the scales stay as they are while the ranking is used up."""
        request = self._request
        scores = [0.0] * len(hosts)
        if not hosts:
            return scores
        scales = []
        for weight in self._policy.weighers:
            values = [weight.weigher(host, request) for host in hosts]
            scale = weight.scale(values)
            scales.append(scale)
            if scale.slope:
                points = scale.points
                scores = [score + points(value) for score, value in zip(scores, values, strict=True)]
        self._scales = tuple(scales)
        return scores

    def _rekeyed(self, key: Key, host: Host) -> Key:
        score = sum(scale.score(host, self._request) for scale in self._scales)
        return (-score, key[1] + 1, key[2], key[3])


@dataclass(frozen=True, slots=True)
class Pick:
    """What a ranking handed out: hosts for a claim's choices, best first, and why the first won."""

    ranking: Ranking
    hosts: Sequence[Host]
    scores: dict[str, float]


def named(function: Callable[..., object]) -> str:
    """The name an operator knows a filter or weigher by."""
    return str(getattr(function, "__name__", repr(function)))
