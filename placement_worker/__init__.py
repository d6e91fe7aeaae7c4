"""The placement worker, the only writer of providers, inventories, allocations and claims."""

from placement_worker.indexed_source import IndexedSource
from placement_worker.memory import Memory
from placement_worker.replicas import BusReader, Replica, replica
from placement_worker.worker import ANNOUNCES, Placement, placement_worker
