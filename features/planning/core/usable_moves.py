"""Plans moves after which the usual requests can use more of the hosts, each with at least a stated gain.

The gain of a move is by how much more of its two hosts is usable, in average hosts. Each move is the one that
gains most at its time, so a plan that ends early has done the best moves.
"""

from collections.abc import Hashable, Iterator

import numpy as np

from bus.candidates import Bools, Floats
from features.planning.core.moved_cloud import SLACK, CloudState, MovableInstance, MovedCloud, PlannedMove
from features.planning.core.rebalancing import BalanceLimits
from features.planning.core.usable_after import UsableAfterMoves, with_less
from scheduler_worker.core.extension import AlteredHost

TRIED = 2  # destinations of an instance, because the best may be the host on which it is


class _Moving:
    def __init__(self, cloud: CloudState, usable: UsableAfterMoves, hosts: Bools) -> None:
        self.moved = MovedCloud(cloud, ~hosts)
        self._usable = usable
        self._sources = [host for host in cloud.instances if hosts[host]]
        # by source: its instances, each with how much more of the source is usable without it
        self._freed: dict[int, list[tuple[MovableInstance, float]]] = {}

    def best(self) -> PlannedMove | None:
        """Return the move that gains most; of equal moves, that of the smallest instance."""
        best: tuple[tuple[float, float], PlannedMove] | None = None
        destinations: dict[Hashable, list[tuple[int, float]]] = {}  # by kind of instance, with the costs
        for source, instance, freed in self._leaving():
            kind = self.moved.kind(instance)
            if kind not in destinations:
                hosts = np.array(self.moved.destinations(instance, TRIED), np.intp)
                costs = self.moved.costs(hosts, (instance.shape,))
                destinations[kind] = list(zip(hosts.tolist(), costs.tolist(), strict=True))
            others = [(host, cost) for host, cost in destinations[kind] if host != source]
            if not others:
                continue
            destination, cost = others[0]
            rank = round(cost - freed, 9), self.moved.packing.size(instance.amounts)
            if best is None or rank < best[0]:
                best = rank, PlannedMove(instance, source, destination, gain=-rank[0])
        return None if best is None else best[1]

    def _leaving(self) -> Iterator[tuple[int, MovableInstance, float]]:
        for source in self._sources:
            if source not in self._freed:
                staying, host = self.moved.staying(source), self.moved.supposed(source)
                now, *after = self._usable.values([host, *(with_less(host, each.held) for each in staying)])
                self._freed[source] = [
                    (each, value - now) for each, value in zip(staying, after, strict=True)
                ]
            for instance, freed in self._freed[source]:
                yield source, instance, freed

    def apply(self, move: PlannedMove) -> None:
        self.moved.move(move.instance, move.source, move.destination)
        for host in (move.source, move.destination):
            self._freed.pop(host, None)


def plan_usable(
    cloud: CloudState, usable: UsableAfterMoves, hosts: Bools, limits: BalanceLimits
) -> tuple[list[PlannedMove], Floats, Floats]:
    """Return the moves between the hosts of the mask `hosts`, in sequence; and for each row of the cloud how
    many instances of the usual shapes fit on the host before and after all of them; 0 for other hosts.
    """
    moving, moves = _Moving(cloud, usable, hosts), list[PlannedMove]()
    while len(moves) < limits.budget:
        move = moving.best()
        if move is None or move.gain < limits.gain - SLACK:
            break
        moving.apply(move)
        moves.append(move)
    before, count = np.zeros(len(hosts)), usable.capacity.instances
    before[hosts] = count([AlteredHost(host) for host in np.flatnonzero(hosts).tolist()])
    after, changed = before.copy(), moving.moved.after
    after[list(changed)] = count(list(changed.values()))
    return moves, before, after
