"""Reads the owners of the hosts in a cell's message, under the locks of the judged rows."""

from collections.abc import Iterable, Mapping

from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from placement_worker.core.cell_limits import CellLimits
from placement_worker.core.claim_world import ClaimedProvider
from placement_worker.store import server_groups

_CELLS = Statement("SELECT h.root, h.cell FROM {n} JOIN hosts h ON h.root = n.root", root=str)


async def around(tx: Transaction, cell: str, rooms: Mapping[str, ClaimedProvider | None]) -> CellLimits:
    """Return the restrictions of this cell for the providers. An assignment of a root to another cell waits
    for their locks.
    """
    there = [room for room in rooms.values() if room is not None]
    roots = {room.root for room in there}
    cells = dict(await _CELLS(tx, [(root,) for root in roots])) if roots else {}
    strangers = [room.uuid for room in there if not cells.get(room.root)]
    return CellLimits(cell, cells, await server_groups.sharing(tx, strangers) if strangers else ())


async def of_roots(tx: Transaction, cell: str, roots: Iterable[str]) -> CellLimits:
    """Return the restrictions of this cell for the roots."""
    listed = [(root,) for root in dict.fromkeys(roots)]
    return CellLimits(cell, dict(await _CELLS(tx, listed)) if listed else {}, ())
