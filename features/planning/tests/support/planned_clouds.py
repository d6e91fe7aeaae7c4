"""Clouds of one resource class for planners of moves."""

import numpy as np

from bus.packing import RowPacking
from features.planning.core.moved_cloud import CloudState, MovableInstance
from tests.support.ids import uid


def cloud_of_sizes(*hosts: tuple[int, ...], whole: float = 16.0) -> CloudState:
    """Return hosts of `whole` processors with instances of these sizes."""
    everywhere = np.ones(len(hosts), np.bool_)
    instances = {
        host: [
            MovableInstance(uid(100 * host + at), np.array([float(size)]), everywhere)
            for at, size in enumerate(sizes)
        ]
        for host, sizes in enumerate(hosts)
    }
    free = np.array([[whole - sum(sizes)] for sizes in hosts])
    return CloudState(RowPacking(("VCPU",), free, np.full((len(hosts), 1), whole)), instances)
