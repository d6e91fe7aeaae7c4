"""Reads of a cell for audits and repairs: all builds, resources held for moves and leftovers, and the
expected allocations of active builds.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from bus.messages import Selection
from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.vocabulary import Compact
from cell_conductor.schema import UNDER_WAY

_SELECT = Statement(
    "SELECT builds.id, builds.status, builds.attempt, builds.leftovers,"
    f" EXISTS (SELECT 1 FROM moves WHERE moves.build = builds.id AND moves.{UNDER_WAY}) AS moves,"
    ' EXISTS (SELECT 1 FROM moves WHERE moves.build = builds.id AND moves.placed LIKE \'%"out_of":"_%\''
    ' AND moves.placed NOT LIKE \'%"out_of":""%\') AS came'
    " FROM {n} JOIN builds ON builds.id = n.id",
    id=str,
)

_CENSUS = Statement("SELECT id, version, status, root, generation FROM builds")


class Standing(Compact, frozen=True):
    """The values of a build that an audit compares with placement."""

    status: str
    root: str
    generation: int | None
    version: int = 0  # of the build: every change raises it


async def census(database: Database) -> dict[str, Standing]:
    """Return every build of this conductor."""
    async with database.read() as tx:
        found = await _CENSUS(tx)
        return {
            row["id"]: Standing(row["status"], row["root"], row["generation"], row["version"])
            for row in found
        }


class _Left(Compact, frozen=True):
    """A leftover as stored by this version or the next."""

    attempt: int
    at: int
    until: float
    gone: bool = False
    above: int = 0
    kept: int = 0  # the attempt in the holder's name, if not this one; 0: this one


_leftovers = msgspec.json.Decoder(tuple[_Left, ...]).decode


class HeldByCell(Compact, frozen=True):
    """The resources that the cell holds for one build."""

    status: str
    attempt: int  # of its guest; during a move, of the destination
    left: frozenset[int] = frozenset()  # attempts with leftovers
    unreadable: bool = False  # its leftovers are unreadable
    moves: bool = False  # in a move, whatever its status
    came: bool = False  # from another cell, which may know more attempts

    @property
    def in_a_move(self) -> bool:
        return self.moves or self.status in ("moving", "verifying")

    def beside(self, other: "HeldByCell") -> "HeldByCell":
        """Merge the records of two cells about a build that moved between them."""
        here, gone = (other, self) if self.status == "moved" else (self, other)
        return HeldByCell(
            here.status,
            max(here.attempt, gone.attempt),
            here.left | gone.left,
            here.unreadable or gone.unreadable,
            here.in_a_move or gone.in_a_move,
            here.came or gone.came,
        )


async def keeping(database: Database, builds: Collection[str]) -> dict[str, HeldByCell]:
    """Return the records of the builds that this conductor has."""
    async with database.read() as tx:
        rows = await _SELECT(tx, [(build,) for build in builds])
    return {row["id"]: _held(row) for row in rows}


def _held(row: Mapping[str, Any]) -> HeldByCell:
    unreadable = False
    try:
        left = _leftovers(row["leftovers"]) if row["leftovers"] else ()
    except msgspec.DecodeError:
        left, unreadable = (), True
    attempts = frozenset(each.kept or each.attempt for each in left)
    moves, came = bool(row["moves"]), bool(row["came"])
    return HeldByCell(row["status"], row["attempt"], attempts, unreadable, moves, came)


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
                row["id"], placed.cell, row["version"], row["attempt"], row["generation"], host
            )
        after, more = rows[-1]["id"] if rows else "", len(rows) == _PAGE
    return found
