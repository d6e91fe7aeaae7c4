"""SQL for builds. Functions take and return values, not database rows; a batch is one statement."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from bus.errors import NOT_JSON, Poison
from bus.messages import Attempt, BuildPlaced, Selection
from bus.requests import BuildSpec
from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Statement, sql
from bus.sql.transaction import Dialect, Transaction
from bus.vocabulary import Compact
from cell_conductor.core.build import Build, Leftover
from cell_conductor.core.course import Courses, shown
from cell_conductor.moves.core.move import BuildMove, last_move
from cell_conductor.preemption.courses import Vacate
from cell_conductor.stored_parts import awaits, read_parts, read_status, stored_status

log = logging.getLogger(__name__)


def status_in(statuses: Iterable[str]) -> str:
    listed = ", ".join(f"'{status}'" for status in statuses)
    return f"status IN ({listed})"


# Conditions of partial indexes: an index is used only if the query repeats its condition literally.
UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
ENDED_STATUSES = "status IN ('error', 'deleted', 'moved')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"
MOVING = "status IN ('moving', 'verifying', 'shelved', 'moved')"
LEFT_BEHIND = "leftovers <> ''"
_SETTLED = "status IN ('active', 'shelved', 'moved', 'error', 'deleted')"

_WERE_ACTIVE = ("active", "moving", "verifying", "shelved", "moved")
LOST = "what its conductor had stored of it could not be read any more"

BUILDS = "builds JOIN placed_builds ON placed_builds.build = builds.id"
BUILD = """builds.id, builds.version, builds.status, builds.attempt, builds.generation, builds.deadline,
    builds.story, builds.leftovers, builds.moved, placed_builds.root, placed_builds.placed"""
_STATE = "status str, attempt int, generation int, deadline float, story str, moved str"
_PLACE = "placed str, root str, host str, project str, called str"

_INSERT = sql(f"""
    WITH {{others}}new AS (SELECT * FROM {{n: id str, {_STATE}}})
    INSERT INTO builds (id, version, status, attempt, generation, deadline, updated_at, story, moved)
    SELECT id, 0, status, attempt, generation, deadline, :NOW, story, moved FROM new
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
    leftovers = n.leftovers, moved = n.moved"""
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
        f"{MOVING} AND deadline > 0",
    )
]
SILENT, SILENT_MOVES, SILENT_LEFTOVERS = [
    sql(f"""
        UPDATE builds SET updated_at = :NOW WHERE id IN (SELECT id FROM builds
        WHERE {condition} AND updated_at <= :since AND id > :after ORDER BY id LIMIT :most) RETURNING id
    """)
    for condition in (UNSETTLED, f"{MOVING} AND status = 'moving'", f"{LEFT_BEHIND} AND {_SETTLED}")
]
# Deletes builds that ended long ago and hold no resources.
_PRUNE = sql(f"""
    DELETE FROM builds WHERE id IN (SELECT id FROM builds
    WHERE {ENDED_STATUSES} AND deadline = 0 AND updated_at < :before
    ORDER BY updated_at LIMIT :most) RETURNING id
""")
_PRUNE_PLACED = sql("DELETE FROM placed_builds WHERE build IN (SELECT n.id FROM {n: id str})")


class _ChangedBuild(Compact, frozen=True):
    """The stored fields that change only while a build moves; not stored for a build that has never moved."""

    added_hosts: tuple[Selection, ...] = ()
    new_spec: BuildSpec | None = None
    move: BuildMove | None = None


class _StoredContext(Compact, frozen=True):
    """The stored fields of a build that no database query filters by; they are stored together as JSON.

    Fields that change late are first: PostgreSQL does not log the unchanged end of an updated row.
    """

    replies: tuple[str, ...]
    end: Literal["", "active", "error"]
    doom: str
    reshaped: int
    at: int
    attempts: tuple[Attempt, ...]
    started: float
    cell: str
    awaits: tuple[str, ...] = ()
    vacates: Vacate | None = None


_encode = msgspec.json.Encoder().encode
_story = msgspec.json.Decoder(_StoredContext).decode
_placed = msgspec.json.Decoder(BuildPlaced).decode
_changed = msgspec.json.Decoder(_ChangedBuild).decode
decode_leftovers = msgspec.json.Decoder(tuple[Leftover, ...]).decode


def adding(made: Iterable[Build], now: float, courses: Courses) -> tuple[BoundStatement, BoundStatement]:
    """Return two SQL statements that store new builds. The second must be executed before the first; the
    first returns the ids of the builds that did not exist yet.
    """
    builds = _in_order(made)
    states = [(build.id, *_state(build)) for build in builds]
    places = [(build.id, encoded(build.placed), *_listed(build, courses)) for build in builds]
    return _INSERT.of(states, now=now), _INSERT_PLACED.of(places)


async def load(tx: Transaction, ids: Collection[str]) -> dict[str, Build]:
    return {row["id"]: _build(row) for row in await _SELECT(tx, [(id_,) for id_ in ids])}


Changed = tuple[Build, Build]  # the build before a step, and after it


def saving(changed: Collection[Changed], now: float, dialect: Dialect, courses: Courses) -> BoundStatement:
    """Return the SQL statement that updates builds, except builds that another writer has changed, and
    returns the ids of the updated builds. On SQLite, the statement does not update the table `placed_builds`.
    """
    in_order = sorted(changed, key=lambda builds: builds[1].id)
    rows = [(after.id, after.version, encoded(after.leftovers), *_state(after)) for _, after in in_order]
    places = [_new_place(before, after, courses) for before, after in in_order]
    if dialect == "sqlite" or not any(places):
        return _UPDATE.of(rows, now=now)
    both = [(*row, *(place or ("",) * 5)) for row, place in zip(rows, places, strict=True)]
    return _UPDATE_BOTH.of(both, now=now)


async def save(database: Database, changed: Collection[Changed], now: float, courses: Courses) -> set[str]:
    """Update builds and their rows of `placed_builds` in a transaction, except builds that another writer has
    changed; return the ids of the updated builds.
    """
    if database.dialect == "postgresql":
        return {row["id"] for row in await database.write_single(saving(changed, now, "postgresql", courses))}
    async with database.write() as tx:
        return await save_in(tx, changed, now, courses)


async def save_in(tx: Transaction, changed: Collection[Changed], now: float, courses: Courses) -> set[str]:
    """Update builds and their rows of `placed_builds` in the given transaction, except builds that another
    writer has changed; return the ids of the updated builds.
    """
    updated = {row["id"] for row in await saving(changed, now, tx.dialect, courses)(tx)}
    if tx.dialect == "sqlite":
        places = {
            after.id: _new_place(before, after, courses) for before, after in changed if after.id in updated
        }
        if any(places.values()):
            await _UPDATE_PLACES(tx, [(id_, *place) for id_, place in places.items() if place])
    return updated


def _new_place(before: Build, after: Build, courses: Courses) -> tuple[str, ...]:
    """Return the values of a build's row in the table `placed_builds` after a step, for example because the
    host changed; an empty tuple if the step changes nothing in this row.
    """
    if after.placed is not before.placed:
        return encoded(after.placed), *_listed(after, courses)
    if after.at == before.at and after.parts is before.parts and after.new_spec is before.new_spec:
        return ()  # after most steps; faster than the comparison below
    listed = _listed(after, courses)
    return ("", *listed) if listed != _listed(before, courses) else ()


async def prune(tx: Transaction, before: float, most: int) -> int:
    """Delete at most `most` builds that ended before a time and hold no resources; return how many."""
    pruned = [(row["id"],) for row in await _PRUNE(tx, before=before, most=most)]
    if pruned:
        await _PRUNE_PLACED(tx, pruned)
    return len(pruned)


async def silent(
    tx: Transaction, condition: Statement, since: float, now: float, after: str, most: int
) -> list[Build]:
    """Return a page of the builds that `condition` selects (unfinished builds, moves or guests left behind)
    and that have not changed since `since`, sorted by id, after the id `after`. Mark them as changed `now`.
    """
    rows = await condition(tx, since=since, now=now, after=after, most=most)
    return readable(await _SELECT(tx, [(row["id"],) for row in rows])) if rows else []


async def overdue(tx: Transaction, now: float, limit: int) -> list[Build]:
    """Return the builds that exceeded a time limit: of an order to their agent, of a guest left behind, or of
    a phase of a move; at most `limit` builds for each of the three.
    """
    return [build for late in _OVERDUE for build in readable(await late(tx, now=now, most=limit))]


def encoded(value: Any) -> str:
    return _encode(value).decode() if value else ""


def _in_order(builds: Iterable[Build]) -> list[Build]:
    return sorted(builds, key=lambda build: build.id)  # sorted, so that concurrent writes do not deadlock


def _state(build: Build) -> tuple[Any, ...]:
    context = _StoredContext(
        replies=build.replies,
        end=build.end,
        doom=build.doom,
        reshaped=build.reshaped,
        at=build.at,
        attempts=build.attempts,
        started=build.started,
        cell=build.cell,
        awaits=awaits(build),
        vacates=build.parts.get(Vacate),
    )
    move = last_move(build)
    changed = _ChangedBuild(build.added_hosts, build.new_spec, move)
    values = (stored_status(build), build.attempt, build.generation, build.deadline)
    return *values, _encode(context).decode(), _encode(changed).decode() if move is not None else ""


def _listed(build: Build, courses: Courses) -> tuple[str, str, str, str]:
    if build.placed is None:
        return "", "", "", ""
    return build.host.root, shown(build, courses).guest_on.host, build.spec.project, build.spec.name


def readable(rows: Iterable[Mapping[str, Any]]) -> list[Build]:
    """Decode stored builds; an unreadable build is logged and skipped, so that it blocks no other build."""
    found = []
    for row in rows:
        try:
            found.append(_build(row))
        except Poison as unreadable:
            log.error("passed over: %s", unreadable)
    return found


def _build(row: Mapping[str, Any]) -> Build:
    part = "what was placed"
    try:
        placed = _placed(row["placed"]) if row["placed"] else None
        part = "where it has moved"
        changed = _changed(row["moved"]) if row["moved"] else _ChangedBuild()
    except NOT_JSON as problem:
        raise Poison(f"build {row['id']}: {part} cannot be read any more: {problem}") from None
    hosts = (placed.chosen, *placed.alternates, *changed.added_hosts) if placed else ()
    story = msgspec.structs.asdict(_read_story(row, placed, hosts))
    return Build(
        id=row["id"],
        status=read_status(row["status"]),
        placed=placed,
        version=row["version"],
        attempt=row["attempt"],
        generation=row["generation"],
        deadline=row["deadline"],
        leftovers=_read_leftovers(row),
        added_hosts=changed.added_hosts,
        new_spec=changed.new_spec,
        parts=read_parts(row["status"], changed.move, story.pop("awaits"), story.pop("vacates")),
        **story,
    )


def _read_leftovers(row: Mapping[str, Any]) -> tuple[Leftover, ...]:
    try:
        return decode_leftovers(row["leftovers"]) if row["leftovers"] else ()
    except NOT_JSON as problem:
        # the resources of these guests stay held until an operator releases them
        log.error("build %s continues without its record of leftovers: %s", row["id"], problem)
        return ()


def _read_story(
    row: Mapping[str, Any], placed: BuildPlaced | None, hosts: Sequence[Selection]
) -> _StoredContext:
    """Decode the column `story` of a build; if unreadable, derive the fields from the build's other columns,
    so that the build can still end.
    """
    try:
        return _story(row["story"])
    except NOT_JSON as problem:
        log.error("build %s continues without its history, which is unreadable: %s", row["id"], problem)
    status = row["status"]
    return _StoredContext(
        replies=(),
        end="error" if status == "error" else "active" if status in _WERE_ACTIVE else "",
        # the build may have had to end in error, so it ends in error
        doom=LOST if status in ("swapping", "error") else "",
        reshaped=0,
        at=next((number for number, host in enumerate(hosts) if host.root == row["root"]), 0),
        attempts=(),
        started=0.0,
        cell=placed.cell if placed else "unknown",
    )
