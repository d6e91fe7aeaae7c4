"""The rules of claims, one module each."""

from collections.abc import Sequence

from bus.sql.database import Database
from placement_worker.extension import Book, ClaimRule
from placement_worker.rules.group_limits import GroupLimitRule
from placement_worker.rules.groups import GroupRule
from placement_worker.rules.preemption import PreemptionRule
from placement_worker.rules.quotas import QuotaRule
from placement_worker.rules.reservations import ReservationRule
from placement_worker.rules.topology import TopologyRule


def claim_rules(database: Database, book: Book) -> Sequence[ClaimRule]:
    """Return the rules in the order in which they judge."""
    return (
        ReservationRule(database, book),
        PreemptionRule(database, book),
        GroupRule(),
        TopologyRule(database),
        QuotaRule(book),
        GroupLimitRule(book),
    )
