"""The free capacity of all hosts while a planner tries moves of instances, as arrays by host and class."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.vocabulary import Id

NEAREST = 3  # destinations tried for each instance, the fullest first
MOST_STEPS = 60  # instances placed and withdrawn in the search for the destinations of one set
SLACK = 1e-9  # of amounts, which are whole numbers


@dataclass(frozen=True, slots=True, eq=False)
class MovableInstance:
    """An instance that may move: its amounts by class, and a mask of the hosts that its filters accept."""

    build: Id
    amounts: Floats
    accepted: Bools  # as if these hosts were empty
    lives: bool = True  # it can move while it runs
    apart: Id | None = None  # an anti-affinity group: no two of its members move to one host


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMove:
    """A move of a plan; `wave`: it begins when the moves of all lower waves have ended."""

    instance: MovableInstance
    source: int
    destination: int
    wave: int = 0


@dataclass(frozen=True, eq=False)
class CloudState:
    """The hosts as a planner reads them: arrays with a row for each host and a column for each class."""

    free: Floats
    whole: Floats  # the capacities
    instances: Mapping[int, Sequence[MovableInstance]]  # of the hosts whose instances are known
    forbidden: Mapping[Id, Collection[int]] = field(default_factory=dict)  # build → hosts that refused it

    @property
    def scale(self) -> Floats:
        """Return the largest capacity of each class, by which amounts of several classes are compared."""
        scale: Floats = np.maximum(self.whole.max(axis=0, initial=0.0), 1.0)
        return scale


class MovedCloud:
    """The free capacity after the moves tried so far. A moving instance holds both places until its end."""

    def __init__(self, cloud: CloudState, closed: Bools) -> None:
        self.cloud = cloud
        self.scale = cloud.scale
        self.free: Floats = cloud.free.copy()
        self.closed: Bools = closed.copy()  # hosts that are no destinations
        self.moves: list[PlannedMove] = []
        self.moved: set[Id] = set()
        self.memo: dict[
            Hashable, Any
        ] = {}  # what searches have computed of hosts from which nothing has moved
        self._longest = max(map(len, cloud.instances.values()), default=0)
        self._sums: dict[int, Floats] = {}  # by host, as if nothing had moved
        self._summed: Bools = np.zeros(len(cloud.free), np.bool_)
        self._apart: set[tuple[Id, int]] = set()  # group and the host to which a member moves

    def size(self, amounts: Floats) -> float:
        return float((amounts / self.scale).sum())

    def staying(self, host: int) -> list[MovableInstance]:
        return [each for each in self.cloud.instances.get(host, ()) if each.build not in self.moved]

    def fewest(self, hosts: Ints, lacks: Floats) -> Ints:
        """Return for each host a lower bound of the number of instances that must leave it to release what
        it lacks; 0 if all that stay are not enough."""
        if not self._longest:
            return np.zeros(len(hosts), np.intp)
        for host in hosts[~self._summed[hosts]].tolist():
            self._sums[host] = self._largest_sums(host)
            self._summed[host] = True
        sums = np.array([self._sums[host] for host in hosts.tolist()])
        for at in np.flatnonzero(np.isin(hosts, [move.source for move in self.moves])).tolist():
            sums[at] = self._largest_sums(int(hosts[at]))
        short = sums < (lacks - SLACK)[:, np.newaxis]
        fewest: Ints = np.where(short[:, -1].any(axis=1), 0, short.sum(axis=1).max(axis=1) + 1)
        return fewest

    def _largest_sums(self, host: int) -> Floats:
        """Return for each number of instances the largest amounts that so many could release, by class."""
        sums: Floats = np.zeros((self._longest, len(self.scale)))
        if staying := self.staying(host):
            largest = np.sort(np.array([each.amounts for each in staying]), axis=0)[::-1]
            sums[: len(staying)] = largest
        return sums.cumsum(axis=0)

    def fitting(self, instance: MovableInstance) -> Ints:
        """Return the hosts to which an instance can move now."""
        fits = instance.accepted & ~self.closed
        for column, amount in enumerate(instance.amounts.tolist()):
            if amount:
                fits &= self.free[:, column] >= amount - SLACK
        for host in self.cloud.forbidden.get(instance.build, ()):
            fits[host] = False
        for group, host in self._apart:
            if group == instance.apart:
                fits[host] = False
        return np.flatnonzero(fits)

    def destinations(self, instance: MovableInstance, most: int = NEAREST) -> list[int]:
        """Return hosts to which an instance can move, the host that it would fill most first."""
        rows = self.fitting(instance)
        if rows.size == 0:
            return []
        left = ((self.free[rows] - instance.amounts) / self.scale).sum(axis=1)
        some: list[int] = rows[np.argsort(left, kind="stable")[:most]].tolist()
        return some

    def move(self, instance: MovableInstance, source: int, destination: int) -> None:
        """Record a move, after the moves that release the capacity of its destination."""
        wave = max((move.wave + 1 for move in self.moves if move.source == destination), default=0)
        self.moves.append(PlannedMove(instance, source, destination, wave))
        self.moved.add(instance.build)
        if instance.apart is not None:
            self._apart.add((instance.apart, destination))
        self.free[destination] -= instance.amounts
        self.free[source] += instance.amounts

    def undo(self, until: int) -> None:
        """Withdraw the last moves, so that `until` moves remain."""
        while len(self.moves) > until:
            move = self.moves.pop()
            instance = move.instance
            self.moved.discard(instance.build)
            if instance.apart is not None:
                self._apart.discard((instance.apart, move.destination))
            self.free[move.destination] += instance.amounts
            self.free[move.source] -= instance.amounts

    @contextmanager
    def closing(self, host: int) -> Iterator[None]:
        """While the `with` block runs, let no instance move to this host."""
        before = bool(self.closed[host])
        self.closed[host] = True
        try:
            yield
        finally:
            self.closed[host] = before

    def place_all(self, leaving: Sequence[MovableInstance], source: int) -> bool:
        """Move instances away from a host, the largest first; return False and change nothing if not all find
        destinations."""
        ordered = sorted(leaving, key=lambda each: -self.size(each.amounts))
        steps = MOST_STEPS

        def place(at: int) -> bool:
            nonlocal steps
            if at == len(ordered):
                return True
            for destination in self.destinations(ordered[at]):
                steps -= 1
                if steps < 0:
                    return False
                self.move(ordered[at], source, destination)
                if place(at + 1):
                    return True
                self.undo(len(self.moves) - 1)
            return False

        return place(0)
