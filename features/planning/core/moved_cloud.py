"""The hosts and their instances while a planner tries moves."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.packing import PackingTrial, RowPacking
from bus.vocabulary import Id
from features.planning.core.usable_after import UsableAfterMoves
from scheduler_worker.core.extension import AlteredHost, Held, Shape

NEAREST = 3  # destinations tried for each instance, the best first
MOST_WORK = 10_000  # searches for destinations of one instance in one attempt: about half a second
MOST_STEPS = 60  # instances placed and withdrawn in the search for the destinations of one set
SLACK = 1e-9  # of amounts, which are whole numbers
NO_SHAPE = Shape(groups=())


@dataclass(frozen=True, slots=True, eq=False)
class MovableInstance:
    """An instance that may move: its amounts by resource class, and a mask of the hosts that its filters
    accept.
    """

    build: Id
    amounts: Floats
    accepted: Bools  # judged as if the hosts had no instances
    lives: bool = True  # it can move while it runs
    apart: Id | None = None  # an anti-affinity group: no two of its members move to one host
    held: Held = ()
    shape: Shape = NO_SHAPE  # of the request for its new host


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMove:
    """A move of a plan; `wave`: it begins when the moves of all lower waves have ended. `gain`: that of a
    rebalancing.
    """

    instance: MovableInstance
    source: int
    destination: int
    wave: int = 0
    gain: float = 0.0


@dataclass(frozen=True, eq=False)
class CloudState:
    """The hosts as a planner reads them. The numbers of hosts are the rows of `packing`. With `usable`, an
    instance moves to the host where it leaves most for the usual requests; else to the fullest.
    """

    packing: RowPacking
    instances: Mapping[int, Sequence[MovableInstance]]  # of the hosts with known instances
    forbidden: Mapping[Id, Collection[int]] = field(default_factory=dict)  # build → hosts that refused it
    usable: UsableAfterMoves | None = None


class MovedCloud:
    """The hosts after the moves tried so far. An instance holds both places while it moves, so a move into
    capacity that another move releases is of a later wave.
    """

    def __init__(self, cloud: CloudState, closed: Bools) -> None:
        self.cloud = cloud
        self.packing = cloud.packing.copy()
        self._trial, self._marks = PackingTrial(self.packing), list[int]()  # a mark for each move
        self.closed: Bools = closed.copy()  # hosts that are no destinations
        self._shut = closed
        self._closings: list[int] = []
        self.targets: list[int] = []  # hosts that get builds
        self._built: list[tuple[int, Sequence[Shape]]] = []  # the same hosts, and the shapes of the builds
        self._supposed_after: dict[int, AlteredHost] | None = {}  # None: moves have changed since
        self._kinds: dict[Id, Hashable] = {}
        self.known: Bools = np.zeros(len(cloud.packing), np.bool_)  # hosts with known instances
        self.known[list(cloud.instances)] = True
        self.moves: list[PlannedMove] = []
        self.moved: set[Id] = set()
        self.memo: dict[Hashable, Any] = {}  # results of searches, by what they depend on
        self._longest = max(map(len, cloud.instances.values()), default=0)
        self._sums: dict[int, Floats] = {}  # by host, as if nothing had moved
        self._summed: Bools = np.zeros(len(cloud.packing), np.bool_)
        self._work = 0  # searches for destinations so far
        self._apart: set[tuple[Id, int]] = set()  # group and the host to which a member moves

    @property
    def is_exhausted(self) -> bool:
        """Return whether the search has taken so long that it ends with what was found."""
        return self._work > MOST_WORK

    def staying(self, host: int) -> list[MovableInstance]:
        """Return the instances of a host that the plan does not move."""
        return [each for each in self.cloud.instances.get(host, ()) if each.build not in self.moved]

    def fewest(self, hosts: Ints, lacks: Floats) -> Ints:
        """Return for each host a lower bound of the number of instances that must leave to release what the
        host lacks; 0 if even all instances are not enough.
        """
        if not self._longest or not len(hosts):
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
        """Return an array with a row for each number of instances: the largest amount of each class that this
        number of a host's instances could release.
        """
        sums: Floats = np.zeros((self._longest, len(self.packing.classes)))
        if staying := self.staying(host):
            largest = np.sort(np.array([each.amounts for each in staying]), axis=0)[::-1]
            sums[: len(staying)] = largest
        return sums.cumsum(axis=0)

    def fitting(self, instance: MovableInstance) -> Ints:
        """Return the hosts to which an instance can move now."""
        fits = self._fitting(instance, self.packing, self.closed)
        fits[list(self._taken(instance))] = False
        return np.flatnonzero(fits)

    def _fitting(self, instance: MovableInstance, packing: RowPacking, closed: Bools) -> Bools:
        fits = instance.accepted & ~closed & packing.fits(instance.amounts)
        fits[list(self.cloud.forbidden.get(instance.build, ()))] = False
        return fits

    def _taken(self, instance: MovableInstance) -> set[int]:
        """Return the hosts to which members of the instance's anti-affinity group move."""
        return {host for group, host in self._apart if group == instance.apart}

    def destinations(self, instance: MovableInstance, most: int = NEAREST) -> list[int]:
        """Return hosts to which an instance can move: the host first where it costs least of what the usual
        requests could use, or if that is not known, the host with the least capacity left afterwards.

        Moves change few hosts. Unchanged hosts are taken from a list that is sorted once for instances of
        equal amounts.
        """
        self._work += 1
        changed = {host for move in self.moves for host in (move.source, move.destination)}
        changed.update(self.targets)
        taken = self._taken(instance)
        found: list[tuple[float, float, int]] = []
        for host, cost, left in zip(*self._at_first(instance), strict=True):
            if host not in changed and host not in taken and not self.closed[host]:
                found.append((float(cost), float(left), int(host)))
                if len(found) == most:
                    break
        found += [
            (self._cost(host, instance.shape), float(self.packing.left(instance.amounts, host)), host)
            for host in changed - taken
            if self.fits(instance, host)
        ]
        return [host for cost, _, host in sorted(found)[:most] if cost < np.inf]

    def kind(self, instance: MovableInstance) -> Hashable:
        """Return a key that is equal for instances with equal requests and destinations."""
        if (kind := self._kinds.get(instance.build)) is None:
            forbidden = self.cloud.forbidden.get(instance.build, ())
            hosts = id(instance.accepted), tuple(forbidden), instance.apart
            kind = instance.amounts.tobytes(), hosts, instance.shape
            self._kinds[instance.build] = kind
        return kind

    def _at_first(self, instance: MovableInstance) -> tuple[Ints, Floats, Floats]:
        """Return the hosts to which an instance can move if no other instance moves, the best first; what it
        costs there of what is usable; and the capacity that each host would have left with the instance.
        """
        key = self.kind(instance)
        if key not in self.memo:
            hosts = np.flatnonzero(self._fitting(instance, self.cloud.packing, self._shut))
            left, usable = self.cloud.packing.left(instance.amounts, hosts), self.cloud.usable
            costs: Floats = np.zeros(len(hosts)) if usable is None else usable.costs(instance.shape)[hosts]
            order = np.lexsort((left, costs))
            order = order[: np.searchsorted(costs[order], np.inf)]
            self.memo[key] = hosts[order], costs[order], left[order]
        found: tuple[Ints, Floats, Floats] = self.memo[key]
        return found

    def fits(self, instance: MovableInstance, host: int) -> bool:
        """Return whether an instance can move to a host now."""
        if self.closed[host] or not instance.accepted[host]:
            return False
        forbidden = self.cloud.forbidden.get(instance.build, ())
        return host not in forbidden and bool(self.packing.fits(instance.amounts, host))

    def _cost(self, host: int, shape: Shape) -> float:
        usable = self.cloud.usable
        return 0.0 if usable is None else usable.cost(self.supposed(host), shape)

    def costs(self, hosts: Ints, shapes: Sequence[Shape]) -> Floats:
        """Return for each host how much less of it the usual requests could use with instances of these
        shapes; 0 if that is not known.
        """
        usable = self.cloud.usable
        if usable is None:
            return np.zeros(len(hosts))
        if len(shapes) > 1:
            return np.array([usable.cost(self.supposed(host), *shapes) for host in hosts.tolist()])
        costs: Floats = usable.costs(*shapes)[hosts]
        for host in np.flatnonzero(np.isin(hosts, [*self.after])).tolist():
            costs[host] = usable.cost(self.supposed(int(hosts[host])), *shapes)
        return costs

    def lost(self, *builds: tuple[int, Sequence[Shape]]) -> float:
        """Return how much less of all hosts the usual requests could use, with further builds, than before
        the first move; 0 if that is not known.
        """
        return lost_by(self.cloud, self.moves, (*self._built, *builds))

    @property
    def after(self) -> dict[int, AlteredHost]:
        """Return the hosts that have changed."""
        if self._supposed_after is None:
            self._supposed_after = supposed_after(self.moves, self._built)
        return self._supposed_after

    def supposed(self, host: int) -> AlteredHost:
        """Return a host as it will be after the planned moves."""
        return self.after.get(host) or AlteredHost(host)

    def move(self, instance: MovableInstance, source: int, destination: int) -> None:
        """Record a move. Its wave begins when the moves away from its destination have ended."""
        self._supposed_after = None
        wave = max((move.wave + 1 for move in self.moves if move.source == destination), default=0)
        self.moves.append(PlannedMove(instance, source, destination, wave))
        self.moved.add(instance.build)
        if instance.apart is not None:
            self._apart.add((instance.apart, destination))
        self._marks.append(self._trial.mark())
        self._trial.claim(destination, instance.amounts)
        self._trial.release(source, instance.amounts)

    def repeat(self, moves: Sequence[PlannedMove]) -> None:
        """Record moves again that were withdrawn."""
        for move in moves:
            self.move(move.instance, move.source, move.destination)

    def undo(self, until: int) -> None:
        """Withdraw the last moves, so that `until` moves remain."""
        while len(self.moves) > until:
            self._supposed_after, move = None, self.moves.pop()
            instance = move.instance
            self.moved.discard(instance.build)
            if instance.apart is not None:
                self._apart.discard((instance.apart, move.destination))
            self._trial.undo(self._marks.pop())

    @contextmanager
    def closing(self, host: int) -> Iterator[None]:
        """While the `with` block runs, let no instance move to this host."""
        before = bool(self.closed[host])
        self.closed[host] = True
        self._closings.append(host)
        try:
            yield
        finally:
            self._closings.pop()
            self.closed[host] = before

    @property
    def state(self) -> Hashable:
        """Return a key that is equal after the same moves, builds and closed hosts."""
        moves = tuple([(move.instance.build, move.destination) for move in self.moves])
        return moves, tuple(self.targets), tuple(self._closings)

    def build(self, host: int, amounts: Floats, shapes: Sequence[Shape], *, closing: bool) -> None:
        """Record that a host gets a build of the given amounts; with `closing`, close the host to moves."""
        self._built.append((host, shapes))
        self._supposed_after = None
        self.packing.claim(host, amounts)
        self.closed[host] |= closing
        self.targets.append(host)

    def place_all(self, leaving: Sequence[MovableInstance], source: int) -> bool:
        """Move instances away from a host, the largest first; return False and change nothing if not all find
        destinations."""
        ordered = sorted(leaving, key=lambda each: -self.packing.size(each.amounts))
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


def supposed_after(
    moves: Sequence[PlannedMove], builds: Sequence[tuple[int, Sequence[Shape]]] = ()
) -> dict[int, AlteredHost]:
    """Return the hosts that differ after these moves and builds. An instance may move several times."""
    ways: dict[Id, tuple[MovableInstance, int, int]] = {}  # the first source, and the last destination
    for move in moves:
        build = move.instance.build
        source = ways[build][1] if build in ways else move.source
        ways[build] = move.instance, source, move.destination
    without: dict[int, list[Held]] = {}
    added: dict[int, list[Shape]] = {}
    for instance, source, destination in ways.values():
        if source != destination:
            without.setdefault(source, []).append(instance.held)
            added.setdefault(destination, []).append(instance.shape)
    for host, shapes in builds:
        added.setdefault(host, []).extend(shapes)
    return {
        host: AlteredHost(host, tuple(sorted(without.get(host, ()))), tuple(added.get(host, ())))
        for host in sorted({*without, *added})
    }


def lost_by(
    cloud: CloudState, moves: Sequence[PlannedMove], builds: Sequence[tuple[int, Sequence[Shape]]]
) -> float:
    """Return how much less of all hosts the usual requests could use after these moves and builds; 0 if that
    is not known.
    """
    usable = cloud.usable
    return 0.0 if usable is None else usable.lost(supposed_after(moves, builds).values())
