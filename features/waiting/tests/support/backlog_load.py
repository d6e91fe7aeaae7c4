"""Backlogs of several projects, served by the real fair queue in batches, in virtual time."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from features.waiting.core.calibration import StartEstimate
from features.waiting.core.fair_queue import FairItem, FairQueue
from features.waiting.core.start_times import NewCounts, StartTimes, new_kind

SIZE = {"VCPU": 0.0001}
EVERY = 50  # of each project's arriving requests, every so many is compared with its estimate
QUESTION_SECONDS = 10.0  # so often, the estimate of a random request of each project is compared

Place = tuple[str, int, int]  # a request: its project, priority and number


@dataclass(frozen=True)
class Flood:
    """Requests of one project that arrive evenly from a time on."""

    at: float
    project: str
    requests: int
    seconds: float
    priority: int = 0


@dataclass
class ServedBacklog:
    """A scheduler in virtual time. `rate` returns how many requests a second are served from a time on."""

    rate: Callable[[float], float]
    batch: int
    chance: random.Random
    weights: dict[str, float] = field(default_factory=dict)
    times: StartTimes = field(default_factory=StartTimes)
    waits: list[tuple[float, StartEstimate]] = field(default_factory=list)
    unknown: int = 0

    def __post_init__(self) -> None:
        self._queue = FairQueue()
        self._queue.set_weights(self.weights)
        self._counts: dict[str, NewCounts] = {}
        self._arrived = Counter[tuple[str, int]]()
        self._done = Counter[tuple[str, int]]()
        self._asked: defaultdict[Place, list[tuple[float, StartEstimate]]] = defaultdict(list)
        self._busy: list[FairItem] = []
        self._busy_until = 0.0

    def run(self, floods: list[Flood]) -> None:
        """Serve all requests, in steps of a tenth of a second."""
        step, number, left = 0.1, 0, {flood: flood.requests for flood in floods}
        while any(left.values()) or self._counts:
            now = number * step
            for flood, requests in left.items():
                if flood.at <= now and requests:
                    arriving = min(max(int(flood.requests / flood.seconds * step), 1), requests)
                    left[flood] -= arriving
                    self._arrive(flood, arriving, now)
            self._serve(now, step)
            if number % 10 == 0:
                self.times.measure(self._counts, {}, now)
            if number % round(QUESTION_SECONDS / step) == 0:
                self._ask_at_random(now)
            number += 1

    def _arrive(self, flood: Flood, requests: int, now: float) -> None:
        project, priority = flood.project, flood.priority
        counts = self._counts.setdefault(project, NewCounts())
        counts.left[priority] += requests
        for _ in range(requests):
            self._arrived[project, priority] += 1
            place = project, priority, self._arrived[project, priority]
            key = -priority, now, f"{place[2]:09}"
            self._queue.push(FairItem(project, key, SIZE, place))
            if place[2] % EVERY == 0:
                self._ask(place, now)

    def _ask(self, place: Place, now: float) -> None:
        project, priority, number = place
        counts = self._counts[project]
        before = number - 1 - self._done[project, priority]
        before += sum(left for other, left in counts.left.items() if other > priority)
        start = self.times.estimate(new_kind(project), priority, before + 1, now)
        if start is None:
            self.unknown += 1
        else:
            self._asked[place].append((now, start))

    def _ask_at_random(self, now: float) -> None:
        for project, counts in self._counts.items():
            for priority, left in counts.left.items():
                if left:
                    number = self._done[project, priority] + self.chance.randint(1, left)
                    self._ask((project, priority, number), now)

    def _serve(self, now: float, step: float) -> None:
        """Serve batches until the next step."""
        while self._busy_until < now + step:
            ended = max(self._busy_until, now)
            for item in self._busy:
                self._on_done(item.value, ended)
            self._busy = self._pop()
            if not self._busy:
                return
            seconds = len(self._busy) / self.rate(ended) * self.chance.lognormvariate(0.0, 0.3)
            self._busy_until = ended + seconds

    def _pop(self) -> list[FairItem]:
        batch: list[FairItem] = []
        while len(batch) < self.batch and (item := self._queue.pop()) is not None:
            batch.append(item)
        return batch

    def _on_done(self, place: Place, now: float) -> None:
        project, priority, _ = place
        self._done[project, priority] += 1
        counts = self._counts[project]
        counts.on_done(priority)
        for since, start in self._asked.pop(place, ()):
            self.waits.append((now - since, start))
        if not counts.left.total():
            del self._counts[project]


def steady(chance: random.Random) -> ServedBacklog:
    """Return a scheduler that has served three floods of one project, at an even pace."""
    served = ServedBacklog(lambda now: 300.0, 1280, chance)
    served.run([Flood(60.0 * number, "p", 12_000, 10.0) for number in range(4)])
    return served


def competing(chance: random.Random) -> ServedBacklog:
    """Return a scheduler with four projects whose floods begin and end at any time, and halve the pace."""
    served = ServedBacklog(lambda now: 200.0, 64, chance, weights={"p1": 2.0, "p2": 4.0})
    served.run(
        [
            Flood(chance.uniform(0, 900), f"p{chance.randrange(4)}", round(2 ** chance.uniform(9, 14)), 10.0)
            for _ in range(25)
        ]
    )
    return served


def changing(chance: random.Random) -> ServedBacklog:
    """Return a scheduler whose pace changes every minute, up to eightfold, and which pauses for 20 s."""
    rates = [50.0 * 2 ** chance.uniform(0, 3) for _ in range(200)]

    def rate(now: float) -> float:
        return 20.0 if now % 333 < 20 else rates[int(now / 60) % len(rates)]

    served = ServedBacklog(rate, 256, chance)
    served.run([Flood(150.0 * number, f"p{number % 3}", 10_000, 30.0) for number in range(10)])
    return served


def urgent(chance: random.Random) -> ServedBacklog:
    """Return a scheduler with one project whose later requests have a higher priority in part."""
    served = ServedBacklog(lambda now: 150.0, 128, chance)
    floods = [Flood(400.0 * number, "p", 20_000, 30.0) for number in range(2)]
    floods += [Flood(chance.uniform(0, 700), "p", chance.randint(300, 2_000), 5.0, 5) for _ in range(20)]
    served.run(floods)
    return served


BACKLOGS = {"steady": steady, "competing": competing, "changing": changing, "urgent": urgent}
