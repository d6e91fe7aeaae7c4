"""Plans moves from the fullest hosts to emptier hosts, each with at least a stated gain.

The gain of a move is by how much the fuller of its two hosts becomes emptier, as a share of its capacity. If
no single move gains enough, two instances change places; each of the two moves then counts half of the gain.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Floats
from features.planning.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove

FULLEST = 16  # hosts that are compared as sources
EMPTIEST = 16  # hosts that are compared as the other host of an exchange


@dataclass(frozen=True, slots=True, eq=False)
class BalancingStep:
    """One move, or an exchange of two instances by two moves, which have a gain only together."""

    moves: tuple[PlannedMove, ...]
    gain: float


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """The limits of a plan: the most moves (`budget`), the least gain of each, and the used share up to which
    a host keeps its instances.
    """

    budget: int
    gain: float
    above: float = 0.0


class _Balancing:
    def __init__(self, cloud: CloudState, column: int, hosts: Bools) -> None:
        self.moved = MovedCloud(cloud, ~hosts)
        self.whole: Floats = cloud.packing.whole[:, column]
        self.column = column
        self.hosts = np.flatnonzero(hosts & (self.whole > 0))

    @property
    def used(self) -> Floats:
        """Return, for each host in `hosts`, the used share of the resource class that is balanced."""
        used: Floats = 1 - self.moved.packing.free[self.hosts, self.column] / self.whole[self.hosts]
        return used

    def share(self, host: int, more: float = 0.0) -> float:
        return float(1 - (self.moved.packing.free[host, self.column] - more) / self.whole[host])

    def gain(self, source: int, destination: int, amount: float) -> float:
        before = max(self.share(source), self.share(destination))
        return before - max(self.share(source, -amount), self.share(destination, amount))

    def fullest(self, above: float) -> Iterator[int]:
        used = self.used
        order = np.argsort(-used, kind="stable")[:FULLEST]
        return (int(self.hosts[at]) for at in order.tolist() if used[at] > above)

    def best_move(self, above: float) -> BalancingStep | None:
        best: BalancingStep | None = None
        for source in self.fullest(above):
            for instance in self.moved.staying(source):
                amount = float(instance.amounts[self.column])
                destination = self._emptiest(instance, source) if amount else None
                if destination is None:
                    continue
                gain = self.gain(source, destination, amount)
                if best is None or gain > best.gain + SLACK:
                    best = BalancingStep((PlannedMove(instance, source, destination),), gain)
        return best

    def _emptiest(self, instance: MovableInstance, source: int) -> int | None:
        """Return the host that would be the emptiest after receiving an instance from `source`; None if the
        instance fits on no other host.
        """
        fitting = self.moved.fitting(instance)
        fitting = fitting[fitting != source]
        if not fitting.size:
            return None
        amount = float(instance.amounts[self.column])
        used = 1 - (self.moved.packing.free[fitting, self.column] - amount) / self.whole[fitting]
        return int(fitting[np.argmin(used)])

    def best_exchange(self, above: float) -> BalancingStep | None:
        best: BalancingStep | None = None
        emptiest = [int(self.hosts[at]) for at in np.argsort(self.used, kind="stable")[:EMPTIEST].tolist()]
        for source in self.fullest(above):
            for destination in emptiest:
                for step in self._exchanges(source, destination) if destination != source else ():
                    if best is None or step.gain > best.gain + SLACK:
                        best = step
        return best

    def _exchanges(self, source: int, destination: int) -> Iterator[BalancingStep]:
        """Yield the exchanges that fit and have a gain: an instance on the source for an instance on the
        destination with a smaller amount.
        """
        for leaving in self.moved.staying(source):
            if not self.moved.fits(leaving, destination):
                continue
            for coming in self.moved.staying(destination):
                amount = float(leaving.amounts[self.column] - coming.amounts[self.column])
                if amount <= 0 or (gain := self.gain(source, destination, amount)) <= 0:
                    continue
                # The first instance has left when the second arrives.
                with self.moved.packing.trying() as trial:
                    trial.release(source, leaving.amounts)
                    fits = self.moved.fits(coming, source)
                if fits:
                    moves = (
                        PlannedMove(leaving, source, destination),
                        PlannedMove(coming, destination, source, 1),
                    )
                    yield BalancingStep(moves, gain)

    def apply(self, step: BalancingStep) -> None:
        for move in step.moves:
            self.moved.move(move.instance, move.source, move.destination)


def plan_balance(
    cloud: CloudState, column: int, hosts: Bools, limits: BalanceLimits
) -> tuple[list[BalancingStep], float, float]:
    """Return the moves between the hosts of the mask `hosts`, in sequence; and the spread before and after
    all of them.

    The spread is the standard deviation of the used shares of the resource class in this column.
    """
    balancing, steps, budget = _Balancing(cloud, column, hosts), list[BalancingStep](), limits.budget
    before = spread(balancing.used)
    while budget > 0:
        step = balancing.best_move(limits.above)
        if step is None or step.gain < limits.gain - SLACK:
            step = balancing.best_exchange(limits.above) if budget > 1 else None
            if step is None or step.gain < 2 * limits.gain - SLACK:
                break
        balancing.apply(step)
        steps.append(step)
        budget -= len(step.moves)
    return steps, before, spread(balancing.used)


def spread(used: Floats) -> float:
    return float(used.std()) if used.size else 0.0


@dataclass
class ImbalanceWatch:
    """Decides when automatic rebalancing acts: only if moves with enough gain have existed
    for the hold time.
    """

    hold: float  # seconds
    _since: float | None = None

    def is_due(self, now: float, has_moves: bool) -> bool:
        if not has_moves:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self.hold

    def reset(self) -> None:
        """Begin a new hold time, after moves."""
        self._since = None

    def left(self, now: float) -> float | None:
        """Return the seconds until moves are due; None if no moves are needed."""
        return None if self._since is None else max(self._since + self.hold - now, 0.0)
