"""Numbers for new providers, reserved from the database in blocks.

With a known number a new provider can be written in one statement, also a root that refers to itself.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from bus.sql.database import Database
from bus.sql.statement import Statement
from placement_worker.schema import PROVIDER_NUMBERS

BLOCK = 200

_TAKE = Statement(
    f"""
    INSERT INTO changes (id, number)
    SELECT {PROVIDER_NUMBERS}, COALESCE(max(p.id), 0) + CAST(:more AS bigint) FROM resource_providers p
    WHERE true ON CONFLICT (id) DO UPDATE SET number = changes.number + CAST(:more AS bigint)
    RETURNING number
    """
)


class ProviderNumbers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._spare: list[int] = []

    @asynccontextmanager
    async def taken(self, most: int) -> AsyncIterator[Iterator[int]]:
        """Yield up to this many numbers; unused ones are kept for the next caller."""
        numbers = iter(await self._take(most))
        try:
            yield numbers
        finally:
            self._spare += numbers

    async def _take(self, most: int) -> list[int]:
        if len(self._spare) < most:
            more = max(BLOCK, most)
            async with self._database.write() as tx:
                [(last,)] = await _TAKE(tx, more=more)
            self._spare += range(last - more + 1, last + 1)
        taken, self._spare = self._spare[:most], self._spare[most:]
        return taken
