"""Reads of a cell for lists, audits and repairs: builds page by page, resources held for moves and leftovers,
and the expected allocations of active builds.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from bus.messages import Selection
from bus.queries import FindInstances, Instance, InstancesFound
from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.vocabulary import Compact
from cell_conductor.core.build import Build
from cell_conductor.schema import UNDER_WAY, UNSETTLED, UNSETTLED_STATUSES, status_in
from cell_conductor.store import BUILD, readable

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


_WANTED = {
    "project": "project = :project",
    "host": "(host = :host OR root = :host)",
    "name": "name = :name AND name <> ''",
}


class Listing:
    """Answers queries for builds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements: dict[str, Statement] = {}

    async def find(self, question: FindInstances) -> InstancesFound:
        given = {name: value for name in _WANTED if (value := getattr(question, name))}
        conditions = [_WANTED[name] for name in given]
        if question.statuses:
            conditions.append(status_in(question.statuses))
            if set(question.statuses).issubset(UNSETTLED_STATUSES):
                conditions.append(UNSETTLED)  # in the words of an index; otherwise all builds would be read
        else:
            conditions.append("status NOT IN ('deleted', 'moved')")
        conditions.append("placed <> ''")  # without a placement there is nothing to show
        where = " AND ".join(conditions)
        async with self._database.read() as tx:
            rows = await self._statement(
                f"SELECT {BUILD} FROM builds WHERE {where} AND id > :after ORDER BY id LIMIT :most"
            )(tx, **given, after=question.after, most=question.limit + 1)
            count = 0
            if question.count:
                counted = await self._statement(f"SELECT count(*) AS several FROM builds WHERE {where}")(
                    tx, **given
                )
                count = counted[0]["several"]
        page = rows[: question.limit]
        return InstancesFound(
            instances=tuple(_instance(build) for build in readable(page)),
            more=len(rows) > len(page),
            count=count,
            last=page[-1]["id"] if page else "",
        )

    def _statement(self, sql: str) -> Statement:
        """Return the prepared statement for this query."""
        return self._statements.setdefault(sql, Statement(sql))


def _instance(build: Build) -> Instance:
    spec, here = build.spec, build.guest_on
    return Instance(
        build=build.id,
        name=spec.name,
        status=build.status,
        cell=build.cell,
        host=here.host,
        root=here.root,
        project=spec.project,
        flavor=spec.flavor.name,
        attempt=build.attempt,
        since=build.started,
        reason=build.doom,
    )
