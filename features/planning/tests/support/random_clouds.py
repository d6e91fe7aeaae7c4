"""Random clouds of hosts with two resource classes, for tests of planners."""

from random import Random

import numpy as np

from bus.candidates import Floats
from bus.packing import RowPacking
from features.planning.core.moved_cloud import CloudState, MovableInstance
from tests.support.ids import uid

SIZES = ((1, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16))


def packed(free: Floats, whole: float | tuple[int, ...] | Floats) -> RowPacking:
    """Return hosts with these free amounts and capacities, which may be equal for all hosts or classes."""
    return RowPacking(("VCPU", "MEMORY_MB"), free, np.broadcast_to(np.array(whole, np.float64), free.shape))


def a_cloud(
    chance: Random, hosts: int, whole: tuple[int, int], filled: float, immovable: float
) -> CloudState:
    """Return a cloud of equal hosts with instances of random sizes; each host is filled to about `filled`."""
    free = np.tile(np.array(whole, np.float64), (hosts, 1))
    instances: dict[int, list[MovableInstance]] = {}
    halves, everywhere = [np.arange(hosts) % 2 == number for number in (0, 1)], np.ones(hosts, np.bool_)
    for host in range(hosts):
        there = instances.setdefault(host, [])
        target = min(1.0, max(0.0, chance.gauss(filled, 0.08)))
        for number in range(64):
            size = np.array(chance.choice(SIZES), np.float64)
            if (free[host] < size).any() or free[host][0] - size[0] < whole[0] * (1 - target) - 1:
                continue
            free[host] -= size
            if chance.random() >= immovable:
                accepted = everywhere if chance.random() < 0.7 else halves[host % 2]
                there.append(MovableInstance(uid(64 * host + number), size, accepted, chance.random() < 0.8))
    return CloudState(packed(free, whole), instances)
