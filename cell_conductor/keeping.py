"""The resources that a cell holds for moves and leftovers; used by audits."""

from collections.abc import Collection

import msgspec

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
    return {
        row["id"]: _kept(
            row["status"],
            row["attempt"],
            row["leftovers"],
            moves=bool(row["moves"]),
            came=bool(row["came"]),
        )
        for row in rows
    }


def _kept(status: str, attempt: int, leftovers: str, *, moves: bool, came: bool) -> HeldByCell:
    try:
        left = (
            frozenset(each.kept or each.attempt for each in _leftovers(leftovers))
            if leftovers
            else frozenset()
        )
    except msgspec.DecodeError:
        return HeldByCell(status, attempt, unreadable=True, moves=moves, came=came)
    return HeldByCell(status, attempt, left, moves=moves, came=came)
