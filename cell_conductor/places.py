"""Expected allocations of active builds according to their cell; for audits and repairs."""

import msgspec

from bus.messages import Selection
from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.vocabulary import Compact

_PAGE = 2000
_ACTIVE = Statement(
    """
    SELECT id, version, attempt, generation, placed, story, moved FROM builds
    WHERE status = 'active' AND placed <> '' AND id > :after ORDER BY id LIMIT :most
    """
)


class _Placed(msgspec.Struct):
    chosen: Selection
    cell: str
    alternates: tuple[Selection, ...] = ()


class _StoredContext(Compact, frozen=True):
    """The first fields of the stored story."""

    cell: str
    at: int


class _Moved(Compact, frozen=True):
    hosts: tuple[Selection, ...] = ()


_placed = msgspec.json.Decoder(_Placed).decode
_story = msgspec.json.Decoder(_StoredContext).decode
_moved = msgspec.json.Decoder(_Moved).decode


class PlaceByCell(Compact, frozen=True):
    """The host and allocations of one active build."""

    build: str
    cell: str
    version: int
    attempt: int
    generation: int | None
    host: Selection


async def places(database: Database) -> dict[str, PlaceByCell]:
    """Return all active builds of this conductor, except unreadable ones."""
    found: dict[str, PlaceByCell] = {}
    after, more = "", True
    while more:
        async with database.read() as tx:
            rows = await _ACTIVE(tx, after=after, most=_PAGE)
        for row in rows:
            try:
                placed, at = _placed(row["placed"]), _story(row["story"]).at
                moved = _moved(row["moved"]) if row["moved"] else _Moved()
                host = (placed.chosen, *placed.alternates, *moved.hosts)[at]
            except (msgspec.DecodeError, IndexError):
                continue
            found[row["id"]] = PlaceByCell(
                row["id"],
                placed.cell,
                row["version"],
                row["attempt"],
                row["generation"],
                host,
            )
        after, more = rows[-1]["id"] if rows else "", len(rows) == _PAGE
    return found
