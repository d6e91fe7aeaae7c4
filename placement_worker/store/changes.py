"""The numbered changes: each commit takes the next numbers under the lock of one row, as its last act.

So the numbers are in the order of commits and without gaps, and whoever reads a number finds in the database
all that happened up to it.
"""

from collections.abc import Sequence

from bus.database import Transaction
from bus.messages import PlacementChanged
from bus.vocabulary import ProviderChange
from placement_worker.store.statement import Statement

CHANGES_A_MESSAGE = 500

_NEXT = Statement("UPDATE changes SET number = number + :more WHERE id = 1 RETURNING number")
_LAST = Statement("SELECT number FROM changes WHERE id = 1")


async def announce(tx: Transaction, changes: Sequence[ProviderChange]) -> list[PlacementChanged]:
    """Number these changes and emit them. Nothing else may be written after it."""
    parts = [changes[at : at + CHANGES_A_MESSAGE] for at in range(0, len(changes), CHANGES_A_MESSAGE)]
    if not parts:
        return []
    [(last,)] = await _NEXT(tx, more=len(parts))
    first = last - len(parts) + 1
    announced = [
        PlacementChanged(number=first + position, changes=tuple(part)) for position, part in enumerate(parts)
    ]
    for message in announced:
        tx.emit(message)
    return announced


async def last_number(tx: Transaction) -> int:
    [(number,)] = await _LAST(tx)
    return int(number)
