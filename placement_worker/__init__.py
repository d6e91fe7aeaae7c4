"""The only writer of resources: providers, inventories, allocations, claims and candidates."""

from placement_worker.memory import Memory
from placement_worker.placement import Placement
from placement_worker.replicas import Replica, replica
from placement_worker.source import IndexedSource
from placement_worker.store.audit import (
    StoredHolder,
    TreesOfConsumer,
    agents,
    breaches,
    custom_classes,
    holdings,
    in_two_zones,
    registered_cells,
    retired,
    stored_holders,
    trees_of_consumers,
)
from placement_worker.worker import ANNOUNCES, placement_worker

__all__ = [
    "ANNOUNCES",
    "IndexedSource",
    "Memory",
    "Placement",
    "Replica",
    "StoredHolder",
    "TreesOfConsumer",
    "agents",
    "breaches",
    "custom_classes",
    "holdings",
    "in_two_zones",
    "placement_worker",
    "registered_cells",
    "replica",
    "retired",
    "stored_holders",
    "trees_of_consumers",
]
