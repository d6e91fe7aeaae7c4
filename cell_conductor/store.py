"""SQL for builds. Functions take and return values, not database rows; a batch is one statement."""

from collections.abc import Collection, Iterable
from typing import get_args

from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Statement, sql
from bus.sql.transaction import Dialect, Transaction
from cell_conductor.core.build import Build, Status
from cell_conductor.core.course import Courses
from cell_conductor.stored_form import StoredForm, encoded


def _listed(statuses: Iterable[str]) -> str:
    return ", ".join(f"'{status}'" for status in statuses)


def status_in(statuses: Iterable[str]) -> str:
    return f"status IN ({_listed(statuses)})"


# Conditions of partial indexes: an index is used only if the query repeats its condition literally.
UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
ENDED = "status IN ('error', 'deleted')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"
HELD = f"status NOT IN ({_listed(get_args(Status))})"
LEFT_BEHIND = "leftovers <> ''"
_SETTLED = ("active", "error", "deleted")

BUILDS = "builds JOIN placed_builds ON placed_builds.build = builds.id"
BUILD = """builds.id, builds.version, builds.status, builds.attempt, builds.generation, builds.deadline,
    builds.story, builds.leftovers, builds.parts, placed_builds.root, placed_builds.placed"""
_STATE = "status str, attempt int, generation int, deadline float, story str, parts str"
_PLACE = "placed str, root str, host str, project str, called str"

_INSERT = sql(f"""
    WITH {{others}}new AS (SELECT * FROM {{n: id str, {_STATE}}})
    INSERT INTO builds (id, version, status, attempt, generation, deadline, updated_at, story, parts)
    SELECT id, 0, status, attempt, generation, deadline, :NOW, story, parts FROM new
    WHERE {{after}} ON CONFLICT (id) DO NOTHING RETURNING id
""")
_INSERT_PLACED = sql(f"""
    INSERT INTO placed_builds (build, placed, root, host, project, name)
    SELECT n.id, n.placed, n.root, n.host, n.project, n.called FROM {{n: id str, {_PLACE}}}
    WHERE true ON CONFLICT (build) DO NOTHING
""")
_SELECT = sql(f"""
    SELECT {BUILD} FROM {{n: id str}} JOIN builds ON builds.id = n.id
    JOIN placed_builds ON placed_builds.build = n.id
""")
_CHANGES = """UPDATE builds SET version = n.version + 1, status = n.status, attempt = n.attempt,
    generation = n.generation, deadline = n.deadline, updated_at = :NOW, story = n.story,
    leftovers = n.leftovers, parts = n.parts"""
_CHANGED = f"id str, version int, leftovers str, {_STATE}"
_SAME_VERSION = "WHERE builds.id = n.id AND builds.version = n.version RETURNING builds.id"
# With an empty text for `placed`, the stored BuildPlaced is not changed.
_PLACES = """UPDATE placed_builds SET placed = COALESCE(NULLIF(n.placed, ''), placed_builds.placed),
    root = n.root, host = n.host, project = n.project, name = n.called"""
_UPDATE = sql(f"{_CHANGES} FROM {{n: {_CHANGED}}} {_SAME_VERSION}")
_UPDATE_PLACES = sql(f"{_PLACES} FROM {{n: id str, {_PLACE}}} WHERE placed_builds.build = n.id")
# For PostgreSQL: both tables in one round trip. SQLite permits no UPDATE inside another statement.
_UPDATE_BOTH = sql(f"""
    WITH changed AS ({_CHANGES} FROM {{n: {_CHANGED}, {_PLACE}}} {_SAME_VERSION}),
    placed_anew AS ({_PLACES} FROM {{n}} JOIN changed ON changed.id = n.id
    WHERE placed_builds.build = n.id AND n.root <> '')
    SELECT id FROM changed
""")
_OVERDUE = [
    sql(f"SELECT {BUILD} FROM {BUILDS} WHERE {condition} AND deadline <= :NOW ORDER BY deadline LIMIT :most")
    for condition in (
        f"{UNSETTLED} AND status IN ('building', 'deleting')",
        LEFTOVER,
        f"{HELD} AND deadline > 0",
    )
]
_PRUNE_PLACED = sql("DELETE FROM placed_builds WHERE build IN (SELECT n.id FROM {n: id str})")

Changed = tuple[Build, Build]  # the build before a step, and after it


def _silent(condition: str) -> Statement:
    """Return a statement that marks a page of builds as changed now, and returns their ids: of the builds
    that meet the condition and have not changed since a time.
    """
    return sql(f"""
        UPDATE builds SET updated_at = :NOW WHERE id IN (SELECT id FROM builds
        WHERE {condition} AND updated_at <= :since AND id > :after ORDER BY id LIMIT :most) RETURNING id
    """)


def _prune(condition: str) -> Statement:
    """Return a statement that deletes builds that ended long ago and hold no resources."""
    return sql(f"""
        DELETE FROM builds WHERE id IN (SELECT id FROM builds
        WHERE {condition} AND deadline = 0 AND updated_at < :before
        ORDER BY updated_at LIMIT :most) RETURNING id
    """)


class BuildStore:
    """The stored builds of a cell."""

    def __init__(self, courses: Courses = ()) -> None:
        self.form = form = StoredForm(courses)
        held = form.statuses
        # builds that wait for an answer, and builds that do not
        self.unfinished = [_silent(UNSETTLED)]
        if held.waiting:
            self.unfinished.append(_silent(f"{HELD} AND {status_in(held.waiting)}"))
        self.left_behind = _silent(f"{LEFT_BEHIND} AND {status_in((*_SETTLED, *held.settled))}")
        self._prunes = [_prune(ENDED)]
        if held.ended:
            self._prunes.append(_prune(f"{HELD} AND {status_in(held.ended)}"))

    def adding(self, made: Iterable[Build], now: float) -> tuple[BoundStatement, BoundStatement]:
        """Return two SQL statements that store new builds. The second must be executed before the first; the
        first returns the ids of the builds that did not exist yet.
        """
        builds = _in_order(made)
        states = [(build.id, *self.form.state_columns(build)) for build in builds]
        places = [(build.id, encoded(build.placed), *self.form.place_columns(build)) for build in builds]
        return _INSERT.of(states, now=now), _INSERT_PLACED.of(places)

    async def load(self, tx: Transaction, ids: Collection[str]) -> dict[str, Build]:
        return {row["id"]: self.form.read(row) for row in await _SELECT(tx, [(id_,) for id_ in ids])}

    def saving(self, changed: Collection[Changed], now: float, dialect: Dialect) -> BoundStatement:
        """Return the SQL statement that updates builds, except builds that another writer has changed, and
        returns the ids of the updated builds. On SQLite, it does not update the table `placed_builds`.
        """
        in_order = sorted(changed, key=lambda builds: builds[1].id)
        rows = [
            (after.id, after.version, encoded(after.leftovers), *self.form.state_columns(after))
            for _, after in in_order
        ]
        places = [self._new_place(before, after) for before, after in in_order]
        if dialect == "sqlite" or not any(places):
            return _UPDATE.of(rows, now=now)
        both = [(*row, *(place or ("",) * 5)) for row, place in zip(rows, places, strict=True)]
        return _UPDATE_BOTH.of(both, now=now)

    async def save(self, database: Database, changed: Collection[Changed], now: float) -> set[str]:
        """Update builds and their rows of `placed_builds` in a transaction, except builds that another
        writer has changed; return the ids of the updated builds.
        """
        if database.dialect == "postgresql":
            return {row["id"] for row in await database.write_single(self.saving(changed, now, "postgresql"))}
        async with database.write() as tx:
            return await self.save_in(tx, changed, now)

    async def save_in(self, tx: Transaction, changed: Collection[Changed], now: float) -> set[str]:
        """Update builds and their rows of `placed_builds` in the given transaction, except builds that
        another writer has changed; return the ids of the updated builds.
        """
        updated = {row["id"] for row in await self.saving(changed, now, tx.dialect)(tx)}
        if tx.dialect == "sqlite":
            places = {
                after.id: self._new_place(before, after) for before, after in changed if after.id in updated
            }
            if any(places.values()):
                await _UPDATE_PLACES(tx, [(id_, *place) for id_, place in places.items() if place])
        return updated

    def _new_place(self, before: Build, after: Build) -> tuple[str, ...]:
        """Return the values of a build's row in the table `placed_builds` after a step, for example because
        the host changed; an empty tuple if the step changes nothing in this row.
        """
        if after.placed is not before.placed:
            return encoded(after.placed), *self.form.place_columns(after)
        if after.at == before.at and after.parts is before.parts and after.new_spec is before.new_spec:
            return ()  # after most steps; faster than the comparison below
        listed = self.form.place_columns(after)
        return ("", *listed) if listed != self.form.place_columns(before) else ()

    async def prune(self, tx: Transaction, before: float, most: int) -> int:
        """Delete at most `most` builds that ended before a time and hold no resources; return how many."""
        pruned = [(row["id"],) for prune in self._prunes for row in await prune(tx, before=before, most=most)]
        if pruned:
            await _PRUNE_PLACED(tx, pruned)
        return len(pruned)

    async def silent(
        self, tx: Transaction, condition: Statement, since: float, now: float, after: str, most: int
    ) -> list[Build]:
        """Return a page of the builds that `condition` selects and that have not changed since `since`,
        sorted by id, after the id `after`. Mark them as changed `now`.
        """
        rows = await condition(tx, since=since, now=now, after=after, most=most)
        return self.form.readable(await _SELECT(tx, [(row["id"],) for row in rows])) if rows else []

    async def overdue(self, tx: Transaction, now: float, limit: int) -> list[Build]:
        """Return the builds that exceeded a time limit: of an order to their agent, of a guest left behind,
        or of a course; at most `limit` builds for each of the three.
        """
        return [
            build for late in _OVERDUE for build in self.form.readable(await late(tx, now=now, most=limit))
        ]


def _in_order(builds: Iterable[Build]) -> list[Build]:
    return sorted(builds, key=lambda build: build.id)  # sorted, so that concurrent writes do not deadlock
