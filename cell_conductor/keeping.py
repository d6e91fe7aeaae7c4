"""What a cell keeps room for: builds in a move, and what may be left of attempts; for audits."""

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
    """As a conductor stores it, of this version or the next."""

    attempt: int
    at: int
    until: float
    gone: bool = False
    above: int = 0
    kept: int = 0  # its keeper has the name of this attempt; 0: of its own


_leftovers = msgspec.json.Decoder(tuple[_Left, ...]).decode


class KeptByCell(Compact, frozen=True):
    """Of one build."""

    status: str
    attempt: int  # of its guest; in a move, of the one it is to be
    left: frozenset[int] = frozenset()  # attempts whose keepers keep what may still be there
    unreadable: bool = False  # what is left of it: nobody knows
    moves: bool = False  # it is in a move, whatever its status
    came: bool = False  # from another cell, which may know of attempts that this one does not

    @property
    def in_a_move(self) -> bool:
        return self.moves or self.status in ("moving", "verifying")

    def beside(self, other: "KeptByCell") -> "KeptByCell":
        """The same build, which has moved, as two cells know it."""
        here, gone = (other, self) if self.status == "moved" else (self, other)
        return KeptByCell(
            here.status,
            max(here.attempt, gone.attempt),
            here.left | gone.left,
            here.unreadable or gone.unreadable,
            here.in_a_move or gone.in_a_move,
            here.came or gone.came,
        )


async def keeping(database: Database, builds: Collection[str]) -> dict[str, KeptByCell]:
    """Those of the builds that this conductor knows."""
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


def _kept(status: str, attempt: int, leftovers: str, *, moves: bool, came: bool) -> KeptByCell:
    try:
        left = (
            frozenset(each.kept or each.attempt for each in _leftovers(leftovers))
            if leftovers
            else frozenset()
        )
    except msgspec.DecodeError:
        return KeptByCell(status, attempt, unreadable=True, moves=moves, came=came)
    return KeptByCell(status, attempt, left, moves=moves, came=came)
