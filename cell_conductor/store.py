"""SQL for builds and moves. Functions take and return values, not database rows; a batch is one statement."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bus.errors import NOT_JSON, Poison
from bus.messages import Attempt, BuildPlaced, Selection
from bus.moves import FindMoves, MovePlaced, MovesFound
from bus.requests import BuildSpec
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, sql
from bus.sql.transaction import Transaction
from bus.vocabulary import Compact
from cell_conductor.core.build import Build, Leftover
from cell_conductor.core.move import BuildMove, decode_move, decode_placed, encode_move, move_state

log = logging.getLogger(__name__)


def status_in(statuses: Iterable[str]) -> str:
    listed = ", ".join(f"'{status}'" for status in statuses)
    return f"status IN ({listed})"


# SQL conditions of the partial indexes: an index is used only if the query repeats its condition literally
UNSETTLED_STATUSES = ("building", "swapping", "deleting")
UNSETTLED = status_in(UNSETTLED_STATUSES)
ENDED_STATUSES = "status IN ('error', 'deleted', 'moved')"
LEFTOVER = "status IN ('active', 'error', 'deleted') AND deadline > 0"
MOVING = "status IN ('moving', 'verifying', 'shelved', 'moved')"
UNDER_WAY = "status = 'open'"  # of a move
ENDED = "status = 'ended'"
LEFT_BEHIND = "leftovers <> ''"

_WERE_ACTIVE = ("active", "moving", "verifying", "shelved", "moved")
LOST = "what its conductor had stored of it could not be read any more"

BUILD = """builds.id, builds.version, builds.status, builds.root, builds.attempt, builds.generation,
    builds.deadline, builds.placed, builds.story, builds.leftovers, builds.moved"""
_ROW = """status str, attempt int, generation int, deadline float, story str, root str, host str, project str,
    called str, moved str"""

_INSERT = sql(f"""
    INSERT INTO builds (id, version, status, root, attempt, generation, deadline, said, placed, story,
    host, project, name, moved)
    SELECT n.id, 0, n.status, n.root, n.attempt, n.generation, n.deadline, :NOW, n.placed, n.story,
    n.host, n.project, n.called, n.moved
    FROM {{n: id str, placed str, {_ROW}}} WHERE true ON CONFLICT (id) DO NOTHING RETURNING id
""")
_SELECT = sql(f"SELECT {BUILD} FROM {{n: id str}} JOIN builds ON builds.id = n.id")
_UPDATE = sql(f"""
    UPDATE builds SET version = n.version + 1, status = n.status, root = n.root, attempt = n.attempt,
    generation = n.generation, deadline = n.deadline, said = :NOW, story = n.story,
    leftovers = n.leftovers, host = n.host, project = n.project, name = n.called, moved = n.moved
    FROM {{n: id str, version int, leftovers str, {_ROW}}}
    WHERE builds.id = n.id AND builds.version = n.version RETURNING builds.id
""")
# for a build that was deleted before it was placed, or after a reshape
PLACE = sql("UPDATE builds SET placed = n.placed FROM {n: id str, placed str} WHERE builds.id = n.id")
_OVERDUE = [
    sql(f"SELECT {BUILD} FROM builds WHERE {condition} AND deadline <= :NOW ORDER BY deadline LIMIT :most")
    for condition in (
        f"{UNSETTLED} AND status IN ('building', 'deleting')",
        LEFTOVER,
        f"{MOVING} AND deadline > 0",
    )
]
SILENT, SILENT_MOVES, SILENT_LEFTOVERS = [
    sql(f"""
        UPDATE builds SET said = :NOW WHERE id IN (SELECT id FROM builds
        WHERE {condition} AND said <= :since AND id > :after ORDER BY id LIMIT :most) RETURNING {BUILD}
    """)
    for condition in (UNSETTLED, f"{MOVING} AND status = 'moving'", LEFTOVER)
]
# builds that ended long ago and hold nothing
PRUNE = sql(f"""
    DELETE FROM builds WHERE id IN (SELECT id FROM builds
    WHERE {ENDED_STATUSES} AND deadline = 0 AND said < :before ORDER BY said LIMIT :most) RETURNING id
""")


class _MovedBuild(Compact, frozen=True):
    """The stored fields that change only while a build moves; not stored for a build that has never moved."""

    hosts: tuple[Selection, ...] = ()
    became: BuildSpec | None = None
    move: BuildMove | None = None


class _StoredContext(Compact, frozen=True):
    """The stored fields of a build that no database query filters by; they are stored together as JSON."""

    cell: str
    at: int
    started: float
    attempts: tuple[Attempt, ...] = ()
    doom: str = ""
    end: Literal["", "active", "error"] = ""
    replies: tuple[str, ...] = ()
    reshaped: int = 0


_encode = msgspec.json.Encoder().encode
_story = msgspec.json.Decoder(_StoredContext).decode
_placed = msgspec.json.Decoder(BuildPlaced).decode
_moved = msgspec.json.Decoder(_MovedBuild).decode
decode_leftovers = msgspec.json.Decoder(tuple[Leftover, ...]).decode


def adding(made: Iterable[Build], now: float) -> BoundStatement:
    """Return the SQL statement that inserts the builds that do not exist yet, and returns their ids."""
    values = [(build.id, encoded(build.placed), *_row(build)) for build in _in_order(made)]
    return _INSERT.of(values, now=now)


async def load(tx: Transaction, ids: Collection[str]) -> dict[str, Build]:
    return {row["id"]: _build(row) for row in await _SELECT(tx, [(id_,) for id_ in ids])}


def saving(changed: Iterable[Build], now: float) -> BoundStatement:
    """Return the SQL statement that updates builds, except those that another writer has changed, and returns
    the ids of the updated builds."""
    rows = [(build.id, build.version, encoded(build.leftovers), *_row(build)) for build in _in_order(changed)]
    return _UPDATE.of(rows, now=now)


async def save(tx: Transaction, changed: Collection[Build], now: float) -> None:
    """Update stored builds. Raise Conflict if another conductor changed one of them since it was loaded."""
    updated = len(await saving(changed, now)(tx))
    if updated != len(changed):
        raise Conflict(f"{len(changed) - updated} of {len(changed)} builds were changed meanwhile")


async def overdue(tx: Transaction, now: float, limit: int) -> list[Build]:
    """Return the builds that exceeded the time limit of their agent, of a move or of a guest left behind."""
    return [build for late in _OVERDUE for build in readable(await late(tx, now=now, most=limit))]


def encoded(value: Any) -> str:
    return _encode(value).decode() if value else ""


def _in_order(builds: Iterable[Build]) -> list[Build]:
    return sorted(builds, key=lambda build: build.id)  # so that concurrent writes never deadlock


def _row(build: Build) -> tuple[Any, ...]:
    listed = ("", "", "", "")
    if build.placed is not None:
        listed = (build.host.root, build.guest_on.host, build.spec.project, build.spec.name)
    context = _StoredContext(*(getattr(build, name) for name in _StoredContext.__struct_fields__))
    moved = _encode(_MovedBuild(build.moved, build.became, build.move)).decode() if build.move else ""
    values = (build.status, build.attempt, build.generation, build.deadline)
    return *values, _encode(context).decode(), *listed, moved


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
        moved = _moved(row["moved"]) if row["moved"] else _MovedBuild()
    except NOT_JSON as problem:
        raise Poison(f"build {row['id']}: {part} cannot be read any more: {problem}") from None
    hosts = (placed.chosen, *placed.alternates, *moved.hosts) if placed else ()
    return Build(
        id=row["id"],
        status=row["status"],
        placed=placed,
        version=row["version"],
        attempt=row["attempt"],
        generation=row["generation"],
        deadline=row["deadline"],
        leftovers=_read_leftovers(row),
        moved=moved.hosts,
        became=moved.became,
        move=moved.move,
        **msgspec.structs.asdict(_read_story(row, placed, hosts)),
    )


def _read_leftovers(row: Mapping[str, Any]) -> tuple[Leftover, ...]:
    try:
        return decode_leftovers(row["leftovers"]) if row["leftovers"] else ()
    except NOT_JSON as problem:
        # an operator has to release their resources
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
        cell=placed.cell if placed else "unknown",
        at=next((number for number, host in enumerate(hosts) if host.root == row["root"]), 0),
        started=0.0,
        # it may have been doomed, so it does not continue
        doom=LOST if status in ("swapping", "error") else "",
        end="error" if status == "error" else "active" if status in _WERE_ACTIVE else "",
    )


_SAVE_MOVES = sql("""
    INSERT INTO moves (id, build, kind, status, phase, source, host, since, ended, placed, story)
    SELECT n.id, n.build, n.kind, n.status, n.phase, n.source, n.host, n.since, n.ended, n.placed, n.story
    FROM {n: id str, build str, kind str, status str, phase str, source str, host str,
    since float, ended float, placed str, story str} WHERE true
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, phase = excluded.phase, host = excluded.host,
    ended = excluded.ended, story = excluded.story RETURNING id
""")
_ENDED_MOVES = sql(
    f"SELECT moves.id, moves.story FROM {{n: id str}} JOIN moves ON moves.id = n.id WHERE moves.{ENDED}"
)
PRUNE_MOVES = sql(f"""
    DELETE FROM moves WHERE id IN (SELECT id FROM moves
    WHERE {ENDED} AND ended < :before ORDER BY ended LIMIT :most) RETURNING id
""")


async def save_moves(tx: Transaction, moves: Iterable[tuple[BuildMove, MovePlaced]]) -> None:
    """Store the moves of builds, each with the scheduler's message that ordered it."""
    values = [
        (
            move.id,
            move.placed.build,
            move.kind,
            "open" if move.is_open else "ended",
            move.shown,
            move.left,
            move.host,
            move.since,
            move.ended,
            encode_move(placed).decode(),
            encode_move(move).decode(),
        )
        for move, placed in sorted(moves, key=lambda stored: stored[0].id)
    ]
    if values:
        await _SAVE_MOVES(tx, values)


async def ended_moves(tx: Transaction, ids: Collection[str]) -> dict[str, BuildMove]:
    if not ids:
        return {}
    return {row["id"]: decode_move(row["story"]) for row in await _ENDED_MOVES(tx, [(id_,) for id_ in ids])}


async def moves_page(tx: Transaction, asked: FindMoves) -> MovesFound:
    conditions = ["true"]
    given: dict[str, Any] = {}
    if asked.under_way:
        conditions.append(UNDER_WAY)
    if asked.host:
        conditions.append("(source = :host OR host = :host)")
        given["host"] = asked.host
    for column, named in (("id", asked.moves), ("build", asked.builds)):
        if named:
            listed = ", ".join(f"'{id_}'" for id_ in named)  # UUIDs, checked with the message
            conditions.append(f"{column} IN ({listed})")
    if asked.after:
        conditions.append("(since < :since OR (since = :since AND id > :id))")
        since, _, given["id"] = asked.after.partition(" ")
        try:
            given["since"] = float(since)
        except ValueError:
            raise Poison(f"after: {asked.after!r} is not where a page of moves ended") from None
    found = await sql(f"""
        SELECT id, since, placed, story FROM moves WHERE {" AND ".join(conditions)}
        ORDER BY since DESC, id LIMIT :most
    """)(tx, **given, most=asked.limit + 1)
    rows = found[: asked.limit]
    return MovesFound(
        moves=tuple(
            replace(move_state(decode_move(row["story"])), decision=decode_placed(row["placed"]).decision)
            for row in rows
        ),
        more=len(found) > len(rows),
        last=f"{rows[-1]['since']!r} {rows[-1]['id']}" if rows else "",
    )
