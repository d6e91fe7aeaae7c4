"""The leaders of work: at most one scheduler at a time does it."""

from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.statement import sql


class Lead:
    """This scheduler's lead of some work. Another scheduler can lead `seconds` after the last renewal."""

    def __init__(self, database: Database, work: str, seconds: float, clock: Clock) -> None:
        self._database = database
        self._work = work
        self._seconds = seconds
        self._clock = clock
        self._scheduler = clock.uuid()
        self._until = 0.0

    async def renew(self) -> bool:
        """Return whether this scheduler leads. A lead that was renewed just now is not written again."""
        now = self._clock.now()
        if now + self._seconds * 2 / 3 >= self._until:
            until = now + self._seconds
            async with self._database.write() as tx:
                leads = await _LEAD(tx, [(self._work, self._scheduler, until)], now=now)
            self._until = until if leads else 0.0
        return self._until > 0

    async def resign(self) -> None:
        """End the lead, so that another scheduler can lead immediately."""
        async with self._database.write() as tx:
            await _RESIGN(tx, work=self._work, scheduler=self._scheduler)


_LEAD = sql("""
    INSERT INTO leaders (work, scheduler, until) SELECT n.work, n.scheduler, n.until
    FROM {n: work str, scheduler str, until float} WHERE true
    ON CONFLICT (work) DO UPDATE SET scheduler = excluded.scheduler, until = excluded.until
    WHERE leaders.scheduler = excluded.scheduler OR leaders.until < :now RETURNING work
""")
_RESIGN = sql("DELETE FROM leaders WHERE work = :work AND scheduler = :scheduler RETURNING work")
