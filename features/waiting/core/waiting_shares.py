"""Gives each project a turn among the projects with waiting requests: the later, the more capacity it was
given recently.

The share of a project is the part of the cloud's capacity that its requests were given (of the resource class
with the largest part), divided by its weight. It decreases: after DECAY_SECONDS capacity counts 1/e (37 %).
The turn of a project is the time at which its share will have decreased to LEAST_SHARE, and not before now.
So a turn changes only when the project is given capacity, and turns that were set at different times are
comparable: a request whose turn is set once is passed by those of other projects for a limited time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import NamedTuple

from bus.vocabulary import Id
from features.waiting.core.fair_queue import LEAST_SIZE, Size

QueueKey = tuple[int, float, Id]  # negative priority, arrival, id: the lowest is the first of its project

DECAY_SECONDS = 3600.0
LEAST_SHARE = 1e-6  # a project with a smaller share counts as one that was given nothing
MOST_KNOWN = 1000  # projects before those with less than LEAST_SHARE are forgotten


class Rank(NamedTuple):
    """The place of a waiting request among those of all projects: the lowest rank is first."""

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
    """The capacity that a project was given, by resource class, as it counts at the time `at`."""

    at: float
    parts: dict[str, float] = field(default_factory=dict)
    turn: float = 0.0


class WaitingShares:
    def __init__(self) -> None:
        self._weights: Mapping[str, float] = {}
        self._given: dict[str, _Given] = {}

    def turn(self, project: str, now: float) -> float:
        given = self._given.get(project)
        return now if given is None else max(given.turn, now)

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
        """Count `requests` requests of this size that are given capacity. Requests without a project do not
        count.
        """
        if not project:
            return
        given = self._given.get(project)
        if given is None:
            self._forget_small(now)
            given = self._given[project] = _Given(now)
        self._add(given, size, requests, now)
        given.turn = self._turn_of(project, given)

    def take_back(self, project: str, size: Size, at: float) -> None:
        """Subtract a request that was counted at the time `at`, and got no host."""
        if (given := self._given.get(project)) is not None:
            left = exp(min(at - given.at, 0.0) / DECAY_SECONDS)
            for name, part in _parts(size).items():
                given.parts[name] = max(given.parts.get(name, 0.0) - part * left, 0.0)
            given.turn = self._turn_of(project, given)

    def requests_until(self, turn: float, project: str, size: Size, now: float) -> int:
        """Return how many requests of this size a project can be given until its turn is after `turn`; at
        least 1.
        """
        given = self._given.get(project)
        parts = {} if given is None else given.parts
        left = 1.0 if given is None else exp((given.at - now) / DECAY_SECONDS)
        limit = LEAST_SHARE * self._weight(project) * exp((turn - now) / DECAY_SECONDS)
        possible = min((limit - parts.get(name, 0.0) * left) / part for name, part in _parts(size).items())
        return max(int(possible) + 1, 1)

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

    def _weight(self, project: str) -> float:
        return self._weights.get(project, self._weights.get("", 1.0))

    def _add(self, given: _Given, size: Size, requests: int, now: float) -> None:
        left = exp((given.at - now) / DECAY_SECONDS)
        given.parts = {name: part * left for name, part in given.parts.items()}
        given.at = now
        for name, part in _parts(size).items():
            given.parts[name] = given.parts.get(name, 0.0) + requests * part

    def _turn_of(self, project: str, given: _Given) -> float:
        share = max(given.parts.values(), default=0.0) / self._weight(project)
        return given.at + DECAY_SECONDS * log(max(share, LEAST_SHARE) / LEAST_SHARE)

    def _forget_small(self, now: float) -> None:
        if len(self._given) >= MOST_KNOWN:
            self._given = {project: given for project, given in self._given.items() if given.turn > now}


def _parts(size: Size) -> Size:
    return {name: max(part, LEAST_SIZE) for name, part in size.items()} or {"": LEAST_SIZE}
