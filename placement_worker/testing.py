"""All that tests and benchmarks of features import of placement, in addition to `placement_worker.extension`.

A builder of tests/support is shorter than these, wherever there is one: `tests.support.placement_builders`.
"""

from placement_worker.claim_rule import LOCKS
from placement_worker.core.capacity import ClaimedProvider, Stock, claim, release
from placement_worker.http.access import AccessPolicy, Identity
from placement_worker.indexed_source import IndexedSource
from placement_worker.memory import Take
from placement_worker.store.changes import LAST_CHANGE, TRIM
from placement_worker.store.changes import since as changes_since
from placement_worker.worker import Placement, placement_worker

__all__ = [
    "LAST_CHANGE",  # the SQL that locks the number of the last commit
    "LOCKS",  # the order in which rules lock rows
    "TRIM",  # deletes the oldest commits of the change log
    "AccessPolicy",  # which callers may do what over HTTP
    "ClaimedProvider",  # a provider as `claim` reads it: with generation, parent and inventories
    "Identity",  # a caller over HTTP
    "IndexedSource",  # the hosts that fit, searched in an index
    "Placement",  # the placement of a worker
    "Stock",  # the inventory of a class, as `claim` reads it
    "Take",  # loads an index from the database
    "changes_since",  # the commits in the change log
    "claim",  # decides a claim, without a database
    "placement_worker",  # the worker's table of rows
    "release",  # decides a release, without a database
]
