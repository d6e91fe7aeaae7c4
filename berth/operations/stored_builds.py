"""Reads the stored builds of a cell for audits and repairs, with the resources that each should hold."""

from collections.abc import Collection, Sequence

import msgspec

from berth.kit.audit_records import OperationMark, ReadMarks
from bus.messages import Selection
from bus.sql.database import Database
from bus.sql.statement import sql
from bus.vocabulary import Compact
from cell_conductor.core.build import Leftover
from cell_conductor.store import BUILD, BUILDS, StoredForm, decode_leftovers

_SELECT = sql("""
    SELECT builds.id, builds.status, builds.attempt, builds.leftovers
    FROM {n: id str} JOIN builds ON builds.id = n.id
""")


_CENSUS = sql(f"SELECT id, version, status, root, generation FROM {BUILDS}")


class Standing(Compact, frozen=True):
    """The status, host and generation of a build, which `berth audit check` compares with placement."""

    status: str
    root: str
    generation: int | None
    version: int = 0  # version of the build's record; every change raises it


async def census(database: Database) -> dict[str, Standing]:
    """Return status, host and generation of each build of this cell by its id, for `berth audit check`."""
    async with database.read() as tx:
        rows = await _CENSUS(tx)
    names = Standing.__struct_fields__
    return {row["id"]: Standing(*(row[name] for name in names)) for row in rows}


_UNMARKED = OperationMark()


class HeldByCell(Compact, frozen=True):
    """The cell's record of a build; `berth audit check` derives from it which resources the build should
    hold.
    """

    status: str
    attempt: int  # attempt number of the guest; during a move, of the guest at the destination
    left: frozenset[int] = frozenset()  # attempt numbers of guests left behind
    unreadable: bool = False  # True if the record of guests left behind is unreadable
    mark: OperationMark = _UNMARKED

    def merged_with(self, other: "HeldByCell") -> "HeldByCell":
        """Return one record of a build of which two cells have a record: with the status in the build's
        present cell, the highest attempt, and all guests left behind.
        """
        is_left = self.mark.left or (self.has_ended and not other.has_ended)
        current, left = (other, self) if is_left else (self, other)
        marks = current.mark, left.mark
        return HeldByCell(
            current.status,
            max(current.attempt, left.attempt),
            current.left | left.left,
            current.unreadable or left.unreadable,
            OperationMark(
                any(mark.operating for mark in marks), any(mark.came for mark in marks), current.mark.left
            ),
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the build is deleted, failed, or has left the cell."""
        return self.mark.left or self.status in ("deleted", "error")


async def held_by_cell(
    database: Database, builds: Collection[str], marks_of_features: Sequence[ReadMarks] = ()
) -> dict[str, HeldByCell]:
    """Return, by build id, what a cell has recorded about instances, to compare their resources with
    placement's records.
    """
    marks: dict[str, OperationMark] = {}
    async with database.read() as tx:
        rows = await _SELECT(tx, [(build,) for build in builds])
        for read_marks in marks_of_features:
            marks |= await read_marks(tx, builds)
    found = {}
    for row in rows:
        left: tuple[Leftover, ...] = ()
        try:
            left, unreadable = decode_leftovers(row["leftovers"] or "[]"), False
        except msgspec.DecodeError:
            unreadable = True
        attempts = frozenset(each.holder_attempt or each.attempt for each in left)
        mark = marks.get(row["id"], _UNMARKED)
        found[row["id"]] = HeldByCell(row["status"], row["attempt"], attempts, unreadable, mark)
    return found


_ACTIVE = sql(f"SELECT {BUILD} FROM {BUILDS} WHERE status = 'active' AND placed <> ''")


class PlaceByCell(Compact, frozen=True):
    """The host and allocations of an active build, as recorded by its cell."""

    build: str
    cell: str
    version: int
    attempt: int
    generation: int | None
    host: Selection


async def places(database: Database) -> dict[str, PlaceByCell]:
    """Return, by build id, host and allocations of the cell's active builds; skip undecodable records."""
    async with database.read() as tx:
        rows = await _ACTIVE(tx)
    return {
        build.id: PlaceByCell(
            build.id, build.as_placed.cell, build.version, build.attempt, build.generation, build.host
        )
        for build in StoredForm().readable(rows)
    }
