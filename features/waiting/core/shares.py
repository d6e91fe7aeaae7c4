"""The order of requests: by priority, then by the share of their project, then by age.

The share of a project is the part of the cloud's capacity that its requests were given (of the resource class
with the largest part), divided by its weight. It decreases: after `seconds` capacity counts 1/e (37 %). The
turn of a project is the time at which its share will have decreased to LEAST_SHARE. So a turn changes only
when the project is given capacity, and turns that were set at different times are comparable: a request whose
turn is set once is passed by those of other projects for a limited time.

New requests are ordered by what requests of their projects were evaluated (`core/fair_queue.py`), requests
that lack capacity by what capacity their projects were given (`core/waiting_queues.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import NamedTuple

from bus.vocabulary import Id

QueueKey = tuple[int, float, Id]  # negative priority, arrival, id: the lowest is the first of its project
Size = Mapping[str, float]  # resource class → fraction of the cloud's capacity

DECAY_SECONDS = 3600.0
LEAST_SHARE = 1e-6  # a project with a smaller share counts as one that was given nothing
LEAST_SIZE = 1e-9  # minimum size of a request, also if no host has the requested resources
MOST_KNOWN = 1000  # projects before those with less than LEAST_SHARE are forgotten


class Rank(NamedTuple):
    """The place of a request among those of all projects: the lowest rank is first."""

    priority: int  # negative: the highest priority is first
    turn: float
    since: float
    request: Id
    project: str

    @property
    def key(self) -> QueueKey:
        return self.priority, self.since, self.request

    def precedes(self, other: "Rank") -> bool:
        """Return whether this request goes first: inside a project by age, between projects by turn."""
        return self.key < other.key if self.project == other.project else self < other


class Contender(NamedTuple):
    """The properties of a request that decide its rank, together with the turn of its project. The project is
    empty for moves: they are not delayed by what their project was given.
    """

    project: str
    priority: int
    since: float

    @property
    def key(self) -> QueueKey:
        return -self.priority, self.since, ""


@dataclass(slots=True, eq=False)
class _Given:
    """The sizes that a project was given, by resource class, and its turn, as they count at the time `at`."""

    at: float
    parts: dict[str, float] = field(default_factory=dict)
    begun: float = 0.0  # a share that the project did not use, and that counts
    turn: float = 0.0


class Shares:
    """Decides whose request is next: each project gets capacity in proportion to its weight."""

    def __init__(self, seconds: float = DECAY_SECONDS) -> None:
        self._seconds = seconds
        self._weights: Mapping[str, float] = {}
        self._given: dict[str, _Given] = {}
        self._most_known = MOST_KNOWN

    def turn(self, project: str, now: float) -> float:
        """Return the project's position; the lowest one is next."""
        given = self._given.get(project)
        return now if given is None else max(given.turn, now)

    def exact_turn(self, project: str, now: float, without: Size = {}) -> float:  # noqa: B006
        """Return the turn of a project without the given sizes. It may be in the past, so that it also orders
        projects with less than LEAST_SHARE.
        """
        given = self._given.get(project)
        if given is None:
            return self._turn_of(project, _Given(now))
        if not without:
            return given.turn
        parts = {name: part - without.get(name, 0.0) for name, part in given.parts.items()}
        return self._turn_of(project, replace(given, parts=parts))

    def turn_after(self, project: str, size: Size, requests: int, now: float) -> float:
        """Return the turn that a project will have when it is given `requests` more requests of this size."""
        given = _Given(now) if project not in self._given else replace(self._given[project])
        self._add(given, size, requests if project else 0, now)
        return max(self._turn_of(project, given), now)

    def rank(self, project: str, key: QueueKey, now: float) -> Rank:
        """Return the rank of a request at the present turn of its project."""
        priority, since, request = key
        return Rank(priority, self.turn(project, now), since, request, project)

    def give(self, project: str, size: Size, requests: int, now: float) -> None:
        """Count `requests` requests of this size. Requests without a project (moves) do not count."""
        if project:
            given = self._known(project, now)
            self._add(given, size, requests, now)
            given.turn = self._turn_of(project, given)

    def begin(self, project: str, turn: float, now: float) -> None:
        """Let a project begin at a turn, if its own is earlier: the time without requests is no advantage."""
        given = self._known(project, now)
        if self.exact_turn(project, now) < turn:
            self._add(given, {}, 0, now)
            share = LEAST_SHARE * exp((turn - now) / self._seconds)
            given.begun = share - self._used(project, given)
            given.turn = turn

    def take_back(self, project: str, size: Size, at: float) -> None:
        """Subtract a request that was counted at the time `at`, and got no host."""
        if (given := self._given.get(project)) is not None:
            left = exp(min(at - given.at, 0.0) / self._seconds)
            for name, part in parts_of(size).items():
                given.parts[name] = max(given.parts.get(name, 0.0) - part * left, 0.0)
            given.turn = self._turn_of(project, given)

    def requests_until(self, turn: float, project: str, size: Size, now: float) -> int:
        """Return how many requests of this size a project can be given until its turn is after `turn`; at
        least 1.
        """
        given = self._given.get(project)
        parts = {} if given is None else given.parts
        left = 1.0 if given is None else exp((given.at - now) / self._seconds)
        limit = LEAST_SHARE * self.weight(project) * exp((turn - now) / self._seconds)
        possible = min((limit - parts.get(name, 0.0) * left) / part for name, part in parts_of(size).items())
        return max(int(possible) + 1, 1)

    def sizes(self, now: float) -> dict[str, float]:
        """Return the size that each project was given recently, as fraction of the cloud."""
        found = {}
        for project, given in self._given.items():
            size = max(given.parts.values(), default=0.0) * exp((given.at - now) / self._seconds)
            if size >= LEAST_SIZE:
                found[project] = size
        return found

    def set_weights(self, weights: Mapping[str, float]) -> bool:
        """Set the weights of projects; "" is the weight of all projects not listed. Return whether a weight
        has changed.
        """
        if weights == self._weights:
            return False
        self._weights = weights
        for project, given in self._given.items():
            given.turn = self._turn_of(project, given)
        return True

    def weight(self, project: str) -> float:
        """Return the weight of a project, or the default weight."""
        return self._weights.get(project, self._weights.get("", 1.0))

    def _known(self, project: str, now: float) -> _Given:
        given = self._given.get(project)
        if given is None:
            self._forget_small(now)
            given = self._given[project] = _Given(now)
            given.turn = self._turn_of(project, given)
        return given

    def _add(self, given: _Given, size: Size, requests: int, now: float) -> None:
        left = exp((given.at - now) / self._seconds)
        given.parts = {name: part * left for name, part in given.parts.items()}
        given.begun *= left
        given.at = now
        if requests:
            for name, part in parts_of(size).items():
                given.parts[name] = given.parts.get(name, 0.0) + requests * part

    def _used(self, project: str, given: _Given) -> float:
        return max(given.parts.values(), default=0.0) / self.weight(project)

    def _turn_of(self, project: str, given: _Given) -> float:
        share = given.begun + self._used(project, given)
        return given.at + self._seconds * log(max(share, LEAST_SIZE) / LEAST_SHARE)

    def _forget_small(self, now: float) -> None:
        if len(self._given) >= self._most_known:
            self._given = {project: given for project, given in self._given.items() if given.turn > now}
            self._most_known = max(2 * len(self._given), MOST_KNOWN)


def parts_of(size: Size) -> dict[str, float]:
    return {name: max(part, LEAST_SIZE) for name, part in size.items()} or {"": LEAST_SIZE}


def shares_of(served: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each project's fraction of the total size that all schedulers have served. `served` has the
    sizes by project of each scheduler.
    """
    total = Counter[str]()
    for sizes in served:
        total.update(sizes)
    everything = sum(total.values())
    return {project: size / everything for project, size in total.items()} if everything else {}
