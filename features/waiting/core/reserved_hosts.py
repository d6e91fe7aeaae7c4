"""Reserves hosts for the first waiting request of each equivalence class, so that later requests of other
classes cannot delay it.

The first request reserves, of the hosts that it could ever use and that no request before it reserves, the
host that is nearest to fitting. Then requests of several instances reserve further hosts, in the same order.
Later requests may use every other host. So that few hosts are kept free:

- a request reserves at most one host for each instance, and none if it has no chance to start in time;
- the requests of one project together reserve at most a share of all hosts (at least one host);
- all requests together reserve at most MOST_HELD of all hosts, or that share if it is larger;
- no request reserves the last host of a zone that requests of other classes name.

The share of a project would let later requests overtake a request that needs more hosts forever. So one such
request at a time, the first one, exceeds the share: it reserves hosts for a number of instances that grows
with the time that it has waited, and for all of them when ALL_AFTER of its waiting time has passed. What
exceeds the share does not count for other requests, and the request reserves at most MOST_HELD of all hosts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from operator import itemgetter
from typing import Protocol

import msgspec
import numpy as np

from bus.candidates import Floats, Ints
from bus.vocabulary import Id
from features.waiting.core.shares import QueueKey, Rank
from features.waiting.settings import HELD_SHARE

Root = str
Roots = Collection[Root]

MOST_QUEUES = 64  # equivalence classes whose first request may reserve hosts
MOST_ASKED = 64  # hosts on which filters are evaluated to find one to reserve
MOST_HELD = 0.5  # share of all hosts that the waiting requests of all projects together may reserve
ALL_AFTER = 0.5  # part of its waiting time after which a request reserves hosts for all of its instances
GROWTH_SECONDS = 5.0  # seconds after which a request that exceeds the share reserves further hosts


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The hosts that would fit a request of an equivalence class if empty, and what they lack now."""

    size: int  # number of positions in placement's index
    positions: Ints
    lacks: Floats  # by host: what it lacks now, as a sum of fractions; 0: it fits
    capacities: Floats  # by host: most instances that fit if it is empty
    root: Callable[[int], Root]  # returns the root of the host at a position
    admits: Callable[[int], bool]  # returns whether no filter permanently rejects the host at a position

    @property
    def fits_at_most(self) -> float:
        """Return how many instances would fit on all of these hosts together if they were empty."""
        return float(np.maximum(self.capacities, 1.0).sum())

    def fewest_hosts(self, instances: int) -> int:
        """Return how many of these hosts are needed at least for a number of instances that fit on all."""
        largest = np.sort(np.maximum(self.capacities, 1.0))[::-1]
        return int(np.searchsorted(np.cumsum(largest), instances)) + 1


@dataclass(frozen=True, slots=True)
class HostReservation:
    """A host reserved for the first waiting request of an equivalence class."""

    rank: Rank
    kind: str
    zone: str = ""  # the zone that the request names; "": any
    since: float = field(default=0.0, compare=False)
    position: int = field(default=-1, compare=False)  # of the host in placement's index

    @property
    def key(self) -> QueueKey:
        return self.rank.key


class StoredHold(msgspec.Struct, frozen=True, array_like=True):
    """A host that a scheduler has reserved for the first waiting request of an equivalence class, as stored
    with the scheduler's heartbeat.
    """

    root: Id
    key: QueueKey  # of the request
    project: str
    since: float  # since when the host is reserved
    until: float  # end of the request's waiting time
    zone: str = ""  # the zone that the request names; "": any
    purpose: str = ""  # of a request that boots no instance, such as `move`

    @property
    def request(self) -> Id:
        return self.key[-1]


class ReservingQueue(Protocol):
    """The queue of an equivalence class, as far as reserving hosts needs it."""

    kind: str
    base: str
    project: str
    zone: str
    needs: int


class ReservingCloud(Protocol):
    """The interface through which hosts of a cloud are found for waiting requests."""

    def prospect(self, kind: str) -> Prospect:
        """Return the hosts that would fit the equivalence class if empty, and the capacity each lacks now."""

    def zone(self, root: Root) -> str:
        """Return the zone of a host; "" for an unknown host."""

    def hosts_by_zone(self) -> Mapping[str, int]:
        """Return the number of hosts of each zone."""


HasChance = Callable[[Id], bool]  # returns whether a waiting request has a chance to start before its end
Passed = Callable[[Id], float]  # returns which part of its waiting time has passed for a request


class ReservedHosts:
    """The hosts reserved for waiting requests of this scheduler, and of the other schedulers."""

    def __init__(self, share: float = HELD_SHARE) -> None:
        self.own: dict[Root, HostReservation] = {}
        self.elsewhere: dict[Root, StoredHold] = {}
        self._share = share
        self._grows_at: float | None = None  # when a request may reserve further hosts without a change

    def is_due(self, now: float) -> bool:
        """Return whether a request may reserve further hosts because of the time that has passed."""
        return self._grows_at is not None and now >= self._grows_at

    def renew(
        self,
        queues: Sequence[tuple[Rank, ReservingQueue]],
        cloud: ReservingCloud,
        has_chance: HasChance,
        passed: Passed,
        now: float,
    ) -> list[Root]:
        """Reserve hosts for the first request of each class, given with its rank. Return the hosts whose
        reservation has ended or is another: requests that could not use them before may use them now.
        """
        limits = _Limits(cloud, self._share, self.elsewhere, [queue for _, queue in queues])
        chances = [(rank, queue) for rank, queue in queues if has_chance(rank.request)]
        seeking = _seeking(sorted(chances, key=itemgetter(0)), limits, self.own)
        before = self.own
        self.own, grows = _reservations(seeking, limits, before, passed, now)
        self._grows_at = now + GROWTH_SECONDS if grows else None
        return [root for root, old in before.items() if self.own.get(root) != old]

    def set_elsewhere(self, reserved: Mapping[Root, StoredHold]) -> list[Root]:
        """Set the hosts that other schedulers have reserved. Return the hosts that requests may use now,
        although they could not before.
        """
        before, self.elsewhere = self.elsewhere, dict(reserved)
        return [root for root, old in before.items() if root not in reserved or reserved[root].key > old.key]

    def before(self, rank: Rank, kind: str) -> set[Root]:
        """Return the hosts reserved for requests of other classes, and of other schedulers, before `rank`."""
        key = rank.key  # turns at different schedulers are not comparable: between schedulers, age decides
        roots = {root for root, other in self.elsewhere.items() if other.key < key}
        roots.update(root for root, own in self.own.items() if own.kind != kind and own.rank.precedes(rank))
        return roots

    def in_zone(self, zone: str, among: Iterable[Root], zone_of: Callable[[Root], str]) -> set[Root]:
        """Return the reserved hosts in `among` that are in a zone, and reserved for requests that do not name
        this zone.
        """
        return {root for root in among if self._zone_named(root) != zone and zone_of(root) == zone}

    def _zone_named(self, root: Root) -> str | None:
        """Return the zone that the request for which a host is reserved names; None: it is not reserved."""
        reserved = self.own.get(root) or self.elsewhere.get(root)
        return None if reserved is None else reserved.zone


class _Limits:
    """The limits on the hosts that waiting requests may reserve, and the hosts counted so far."""

    def __init__(
        self,
        cloud: ReservingCloud,
        share: float,
        elsewhere: Mapping[Root, StoredHold],
        queues: Sequence[ReservingQueue],
    ) -> None:
        self.cloud = cloud
        self._elsewhere = elsewhere
        self._own = Counter[str]()  # project → number of hosts
        self._named = {queue.zone for queue in queues if queue.zone}
        self._by_zone = cloud.hosts_by_zone()
        hosts = sum(self._by_zone.values())
        self._most = max(int(share * hosts), 1)
        self._most_together = max(int(max(share, MOST_HELD) * hosts), 1)
        self._left = Counter(
            {zone: several for zone, several in self._by_zone.items() if zone in self._named}
        )
        for root in elsewhere if self._named else ():
            self._left[cloud.zone(root)] -= 1

    def most(self, rank: Rank) -> int:
        """Return how many further hosts may be reserved for a request. Of the hosts that other schedulers
        have reserved for its project, those for requests before this one count. A request that boots nothing
        has no project here, and no limit of a project: it reserves one host.
        """
        together = self._most_together - len(self._elsewhere) - self._own.total()
        if not rank.project:
            return together
        others = [other for other in self._elsewhere.values() if not other.purpose]
        elsewhere = sum(other.project == rank.project and other.key < rank.key for other in others)
        return min(self._most - elsewhere - self._own[rank.project], together)

    def most_alone(self, rank: Rank) -> int:
        """Return how many hosts a request may reserve if it exceeds the share of its project; 0 if an earlier
        request of another scheduler exceeds its own.
        """
        earlier = Counter(other.request for other in self._elsewhere.values() if other.key < rank.key)
        return 0 if max(earlier.values(), default=0) > self._most else self._most_together

    def permits(self, root: Root, rank: Rank, zone: str) -> bool:
        """Return False if a host is reserved by another scheduler for a request before this one, or if it is
        the last one, not reserved, of a zone that other requests name. `zone` is the zone that the request
        itself names.
        """
        if (elsewhere := self._elsewhere.get(root)) is not None and elsewhere.key < rank.key:
            return False
        if not self._named:
            return True
        there = self.cloud.zone(root)
        return there == zone or there not in self._named or self._left[there] > 1

    def count(self, root: Root, project: str) -> None:
        self._own[project] += 1
        if self._named:
            self._left[self.cloud.zone(root)] -= 1


class _Seeking:
    """A first waiting request for which hosts are reserved one after another, the best first."""

    def __init__(self, rank: Rank, queue: ReservingQueue, seen: Prospect, nearest: Ints, kept: Ints) -> None:
        self.rank = rank
        self.queue = queue
        self._seen = seen
        self._indices = chain(kept.tolist(), nearest[: MOST_ASKED + queue.needs].tolist())
        self._tried = set[int]()
        self._found = 0
        self._capacity = 0.0
        self._exceeds: tuple[int, int] | None = None  # most hosts, and instances for which they are reserved

    @property
    def needs_more(self) -> bool:
        return self._capacity < self.queue.needs and self._found < self.queue.needs

    def exceed(self, passed: float, limits: _Limits) -> bool:
        """Let the request reserve more hosts than the share of its project, if enough for all instances are
        permitted. Return whether they are.
        """
        most = limits.most_alone(self.rank)
        if self._seen.fewest_hosts(self.queue.needs) > most:
            return False
        self._exceeds = most, ceil(self.queue.needs * min(passed / ALL_AFTER, 1.0))
        return True

    def _is_permitted(self, limits: _Limits) -> bool:
        if self._exceeds is None:
            return limits.most(self.rank) > 0
        most, instances = self._exceeds
        return self._found < most and self._capacity < instances

    def next_host(self, reserved: Roots, limits: _Limits) -> tuple[Root, int] | None:
        """Return the root and position of the next host to reserve, or None if there is none within the
        limits.
        """
        if not self.needs_more or not self._is_permitted(limits):
            return None
        for at in self._indices:
            position = int(self._seen.positions[at])
            root = self._seen.root(position)
            if at in self._tried or root in reserved:
                continue
            self._tried.add(at)
            if self._seen.admits(position) and limits.permits(root, self.rank, self.queue.zone):
                self._found += 1
                self._capacity += max(float(self._seen.capacities[at]), 1.0)
                limits.count(root, self.rank.project)
                return root, position
        return None


def _seeking(
    queues: Sequence[tuple[Rank, ReservingQueue]], limits: _Limits, before: Mapping[Root, HostReservation]
) -> Iterator[_Seeking]:
    """Yield the first waiting requests, at most MOST_QUEUES, that have enough hosts. Each prefers the hosts
    that were reserved for its class `before`.
    """
    held = defaultdict[str, dict[Root, int]](dict)
    for root, old in before.items():
        held[old.kind][root] = old.position
    searched: dict[str, tuple[Prospect, Ints]] = {}  # equal for classes with equal bases
    for rank, queue in queues[:MOST_QUEUES]:
        if queue.base not in searched:
            seen = limits.cloud.prospect(queue.kind)
            searched[queue.base] = seen, np.argsort(seen.lacks, kind="stable")
        seen, nearest = searched[queue.base]
        if seen.fits_at_most < queue.needs:
            continue  # all hosts together would not suffice
        kept = nearest[:0]
        if stay := held[queue.kind]:  # a position may be that of another host now
            kept = nearest[np.isin(seen.positions[nearest], list(stay.values()))]
            kept = np.array([at for at in kept if seen.root(int(seen.positions[at])) in stay], np.intp)
        yield _Seeking(rank, queue, seen, nearest, kept)


def _reservations(
    seeking: Iterable[_Seeking],
    limits: _Limits,
    before: Mapping[Root, HostReservation],
    passed: Passed,
    now: float,
) -> tuple[dict[Root, HostReservation], bool]:
    """Return, by root, the hosts to reserve for the first waiting request of each equivalence class: one host
    for each request, then the further hosts of requests with several instances, then those by which one
    request exceeds the share of its project. Return also whether this request will reserve further ones.
    """
    reserved: dict[Root, HostReservation] = {}

    def reserve(request: _Seeking) -> bool:
        if (found := request.next_host(reserved, limits)) is None:
            return False
        root, position = found
        rank, old = request.rank, before.get(root)
        since = old.since if old is not None and old.rank.request == rank.request else now
        reserved[root] = HostReservation(rank, request.queue.kind, request.queue.zone, since, position)
        return True

    requests = list(seeking)
    for request in [each for each in requests if reserve(each)]:
        while reserve(request):
            pass
    for request in requests:
        if request.needs_more and request.exceed(passed(request.rank.request), limits):
            while reserve(request):
                pass
            return reserved, request.needs_more
    return reserved, False
