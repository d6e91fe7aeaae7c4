"""SQL for builds. Functions take and return values, not database rows; a batch is one statement."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from bus.errors import NOT_JSON, Poison
from bus.messages import Attempt, BuildPlaced, Selection
from bus.parts import stored_decoder, stored_encoder
from bus.queries import BuildStands
from bus.requests import BuildSpec
from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Dialect, Statement, Transaction, deletes_oldest, sql
from bus.vocabulary import Compact
from cell_conductor.core.build import Build, BuildParts, Effects, Leftover, Status
from cell_conductor.core.events import Event
from cell_conductor.core.step import Courses, HeldStatuses, guest_on, operation

# Encodes builds as rows and as answers to clients, and decodes stored builds.


log = logging.getLogger(__name__)

LOST = "what its conductor had stored of it could not be read any more"

_STATUSES = frozenset(get_args(Status))


class _StoredContext(Compact, frozen=True):
    """The stored fields of a build that no database query filters by; they are stored together as JSON.

    Fields that change late are first: PostgreSQL does not log the unchanged end of an updated row. The last
    two change only if the build moves.
    """

    replies: tuple[str, ...]
    end: Literal["", "active", "error"]
    doom: str
    reshaped: int
    at: int
    attempts: tuple[Attempt, ...]
    started: float
    cell: str
    added_hosts: tuple[Selection, ...] = ()
    new_spec: BuildSpec | None = None


_encode = stored_encoder().encode
_story = msgspec.json.Decoder(_StoredContext).decode
_placed = stored_decoder(BuildPlaced).decode
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_leftovers = msgspec.json.Decoder(tuple[Leftover, ...]).decode


def encoded(value: Any) -> str:
    """Return a value as JSON; "" if it is empty."""
    return _encode(value).decode() if value else ""


class StoredForm:
    """The stored form of builds with the states of courses, each under the name of its course."""

    def __init__(self, courses: Courses = ()) -> None:
        self.courses = courses
        of_courses = [course.statuses for course in courses]
        self.statuses = HeldStatuses(
            *(tuple(chain.from_iterable(alike)) for alike in zip(*of_courses, strict=True))
        )
        self._decoders = {
            course.name: stored_decoder(course.state) for course in courses if course.state is not None
        }
        self._names = {course.state: course.name for course in courses if course.state is not None}

    def state_columns(self, build: Build) -> tuple[Any, ...]:
        """Return the values of the columns of `builds` that steps change, except the leftovers."""
        context = _StoredContext(
            replies=build.replies,
            end=build.end,
            doom=build.doom,
            reshaped=build.reshaped,
            at=build.at,
            attempts=build.attempts,
            started=build.started,
            cell=build.cell,
            added_hosts=build.added_hosts,
            new_spec=build.new_spec,
        )
        parts = {**build.parts.unknown, **{self._names[type(value)]: value for value in build.parts}}
        values = (build.shown, build.attempt, build.generation, build.deadline)
        return *values, _encode(context).decode(), encoded(parts)

    def place_columns(self, build: Build) -> tuple[str, str, str, str]:
        """Return the values of the columns of `placed_builds` by which builds are found."""
        if build.placed is None:
            return "", "", "", ""
        return build.host.root, guest_on(build, self.courses).host, build.spec.project, build.spec.name

    def readable(self, rows: Iterable[Mapping[str, Any]]) -> list[Build]:
        """Decode stored builds; an unreadable build is logged and skipped, so that it blocks no other
        build.
        """
        found = []
        for row in rows:
            try:
                found.append(self.read(row))
            except Poison as unreadable:
                log.error("passed over: %s", unreadable)
        return found

    def read(self, row: Mapping[str, Any]) -> Build:
        """Decode a stored build; raise Poison if its placement or the state of a course is unreadable."""
        part = "what was placed"
        try:
            placed = _placed(row["placed"]) if row["placed"] else None
            part = "the state of a feature"
            parts = self._read_parts(row["parts"]) if row["parts"] else BuildParts()
        except NOT_JSON as problem:
            raise Poison(f"build {row['id']}: {part} cannot be read any more: {problem}") from None
        is_held = row["status"] not in _STATUSES
        return Build(
            id=row["id"],
            status="held" if is_held else row["status"],
            held_as=row["status"] if is_held else "",
            placed=placed,
            version=row["version"],
            attempt=row["attempt"],
            generation=row["generation"],
            deadline=row["deadline"],
            leftovers=_read_leftovers(row),
            parts=parts,
            **msgspec.structs.asdict(_read_story(row, placed)),
        )

    def _read_parts(self, stored: str) -> BuildParts:
        found = _parts(stored)
        values = [self._decoders[name].decode(found.pop(name)) for name in self._decoders if name in found]
        return BuildParts(*values).with_unknown(found)

    def stands(self, build: Build) -> BuildStands | None:
        """Return a build as clients see it; None if it was never placed, or is in another cell."""
        if build.placed is None or build.held_as in self.statuses.ended:
            return None
        return BuildStands(
            build=build.id,
            status=build.shown,
            placed=build.as_placed,
            host=guest_on(build, self.courses).host,
            attempts=build.attempts,
            reason=build.doom,
            attempt=build.attempt,
            generation=build.generation,
            chosen=build.host,
            spec=build.spec,
            move=operation(build, self.courses),
        )


def _read_leftovers(row: Mapping[str, Any]) -> tuple[Leftover, ...]:
    try:
        return decode_leftovers(row["leftovers"]) if row["leftovers"] else ()
    except NOT_JSON as problem:
        # the resources of these guests stay held until an operator releases them
        log.error("build %s continues without its record of leftovers: %s", row["id"], problem)
        return ()


def _read_story(row: Mapping[str, Any], placed: BuildPlaced | None) -> _StoredContext:
    """Decode the column `story` of a build; if unreadable, derive the fields from the build's other columns,
    so that the build can still end.
    """
    try:
        return _story(row["story"])
    except NOT_JSON as problem:
        log.error("build %s continues without its history, which is unreadable: %s", row["id"], problem)
    status = row["status"]
    is_active = status == "active" or status not in _STATUSES
    hosts = (placed.chosen, *placed.alternates) if placed else ()
    return _StoredContext(
        replies=(),
        end="error" if status == "error" else "active" if is_active else "",
        # the build may have had to end in error, so it ends in error
        doom=LOST if status in ("swapping", "error") else "",
        reshaped=0,
        at=next((number for number, host in enumerate(hosts) if host.root == row["root"]), 0),
        attempts=(),
        started=0.0,
        cell=placed.cell if placed else "unknown",
    )


def _listed(statuses: Iterable[str]) -> str:
    return ", ".join(f"'{status}'" for status in statuses)


def status_in(statuses: Iterable[str]) -> str:
    """Return the SQL condition for these statuses."""
    return f"status IN ({_listed(statuses)})"


# Conditions of partial indexes: an index is used only if the query repeats its condition literally.
UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
ENDED = "status IN ('error', 'deleted')"
SETTLED_WITH_DEADLINE = "status IN ('active', 'error', 'deleted') AND deadline > 0"
HELD = f"status NOT IN ({_listed(get_args(Status))})"
WITH_LEFTOVERS = "leftovers <> ''"
_SETTLED = ("active", "error", "deleted")

BUILDS = "builds JOIN placed_builds ON placed_builds.build = builds.id"
BUILD = """builds.id, builds.version, builds.status, builds.attempt, builds.generation, builds.deadline,
    builds.story, builds.leftovers, builds.parts, placed_builds.root, placed_builds.placed"""
_STATE = "status str, attempt int, generation int, deadline float, story str, parts str"
_PLACE = "placed str, root str, host str, project str, called str"

_LEFT_BEHIND = sql(f"SELECT {BUILD} FROM {BUILDS} WHERE {WITH_LEFTOVERS}")
_ON_ROOTS = sql(f"""
    SELECT {BUILD} FROM {{n: root str}} JOIN placed_builds ON placed_builds.root = n.root
    JOIN builds ON builds.id = placed_builds.build
    WHERE builds.status IN ('building', 'swapping', 'active', 'deleting')
""")
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
        SETTLED_WITH_DEADLINE,
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
    return deletes_oldest("builds", "id", where=f"{condition} AND deadline = 0", time="updated_at")


class BuildStore:
    """The stored builds of a cell."""

    def __init__(self, courses: Courses = ()) -> None:
        self.form = form = StoredForm(courses)
        held = form.statuses
        # builds that wait for an answer, and builds that do not
        self.unfinished = [_silent(UNSETTLED)]
        if held.waiting:
            self.unfinished.append(_silent(f"{HELD} AND {status_in(held.waiting)}"))
        self.with_leftovers = _silent(f"{WITH_LEFTOVERS} AND {status_in((*_SETTLED, *held.settled))}")
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
        """Return the builds with these ids that have a record."""
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

    async def on_roots(self, tx: Transaction, roots: Collection[str]) -> list[Build]:
        """Return the builds with a guest, or a guest left behind, on the given root providers."""
        rows = await _ON_ROOTS(tx, [(root,) for root in roots])
        builds = {build.id: build for build in self.form.readable(rows)}
        for build in await left_behind(tx, self.form):
            if any(build.hosts[leftover.at].root in roots for leftover in build.leftovers):
                builds[build.id] = build
        return list(builds.values())

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


async def left_behind(tx: Transaction, form: StoredForm | None = None) -> list[Build]:
    """Return the builds that left guests behind, with the states of the courses that `form` knows."""
    return (form or StoredForm()).readable(await _LEFT_BEHIND(tx))


def _in_order(builds: Iterable[Build]) -> list[Build]:
    return sorted(builds, key=lambda build: build.id)  # sorted, so that concurrent writes do not deadlock


# The rows of features, which are stored together with the builds.


class Applied(NamedTuple):
    """An event that was applied to a build."""

    event: Event
    before: Build | None
    after: Build | None
    effects: Effects


class CourseStore:
    """The rows that a course reads and writes when events are applied to builds, and its metrics. This class
    has none; features derive their stores from it.
    """

    async def read(
        self, tx: Transaction, events: Mapping[str, Event], known: Mapping[str, Build]
    ) -> Mapping[str, Event]:
        """Return, by build id, a replacement for each event of this course's types: the event with the rows
        that the course has stored about it.
        """
        return {}

    def rows(self, applied: Sequence[Applied], now: float) -> Sequence[BoundStatement]:
        """Return the statements that store what applied events changed, except the builds."""
        return ()

    def count(self, applied: Applied) -> None:
        """Count an applied event in the metrics, after it was stored."""
