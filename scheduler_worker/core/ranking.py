"""Which hosts, in which order: an evaluation that is used up as hosts are handed out of it."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from bus.messages import BuildRequested
from bus.vocabulary import Candidate, NearMiss
from scheduler_worker.core.former_policy import FormerPolicy as ChoicePolicy
from scheduler_worker.core.former_policy import named
from scheduler_worker.core.host import Host
from scheduler_worker.core.weighers import Scale

NEAREST = 5  # near misses a ranking remembers
WAYS_A_HOST = 4  # of a tree's ways, how many are named in one claim
NO_AGENT = "has_agent"  # the rule that no policy can leave out: somebody must be there to build
CHOSEN_BY_OTHERS = "already chosen by others of this batch"

Key = tuple[float, int, float, int]  # least first: −score, times chosen, tie-breaker, position


def rank(request: BuildRequested, hosts: Sequence[Host], policy: ChoicePolicy, seed: str) -> "Ranking":
    """The admitted hosts, best first; the same request, hosts and seed give the same ranking."""
    admitted: list[Host] = []
    crowded: list[Host] = []
    unserved: list[tuple[Host, str]] = []
    refused: list[list[tuple[Host, str]]] = [[] for _ in policy.filters]
    filters = tuple(enumerate(policy.filters))
    passing = [named(filter_) in policy.passing for filter_ in policy.filters]
    may_pass = False
    for host in hosts:
        nobody = policy.nobody_builds(host)
        if nobody:
            unserved.append((host, nobody))
            continue
        for position, admits in filters:
            why = admits(host, request)
            if why is not None:
                refused[position].append((host, why))
                may_pass = may_pass or (
                    passing[position]
                    and all(passing[behind] or later(host, request) is None for behind, later in filters)
                )
                break
        else:
            (admitted if host.fits() else crowded).append(host)
    removed = {NO_AGENT: len(unserved)}
    for filter_, gone in zip(policy.filters, refused, strict=True):
        name = named(filter_)
        removed[name] = removed.get(name, 0) + len(gone)
    removed[CHOSEN_BY_OTHERS] = len(crowded)
    closest = [
        *((host, "room: chosen by others a moment ago") for host in crowded[:NEAREST]),
        *(miss for gone in reversed(refused) for miss in gone[:NEAREST]),
        *unserved[:NEAREST],
    ]
    nearest = [NearMiss(host=host.candidate.host, lacks=why) for host, why in closest[:NEAREST]]
    return Ranking(request, admitted, policy, seed, removed, nearest, may_pass or bool(crowded))


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
        may_pass: bool,
    ) -> None:
        self.removed = {name: count for name, count in removed.items() if count}
        self.nearest = tuple(nearest)
        self.hosts = hosts
        self.handed_out = 0
        self._passes = may_pass  # some were refused for nothing but what passes by itself
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
    def may_pass(self) -> bool:
        """Does something that passes by itself stand in the way? Then no host now is not no host."""
        return self.handed_out > 0 or self._passes

    def take(self, several: int = 1, avoid: Collection[str] = (), most: int = 64) -> "Pick | None":
        """The best host, from now on counted as used, and the next best should it be refused.

        Each comes in its ways before the next does, up to so many choices. Hosts that cannot be used without
        a provider to avoid come only when there is no other.
        """
        best: list[Key] = []
        avoided: list[Key] = []
        while self._heap and len(best) < several:
            key = heappop(self._heap)
            host = self.hosts[key[3]]
            if not host.used_up():
                (avoided if avoid and host.avoided(avoid) else best).append(key)
        if not best:
            best, avoided = avoided[:several], avoided[several:]
        for key in (*best[1:], *avoided):
            heappush(self._heap, key)
        if not best:
            return None
        winner = self.hosts[best[0][3]]
        pick = Pick(self, self._choices(best, avoid)[:most], self.scores(winner))
        winner.choose(pick.way)
        self.handed_out += 1
        if winner.fits() and self._policy.refusal(winner, self._request) is None:
            heappush(self._heap, self._rekeyed(best[0], winner))
        self._spares.clear()
        return pick

    def _choices(self, best: list[Key], avoid: Collection[str]) -> list["HostChoice"]:
        choices: list[HostChoice] = []
        for key in best:
            host = self.hosts[key[3]]
            if host.rooms is None:
                choices.append((host, host.candidate))
            else:
                choices += [(host, way) for way in host.ways_now(avoid)[:WAYS_A_HOST]]
        return choices

    def put_back(self, picks: Collection["Pick"]) -> None:
        """These are not wanted after all: as if they had never been taken."""
        for pick in picks:
            pick.host.unchoose(pick.way)
        self.handed_out -= len(picks)
        self._spares.clear()
        self._heap = [
            self._rekeyed((0.0, host.chosen - 1, self._ties[position], position), host)
            for position, host in enumerate(self.hosts)
            if not host.chosen or (host.fits() and self._policy.refusal(host, self._request) is None)
        ]
        heapify(self._heap)

    def alternates(
        self, cell: str, several: int, beside: Collection[str], avoid: Collection[str] = ()
    ) -> list[Host]:
        """The next best hosts of a cell, without some roots. One named here counts as fuller for the next."""
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
            host = spare[1]
            useless = host.root in beside or (avoid and host.avoided(avoid)) or host.used_up()
            (passed_over if useless else found).append(spare)
        for spare in passed_over:
            heappush(spares, spare)
        for key, host in found:
            fuller = host.fuller()
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


HostChoice = tuple[Host, Candidate]  # a host, and the way to use it


@dataclass(frozen=True, slots=True)
class Pick:
    """What a ranking handed out: a claim's choices, best first, and why the first won."""

    ranking: Ranking
    choices: Sequence[HostChoice]
    scores: dict[str, float]

    @property
    def host(self) -> Host:
        return self.choices[0][0]

    @property
    def way(self) -> Candidate:
        return self.choices[0][1]
