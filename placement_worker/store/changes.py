"""The numbered changes: each commit takes the next numbers under the lock of one row, as its last statement.

So the numbers follow the order of commits without gaps, and a reader that sees a number finds all earlier
changes in the database.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.chunks import portions
from bus.replication import ChangesFound, PlacementChanged, ProviderChange
from bus.sql.statement import BoundStatement, Statement
from bus.sql.transaction import Transaction
from placement_worker.schema import LAST_CHANGE, LAST_TOLD, NAMES_EDITION

CHANGES_A_MESSAGE = 500
NEWS_BYTES = 512 * 1024  # of an answer
KEEP = 20_000  # numbers
KEEP_UNTOLD = 500_000  # numbers kept during an outage; readers notice a larger gap and read everything

_NEXT = (
    f"UPDATE changes SET number = number + :more WHERE id = {LAST_CHANGE} AND {{after}}"
    f" RETURNING number, (SELECT e.number FROM changes e WHERE e.id = {NAMES_EDITION}) AS edition"
)
# PostgreSQL does both in one round trip; SQLite knows no UPDATE inside another statement.
_NEXT_LOGGED = Statement(
    f"""
    WITH {{others}}next AS ({_NEXT}), logged AS (INSERT INTO change_log (number, changes)
    SELECT next.number - CAST(:more AS bigint) + n.nth, n.changes FROM next, {{n}})
    SELECT number, edition FROM next
    """,
    nth=int,
    changes=str,
)
_NEXT_ALONE = Statement(_NEXT)
_LAST = Statement(f"SELECT number FROM changes WHERE id = {LAST_CHANGE}")
_LOG = Statement(
    "INSERT INTO change_log (number, changes) SELECT n.number, n.changes FROM {n}", number=int, changes=str
)
_LOG_AGGREGATES = Statement(
    "INSERT INTO change_log (number, changes, aggregates) VALUES (:number, '[]', :aggregates)"
)
_LOG_CELLS = Statement("INSERT INTO change_log (number, changes, cells) VALUES (:number, '[]', :cells)")
_AFTER = Statement(
    """
    SELECT number, changes, aggregates, cells FROM change_log WHERE number > :after
    ORDER BY number LIMIT :most
    """
)
_NEWS = Statement(
    f"""
    SELECT l.number, l.changes, l.aggregates, l.cells, c.number AS last,
    (SELECT min(o.number) FROM change_log o) AS oldest
    FROM changes c LEFT JOIN (SELECT number, changes, aggregates, cells FROM change_log
    WHERE number > :after ORDER BY number LIMIT :most) l ON 1 = 1
    WHERE c.id = {LAST_CHANGE} ORDER BY l.number
    """
)
_UNTOLD = Statement(
    f"""
    SELECT l.number, l.changes, l.aggregates, l.cells FROM change_log l WHERE l.number >
    (SELECT c.number FROM changes c WHERE c.id = {LAST_TOLD} FOR UPDATE OF c) AND l.number > :known
    ORDER BY l.number LIMIT :most
    """
)
_TELL = Statement(f"UPDATE changes SET number = :number WHERE id = {LAST_TOLD} AND number < :number")
_TRIM = Statement(
    f"""
    DELETE FROM change_log WHERE number <= (SELECT number FROM changes WHERE id = {LAST_CHANGE}) - :keep
    AND (number <= (SELECT number FROM changes WHERE id = {LAST_TOLD})
    OR number <= (SELECT number FROM changes WHERE id = {LAST_CHANGE}) - :untold)
    """
)

_encode = msgspec.json.Encoder().encode
_changes = msgspec.json.Decoder(tuple[ProviderChange, ...])
_aggregates = msgspec.json.Decoder(tuple[Aggregate, ...])
_cells = msgspec.json.Decoder(tuple[RegisteredCell, ...])


async def announce(
    tx: Transaction, changes: Sequence[ProviderChange], writes: Sequence[BoundStatement] = ()
) -> tuple[list[PlacementChanged], int]:
    """Execute the writes, number the changes and log them. Return the messages and the edition of names. Must
    be the last statement of the transaction.
    """
    parts = list(portions(changes, CHANGES_A_MESSAGE))
    kept = [(nth, _encode(part).decode()) for nth, part in enumerate(parts, 1)]
    if tx.dialect == "postgresql":
        [(last, edition)] = await _NEXT_LOGGED.together(writes, tx, kept, more=len(parts))
    else:
        [(last, edition)] = await _NEXT_ALONE.together(writes, tx, more=len(parts))
        await _LOG(tx, [(last - len(parts) + nth, changes) for nth, changes in kept])
    announced = [
        PlacementChanged(number=last - len(parts) + nth, changes=tuple(part))
        for nth, part in enumerate(parts, 1)
    ]
    return announced, edition


async def announce_aggregates(tx: Transaction, aggregates: Sequence[Aggregate]) -> PlacementChanged:
    """Number and log new names and metadata of aggregates, as a separate change without providers, which
    older versions can read.
    """
    [(number, _)] = await _NEXT_ALONE(tx, more=1)
    await _LOG_AGGREGATES(tx, number=number, aggregates=_encode(aggregates).decode())
    return PlacementChanged(number=number, changes=(), aggregates=tuple(aggregates))


async def announce_cells(tx: Transaction, cells: Sequence[RegisteredCell]) -> PlacementChanged:
    """Number and log new states of cells."""
    [(number, _)] = await _NEXT_ALONE(tx, more=1)
    await _LOG_CELLS(tx, number=number, cells=_encode(cells).decode())
    return PlacementChanged(number=number, changes=(), cells=tuple(cells))


async def last_number(tx: Transaction) -> int:
    [(number,)] = await _LAST(tx)
    return int(number)


async def after(tx: Transaction, number: int, most: int) -> list[PlacementChanged]:
    """Return the stored changes after this number, in order."""
    return _messages(await _AFTER(tx, after=number, most=most))


async def news(tx: Transaction, number: int, most: int) -> ChangesFound:
    """Return the changes after a number that fit into one answer, with the oldest and the last number."""
    rows = await _NEWS(tx, after=number, most=most)
    kept: list[Any] = []
    room = NEWS_BYTES
    for number, changes, aggregates, cells, _, _ in rows:
        size = len(changes or "") + len(aggregates or "") + len(cells or "")
        if number is None or (kept and size > room):
            break
        kept.append((number, changes, aggregates, cells))
        room -= size
    return ChangesFound(changes=tuple(_messages(kept)), oldest=rows[0]["oldest"] or 0, last=rows[0]["last"])


async def untold(tx: Transaction, most: int, known: int = 0) -> list[PlacementChanged]:
    """Return changes that are not published yet, after the `known` one. In PostgreSQL concurrent callers
    wait.
    """
    return _messages(await _UNTOLD(tx, most=most, known=known))


async def tell(tx: Transaction, number: int) -> None:
    """Store the number of the last published change."""
    await _TELL(tx, number=number)


def _messages(rows: Sequence[Any]) -> list[PlacementChanged]:
    return [
        PlacementChanged(
            number=number,
            changes=_changes.decode(changes),
            aggregates=_aggregates.decode(aggregates) if aggregates else (),
            cells=_cells.decode(cells) if cells else (),
        )
        for number, changes, aggregates, cells in rows
    ]


async def trim(tx: Transaction) -> None:
    """Delete all but the last changes; keep many more while they are not published."""
    await _TRIM(tx, keep=KEEP, untold=KEEP_UNTOLD)
