"""The limits of projects: SQL, and the copy in memory by which claims are judged."""

from collections import defaultdict

from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from features.quotas.budgets import QuotaLimits
from placement_worker.extension import Book, rules_edition

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


async def read_limits(tx: Transaction) -> tuple[int, QuotaLimits]:
    """Return the version of the data of rules, and the limits, which may already be of a later version."""
    edition = await rules_edition(tx)
    limits: dict[str, dict[str, int]] = defaultdict(dict)
    for project, resource, most in await _LIMITS(tx):
        limits[project][resource] = most
    return edition, QuotaLimits(dict(limits))


class CachedLimits:
    """The limits of projects, as this process has read them last."""

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book
        self._edition = -1
        self.limits = QuotaLimits()

    async def refresh(self) -> None:
        """Read the limits again if they may have changed."""
        while self._edition != self._book.rules_edition:
            async with self._database.read() as tx:
                self.learn(*await read_limits(tx))

    def learn(self, edition: int, limits: QuotaLimits) -> None:
        """Replace the limits, unless newer ones are known."""
        if edition >= self._book.rules_edition:
            self._edition = self._book.rules_edition = edition
            self.limits = limits
