"""Plans moves from the fullest hosts to emptier hosts, each with at least a stated gain.

The gain of a move is by how much the fuller of its two hosts becomes emptier, as a share of its capacity.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Floats
from features.planning.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove

FULLEST = 16  # hosts that are compared as sources


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

    def best_move(self, above: float) -> PlannedMove | None:
        best: PlannedMove | None = None
        for source in self.fullest(above):
            for instance in self.moved.staying(source):
                amount = float(instance.amounts[self.column])
                destination = self._emptiest(instance, source) if amount else None
                if destination is None:
                    continue
                gain = self.gain(source, destination, amount)
                if best is None or gain > best.gain + SLACK:
                    best = PlannedMove(instance, source, destination, gain=gain)
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


def plan_balance(
    cloud: CloudState, column: int, hosts: Bools, limits: BalanceLimits
) -> tuple[list[PlannedMove], float, float]:
    """Return the moves between the hosts of the mask `hosts`, in sequence; and the spread before and after
    all of them.

    The spread is the standard deviation of the used shares of the resource class in this column.
    """
    balancing, moves = _Balancing(cloud, column, hosts), list[PlannedMove]()
    before = spread(balancing.used)
    while len(moves) < limits.budget:
        move = balancing.best_move(limits.above)
        if move is None or move.gain < limits.gain - SLACK:
            break
        balancing.moved.move(move.instance, move.source, move.destination)
        moves.append(move)
    return moves, before, spread(balancing.used)


def spread(used: Floats) -> float:
    """Return the standard deviation of the used shares of hosts: 0 is balanced."""
    return float(used.std()) if used.size else 0.0


@dataclass
class ImbalanceWatch:
    """Decides when automatic rebalancing acts: only if moves with enough gain have existed
    for the hold time.
    """

    hold: float  # seconds
    _since: float | None = None

    def is_due(self, now: float, has_moves: bool) -> bool:
        """Return whether moves have been possible for so long that a rebalancing begins."""
        if not has_moves:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self.hold
