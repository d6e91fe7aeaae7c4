"""The rules of claims, one module each."""

from collections.abc import Sequence

from bus.sql.database import Database
from placement_worker.extension import Book, ClaimRule
from placement_worker.rules.group_limits import GroupLimits
from placement_worker.rules.groups import Groups
from placement_worker.rules.preemption import Preemption
from placement_worker.rules.quotas import Quotas
from placement_worker.rules.reservations import Reservations
from placement_worker.rules.topology import Topology


def claim_rules(database: Database, book: Book) -> Sequence[ClaimRule]:
    """Return the rules in the order in which they judge."""
    return (
        Reservations(database, book),
        Preemption(database, book),
        Groups(),
        Topology(database),
        Quotas(book),
        GroupLimits(book),
    )
