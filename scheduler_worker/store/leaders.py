"""The SQL of leaders: at most one scheduler does some work at a time."""

from bus.sql.statement import Transaction, sql


async def lead(tx: Transaction, work: str, scheduler: str, now: float, until: float) -> bool:
    """Make a scheduler the leader of some work until the given time, unless another scheduler leads it now;
    return whether the scheduler leads.
    """
    return bool(await _LEAD(tx, [(work, scheduler, until)], now=now))


async def resign(tx: Transaction, work: str, scheduler: str) -> None:
    await _RESIGN(tx, work=work, scheduler=scheduler)


_LEAD = sql("""
    INSERT INTO leaders (work, scheduler, until) SELECT n.work, n.scheduler, n.until
    FROM {n: work str, scheduler str, until float} WHERE true
    ON CONFLICT (work) DO UPDATE SET scheduler = excluded.scheduler, until = excluded.until
    WHERE leaders.scheduler = excluded.scheduler OR leaders.until < :now RETURNING work
""")
_RESIGN = sql("DELETE FROM leaders WHERE work = :work AND scheduler = :scheduler RETURNING work")
