"""Load patterns of requests and lifetimes, simulated with the real waiting queues in virtual time."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from features.waiting.core.shares import Contender
from features.waiting.tests.support.plain_cloud import Amounts, PlainCloud

HOUR, DAY = 3600.0, 86_400.0
SLOTS = 96  # VCPUs of the whole cloud


@dataclass(frozen=True)
class Arrival:
    """The arrival of a request, with the request's class, lifetime, priority and time limit of its wait."""

    at: float
    kind: str
    lifetime: float
    priority: int = 0
    wait: float = 2 * DAY


class WaitObserver(Protocol):
    """Receives the waits of a simulated cloud, as the owner of waiting requests reports them."""

    def enter(
        self, request: str, kind: str, lacks: str, priority: int, position: int, now: float
    ) -> None: ...

    def leave(self, request: str, now: float, *, started: bool) -> None: ...


@dataclass
class LoadedCloud:
    """A simulated cloud whose requests arrive, wait, run and end in virtual time."""

    kinds: Mapping[str, Amounts]
    observer: WaitObserver
    hosts: int = 12
    placed: int = 0
    _ends: list[tuple[float, int, str, str]] = field(default_factory=list)
    _asked: dict[str, Arrival] = field(default_factory=dict)
    _limits: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = {"VCPU": SLOTS // self.hosts}
        self.cloud = PlainCloud({f"h{number}": shape for number in range(self.hosts)}, self.kinds)
        self._ties = count()

    def run(self, arrivals: Iterator[Arrival], waits: int) -> None:
        """Let requests arrive until this many of them have waited."""
        entered = 0
        for number, arrival in enumerate(arrivals):
            self._advance(arrival.at)
            if entered >= waits:
                return
            entered += self._arrive(number, arrival)

    def _arrive(self, number: int, arrival: Arrival) -> bool:
        cloud, key = self.cloud, (-arrival.priority, arrival.at, f"r{number:07}")
        request, kind = key[-1], arrival.kind
        self._asked[request] = arrival
        new = Contender("", arrival.priority, arrival.at)
        if not cloud.queues.ahead(kind, new):
            roots = cloud.place(kind, cloud.queues.barred(new))
            if roots:
                self._start(request, roots[0], arrival.at)
                return False
        cloud.enter(key, kind, cloud.queues.mark)
        heappush(self._limits, (arrival.at + arrival.wait, request))
        position, lacks = cloud.queues.place(request)
        self.observer.enter(request, kind, lacks, arrival.priority, position, arrival.at)
        self._play(arrival.at)
        return True

    def _advance(self, until: float) -> None:
        while True:
            end = self._ends[0][0] if self._ends else math.inf
            limit = self._limits[0][0] if self._limits else math.inf
            now = min(end, limit)
            if now > until:
                return
            if end <= limit:
                _, _, root, kind = heappop(self._ends)
                self.cloud.frees(root, **self.kinds[kind])
            else:
                _, request = heappop(self._limits)
                if request in self.cloud.waiting:
                    self.cloud.leave(request)
                    self.observer.leave(request, now, started=False)
            self._play(now)

    def _play(self, now: float) -> None:
        for request, root in self.cloud.plays(now):
            self.observer.leave(request, now, started=True)
            self._start(request, root, now)

    def _start(self, request: str, root: str, now: float) -> None:
        arrival = self._asked.pop(request)
        self.placed += 1
        heappush(self._ends, (now + arrival.lifetime, next(self._ties), root, arrival.kind))


Pattern = Callable[[random.Random], Iterator[Arrival]]
ONE = {"small": {"VCPU": 1}}
MIXED = {"small": {"VCPU": 1}, "medium": {"VCPU": 2}, "large": {"VCPU": 8}}


def steady(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests that use 1.0 of the capacity on average, with exponential lifetimes of one hour."""
    now = 0.0
    while True:
        now += chance.expovariate(SLOTS / HOUR)
        yield Arrival(now, "small", chance.expovariate(1 / HOUR), wait=6 * HOUR)


def daily_wave(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests that use between 0.5 and 1.4 of the capacity, depending on the time of day."""
    now = 0.0
    while True:
        load = 0.95 + 0.45 * math.sin(2 * math.pi * now / DAY)
        now += chance.expovariate(load * SLOTS / HOUR)
        yield Arrival(now, "small", chance.lognormvariate(math.log(HOUR) - 0.5, 1.0))


def bursts(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests that use 0.7 of the capacity, and bursts of 20 to 400 every 8 hours on average."""
    now, burst = 0.0, 8 * HOUR
    while True:
        now += chance.expovariate(0.7 * SLOTS / HOUR)
        yield Arrival(now, "small", chance.expovariate(1 / HOUR))
        if now >= burst:
            burst = now + chance.expovariate(1 / (8 * HOUR))
            for _ in range(chance.randint(20, 400)):
                yield Arrival(now, "small", chance.expovariate(1 / HOUR))


def changing_lifetimes(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests at 1.0 of the capacity; lifetimes alternate between 15 minutes and 6 hours."""
    now, change, mean = 0.0, 0.0, HOUR
    while True:
        if now >= change:
            change, mean = now + 12 * HOUR, HOUR * math.exp(chance.uniform(math.log(0.25), math.log(6)))
        now += chance.expovariate(SLOTS / mean)
        yield Arrival(now, "small", chance.expovariate(1 / mean), wait=12 * HOUR)


def jobs(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests of jobs: 10 to 40 instances that arrive and end together."""
    now = 0.0
    while True:
        now += chance.expovariate(1.0 * SLOTS / (25 * HOUR))
        lifetime = chance.uniform(0.2, 1.8) * HOUR
        for _ in range(chance.randint(10, 40)):
            yield Arrival(now, "small", lifetime * chance.uniform(0.98, 1.02), wait=12 * HOUR)


def mixed_flavors(chance: random.Random) -> Iterator[Arrival]:
    """Yield requests of two priorities for three flavors, of which one fills a whole host."""
    now = 0.0
    while True:
        now += chance.expovariate(0.9 * SLOTS / HOUR / 1.75)
        kind = chance.choices(["small", "medium", "large"], [0.7, 0.25, 0.05])[0]
        lifetime = chance.lognormvariate(math.log(HOUR) - 0.5, 1.0)
        yield Arrival(now, kind, lifetime, chance.choices([0, 5], [0.8, 0.2])[0], wait=12 * HOUR)


PATTERNS: dict[str, tuple[Pattern, Mapping[str, Amounts]]] = {
    "steady": (steady, ONE),
    "daily wave": (daily_wave, ONE),
    "bursts": (bursts, ONE),
    "changing lifetimes": (changing_lifetimes, ONE),
    "jobs": (jobs, ONE),
    "mixed flavors": (mixed_flavors, MIXED),
}
