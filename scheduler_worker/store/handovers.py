"""All SQL about moves between cells. Takes and returns values, never rows."""

from collections.abc import Collection, Iterable

import msgspec

from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from bus.vocabulary import Id
from scheduler_worker.core.move_state import DECIDED, Handover

_INSERT = Statement(
    """
    INSERT INTO handovers (move, build, state, at, story)
    SELECT n.move, n.build, n.state, CAST(:now AS double precision), n.story FROM {n} WHERE true
    ON CONFLICT (move) DO NOTHING RETURNING move
    """,
    move=str,
    build=str,
    state=str,
    story=str,
)
_SELECT = Statement(
    "SELECT handovers.move, handovers.story FROM {n} JOIN handovers ON handovers.move = n.move", move=str
)
_UPDATE = Statement(
    """
    UPDATE handovers SET state = n.state, story = n.story, at = CAST(:now AS double precision) FROM {n}
    WHERE handovers.move = n.move AND handovers.state = n.was RETURNING handovers.move
    """,
    move=str,
    state=str,
    was=str,
    story=str,
)
_UNTOLD = Statement(
    """
    UPDATE handovers SET at = CAST(:now AS double precision) WHERE move IN (SELECT move FROM handovers
    WHERE state = 'leaving' AND at < :before ORDER BY at LIMIT :most) RETURNING handovers.story
    """
)
_DECIDED = ", ".join(f"'{state}'" for state in DECIDED)
_PRUNE = Statement(
    f"""
    DELETE FROM handovers WHERE move IN (SELECT move FROM handovers
    WHERE state IN ({_DECIDED}) AND at < :before ORDER BY at LIMIT :most) RETURNING move
    """
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Handover).decode


async def add(tx: Transaction, orders: Iterable[Handover], now: float) -> None:
    """Store new moves between cells; stored moves stay unchanged."""
    rows = {
        order.placed.move: (order.placed.move, order.placed.build, order.state, _encode(order).decode())
        for order in orders
    }
    if rows:
        await _INSERT(tx, [rows[move] for move in sorted(rows)], now=now)


async def load(tx: Transaction, moves: Collection[Id]) -> dict[Id, Handover]:
    return {row["move"]: _decode(row["story"]) for row in await _SELECT(tx, [(move,) for move in moves])}


async def change(tx: Transaction, before: Handover, after: Handover, now: float) -> bool:
    """Store the new state of a move between cells; return False after a concurrent change."""
    row = (before.placed.move, after.state, before.state, _encode(after).decode())
    return bool(await _UPDATE(tx, [row], now=now))


async def untold(tx: Transaction, before: float, now: float, limit: int) -> list[Handover]:
    """Return moves whose source cell has not reported since the given time, and update their time."""
    return [_decode(row["story"]) for row in await _UNTOLD(tx, before=before, now=now, most=limit)]


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Delete the moves between cells that were decided before this time, and return their number."""
    return len(await _PRUNE(tx, before=before, most=limit))
