"""The SQL of the stop switch of rebalancing."""

from bus.sql.statement import Transaction, sql

BALANCING = "rebalancing"  # the name of the stop switch


async def stop(tx: Transaction, now: float) -> None:
    await _STOP(tx, [(BALANCING, now)])


async def start(tx: Transaction) -> None:
    await _START(tx, switch=BALANCING)


async def stopped_since(tx: Transaction) -> float | None:
    """Return when an operator stopped all rebalancing; None if rebalancing is permitted."""
    rows = await _STOPPED(tx, switch=BALANCING)
    return rows[0]["since"] if rows else None


_STOP = sql("""
    INSERT INTO stopped (switch, since) SELECT n.switch, n.since FROM {n: switch str, since float} WHERE true
    ON CONFLICT (switch) DO NOTHING RETURNING switch
""")
_START = sql("DELETE FROM stopped WHERE switch = :switch RETURNING switch")
_STOPPED = sql("SELECT since FROM stopped WHERE switch = :switch")
