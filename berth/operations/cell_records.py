"""Reads the records that all cells have of builds, for audits and repairs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from berth import composition, worker_roles
from berth.features import added
from berth.kit.audit_records import CellAuditPart
from berth.settings import Settings

if TYPE_CHECKING:
    from berth.kit.audit_records import ReleasedBuild
    from berth.operations.stored_builds import PlaceByCell
    from bus.sql.database import Database

R = TypeVar("R")

_ENDED = {"moved": 0, "error": 1, "deleted": 2}  # ended states; of several records the highest number counts


@dataclass(frozen=True)
class KnownBuild:
    """A cell's record of a build: state and host."""

    cell: str
    status: str
    root: str
    version: int


@dataclass
class BuildsByCell:
    """The builds that cells have recorded, and those that several cells have."""

    builds: dict[str, KnownBuild] = field(default_factory=dict)
    # the records of each build that several cells have recorded without an end
    doubled: dict[str, Sequence[KnownBuild]] = field(default_factory=dict)
    ended_elsewhere: list[str] = field(default_factory=list)  # sentences about other builds in several cells
    deleted: set[str] = field(default_factory=set)  # also of builds that were never in a cell
    failed: set[str] = field(default_factory=set)

    def add(self, build: str, records: Sequence[KnownBuild]) -> None:
        """Add a build with all cells' records of it. The build's state is that of the record without an end
        or, if all have ended, of a deleted, else a failed, else a moved record.
        """
        known = max(records, key=lambda record: _ENDED.get(record.status, len(_ENDED)))
        self.builds[build] = known
        if known.status == "deleted":
            self.deleted.add(build)
        elif known.status == "error":
            self.failed.add(build)
        present = [record for record in records if record.status != "moved"]
        open_ = [record for record in present if record.status not in _ENDED]
        if len(open_) > 1:
            self.doubled[build] = open_
        elif len(present) > 1:
            cells = " and ".join(f"{record.cell} ({record.status})" for record in present)
            self.ended_elsewhere.append(f"{build}: known in cells {cells}")


async def of_cells(
    settings: Settings, cells: Iterable[str], read: Callable[[Database], Awaitable[R]]
) -> AsyncIterator[tuple[str, R]]:
    """Call `read` with each cell's database, and yield the name of the cell and the result."""
    for cell in cells:
        database = composition.database_of(settings, worker_roles.Role("conductor", cell))
        try:
            yield cell, await read(database)
        finally:
            await database.close()


async def builds_by_cell(settings: Settings, cells: Sequence[str]) -> BuildsByCell:
    """Read the builds of these cells from their databases."""
    from berth.operations.stored_builds import (
        census,  # databases take long to load, and few commands read them
    )

    found = BuildsByCell()
    records: dict[str, list[KnownBuild]] = {}
    async for cell, builds in of_cells(settings, cells, census):
        for id_, standing in builds.items():
            if standing.status == "deleted" and not standing.root:
                found.deleted.add(id_)  # an order to delete a build that never was in this cell
                continue
            known = KnownBuild(cell, standing.status, standing.root, standing.version)
            records.setdefault(id_, []).append(known)
    found.deleted -= records.keys()
    for id_, of_build in records.items():
        found.add(id_, of_build)
    return found


async def places_by_cell(settings: Settings, cells: Sequence[str]) -> dict[str, PlaceByCell]:
    """Return the host and the allocations of each active build, by build, from the records of the cells."""
    from berth.operations.stored_builds import places

    return await _merged(settings, cells, places)


async def released_by_cell(settings: Settings, cells: Sequence[str]) -> dict[str, ReleasedBuild]:
    """Return by id the builds that features have without a host, such as shelved ones, from the records of
    the cells.
    """

    async def released(database: Database) -> dict[str, ReleasedBuild]:
        async with database.read() as tx:
            found = [await part.released(tx) for part in added(CellAuditPart, "cell_audit")]
        return {id_: build for each in found for id_, build in each.items()}

    return await _merged(settings, cells, released)


async def _merged(
    settings: Settings, cells: Sequence[str], read: Callable[[Database], Awaitable[dict[str, R]]]
) -> dict[str, R]:
    found: dict[str, R] = {}
    async for _, of_cell in of_cells(settings, cells, read):
        found |= of_cell
    return found
