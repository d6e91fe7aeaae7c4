"""The truth about resources: who has what, who holds it, what would fit."""

from placement_worker.placement import Placement
from placement_worker.schema import metadata
from placement_worker.source import IndexedSource
from placement_worker.store.audit import TreesOfConsumer, breaches, holdings, retired, trees_of_consumers
from placement_worker.worker import ANNOUNCES, placement_worker

__all__ = [
    "ANNOUNCES",
    "IndexedSource",
    "Placement",
    "TreesOfConsumer",
    "breaches",
    "holdings",
    "metadata",
    "placement_worker",
    "retired",
    "trees_of_consumers",
]
