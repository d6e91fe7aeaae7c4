"""SQL for the limits of projects.

The version of the limits is in the row of the last change number, which every commit updates: a process with
outdated cached limits detects this at its next commit, and repeats the transaction with the new limits.
"""

from collections import defaultdict

from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.quotas import QuotaLimits
from placement_worker.store.changes import LAST_CHANGE

_EDITION = sql(f"SELECT quotas FROM changes WHERE id = {LAST_CHANGE}")
_NEW_EDITION = sql(f"UPDATE changes SET quotas = quotas + 1 WHERE id = {LAST_CHANGE} RETURNING quotas")
_LIMITS = sql("SELECT project, resource, most FROM quotas")
SET = sql("""
    INSERT INTO quotas (project, resource, most) SELECT n.project, n.resource, n.most
    FROM {n: project str, resource str, most int} WHERE true
    ON CONFLICT (project, resource) DO UPDATE SET most = excluded.most
""")
UNSET = sql("""
    DELETE FROM quotas WHERE EXISTS (SELECT 1 FROM {n: project str, resource str}
    WHERE n.project = quotas.project AND n.resource = quotas.resource)
""")


async def quotas_edition(tx: Transaction) -> int:
    [(edition,)] = await _EDITION(tx)
    return int(edition)


async def new_edition(tx: Transaction) -> int:
    """Increase and return the version of the limits; no other transaction commits before this one ends."""
    [(edition,)] = await _NEW_EDITION(tx)
    return int(edition)


async def read_limits(tx: Transaction) -> tuple[int, QuotaLimits]:
    """Return the version of the limits, and the limits, which may already be of a later version."""
    edition = await quotas_edition(tx)
    limits: dict[str, dict[str, int]] = defaultdict(dict)
    for project, resource, most in await _LIMITS(tx):
        limits[project][resource] = most
    return edition, QuotaLimits(dict(limits))
