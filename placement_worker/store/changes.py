"""The numbered changes: each commit takes the next numbers under the lock of one row, as its last act.

So the numbers are in the order of commits and without gaps, and whoever reads a number finds in the database
all that happened up to it.
"""

from collections.abc import Sequence

import msgspec

from bus.database import Transaction
from bus.messages import PlacementChanged
from bus.vocabulary import ProviderChange
from placement_worker.schema import LAST_CHANGE, NAMES_EDITION
from placement_worker.store.statement import Statement

CHANGES_A_MESSAGE = 500
KEEP = 20_000  # numbers

_NEXT = (
    f"UPDATE changes SET number = number + :more WHERE id = {LAST_CHANGE}"
    f" RETURNING number, (SELECT e.number FROM changes e WHERE e.id = {NAMES_EDITION}) AS edition"
)
# PostgreSQL does both in one round trip; SQLite knows no UPDATE inside another statement.
_NEXT_LOGGED = Statement(
    f"WITH next AS ({_NEXT}), logged AS (INSERT INTO change_log (number, changes)"
    " SELECT next.number - CAST(:more AS bigint) + n.nth, n.changes FROM next, {n})"
    " SELECT number, edition FROM next",
    nth=int,
    changes=str,
)
_NEXT_ALONE = Statement(_NEXT)
_LAST = Statement(f"SELECT number FROM changes WHERE id = {LAST_CHANGE}")
_LOG = Statement(
    "INSERT INTO change_log (number, changes) SELECT n.number, n.changes FROM {n}", number=int, changes=str
)
_AFTER = Statement("SELECT number, changes FROM change_log WHERE number > :after ORDER BY number LIMIT :most")
_TRIM = Statement(
    f"DELETE FROM change_log WHERE number <= (SELECT number FROM changes WHERE id = {LAST_CHANGE}) - :keep"
)

_encode = msgspec.json.Encoder().encode
_changes = msgspec.json.Decoder(tuple[ProviderChange, ...])


async def announce(tx: Transaction, changes: Sequence[ProviderChange]) -> tuple[list[PlacementChanged], int]:
    """Number these changes, keep and emit them; and the edition of names that they must be written in.

    Nothing else may be written after it.
    """
    parts = [changes[at : at + CHANGES_A_MESSAGE] for at in range(0, len(changes), CHANGES_A_MESSAGE)]
    kept = [(nth, _encode(part).decode()) for nth, part in enumerate(parts, 1)]
    if tx.dialect == "postgresql":
        [(last, edition)] = await _NEXT_LOGGED(tx, kept, more=len(parts))
    else:
        [(last, edition)] = await _NEXT_ALONE(tx, more=len(parts))
        await _LOG(tx, [(last - len(parts) + nth, changes) for nth, changes in kept])
    announced = [
        PlacementChanged(number=last - len(parts) + nth, changes=tuple(part))
        for nth, part in enumerate(parts, 1)
    ]
    for message in announced:
        tx.emit(message)
    return announced, edition


async def last_number(tx: Transaction) -> int:
    [(number,)] = await _LAST(tx)
    return int(number)


async def after(tx: Transaction, number: int, most: int) -> list[PlacementChanged]:
    """The changes that are kept from this number on, in their order."""
    return [
        PlacementChanged(number=one, changes=_changes.decode(changes))
        for one, changes in await _AFTER(tx, after=number, most=most)
    ]


async def trim(tx: Transaction) -> None:
    """Keep no more than the last ones."""
    await _TRIM(tx, keep=KEEP)
