"""The SQL of the stop switch of rebalancing, and of exchanges of two instances that have not ended."""

from bus import parts
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id
from features.planning.messages import GuardExchange, PlannedStep

BALANCING = "rebalancing"  # the name of the stop switch, and of what one controller leads
MOST_SHOWN = 100

_encode = parts.stored_encoder().encode
_exchange = parts.stored_decoder(GuardExchange).decode


async def stop(tx: Transaction, now: float) -> None:
    await _STOP(tx, [(BALANCING, now)])


async def start(tx: Transaction) -> None:
    await _START(tx, switch=BALANCING)


async def stopped_since(tx: Transaction) -> float | None:
    """Return when an operator stopped all rebalancing; None if rebalancing is permitted."""
    rows = await _STOPPED(tx, switch=BALANCING)
    return rows[0]["since"] if rows else None


async def add_exchange(tx: Transaction, exchange: GuardExchange, now: float) -> None:
    """Store an exchange, to be checked after its `seconds`; a stored exchange stays as it is."""
    due = now + exchange.seconds
    await _ADD(tx, [(exchange.exchange, now, due, _encode(exchange).decode())])


async def is_due(tx: Transaction, now: float) -> bool:
    return bool(await _DUE(tx, now=now))


async def take_due(tx: Transaction, now: float, next_check: float) -> list[GuardExchange]:
    """Return the exchanges that are due, and postpone their next check: one scheduler checks each of them."""
    return [_exchange(row["record"]) for row in await _TAKE(tx, now=now, next=next_check)]


async def mark_half_done(tx: Transaction, exchange: Id) -> None:
    await _MARK(tx, id=exchange)


async def forget(tx: Transaction, exchange: Id) -> None:
    await _FORGET(tx, id=exchange)


async def half_done(tx: Transaction) -> tuple[PlannedStep, ...]:
    """Return the moves that are to be undone, the oldest first, at most MOST_SHOWN."""
    return tuple(_exchange(row["record"]).steps[0] for row in await _HALF_DONE(tx, most=MOST_SHOWN))


async def prune(tx: Transaction, before: float) -> None:
    await _PRUNE(tx, before=before)


_STOP = sql("""
    INSERT INTO stopped (switch, since) SELECT n.switch, n.since FROM {n: switch str, since float} WHERE true
    ON CONFLICT (switch) DO NOTHING RETURNING switch
""")
_START = sql("DELETE FROM stopped WHERE switch = :switch RETURNING switch")
_STOPPED = sql("SELECT since FROM stopped WHERE switch = :switch")
_ADD = sql("""
    INSERT INTO open_exchanges (id, at, due, half_done, record)
    SELECT n.id, n.at, n.due, false, n.record FROM {n: id str, at float, due float, record str} WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_DUE = sql("SELECT id FROM open_exchanges WHERE due <= :now LIMIT 1")
_TAKE = sql("UPDATE open_exchanges SET due = :next WHERE due <= :now RETURNING record")
_MARK = sql("UPDATE open_exchanges SET half_done = true WHERE id = :id RETURNING id")
_FORGET = sql("DELETE FROM open_exchanges WHERE id = :id RETURNING id")
_HALF_DONE = sql("SELECT record FROM open_exchanges WHERE half_done ORDER BY at, id LIMIT :most")
_PRUNE = sql("DELETE FROM open_exchanges WHERE at < :before RETURNING id")
