"""What a cell keeps room for: builds in a move, and what may be left of attempts; for audits."""

from collections.abc import Collection

import msgspec

from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.vocabulary import Compact

_SELECT = Statement(
    "SELECT builds.id, builds.status, builds.attempt, builds.leftovers"
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

    @property
    def in_a_move(self) -> bool:
        return self.status in ("moving", "verifying")


async def keeping(database: Database, builds: Collection[str]) -> dict[str, KeptByCell]:
    """Those of the builds that this conductor knows."""
    async with database.read() as tx:
        rows = await _SELECT(tx, [(build,) for build in builds])
    return {row["id"]: _kept(row["status"], row["attempt"], row["leftovers"]) for row in rows}


def _kept(status: str, attempt: int, leftovers: str) -> KeptByCell:
    try:
        left = (
            frozenset(each.kept or each.attempt for each in _leftovers(leftovers))
            if leftovers
            else frozenset()
        )
    except msgspec.DecodeError:
        return KeptByCell(status, attempt, unreadable=True)
    return KeptByCell(status, attempt, left)
