"""All SQL about builds. Takes and returns values, never rows; a batch is one statement."""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from sqlalchemy import TextClause, text

from bus.messages import BuildPlaced
from bus.sql.database import Conflict, Database, Dialect, Transaction
from bus.sql.rows import Rows, rows
from bus.vocabulary import Attempt, Compact
from cell_conductor.core.build import Build
from cell_conductor.schema import OVER, UNSETTLED

_COLUMNS = "id, version, status, attempt, generation, deadline, placed, story"


class Standing(Compact, frozen=True):
    """What an audit compares with placement."""

    status: str
    root: str
    generation: int | None


class _Story(Compact, frozen=True):
    """What only a step reads of a build."""

    cell: str
    at: int
    started: float
    attempts: tuple[Attempt, ...] = ()
    doom: str = ""
    end: Literal["", "active", "error"] = ""
    replies: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_story = msgspec.json.Decoder(_Story).decode
_placed = msgspec.json.Decoder(BuildPlaced).decode


async def add(tx: Transaction, made: Iterable[Build], now: float) -> set[str]:
    """Store these new builds; gives the ids of those that were indeed new."""
    n = _new_rows(tx.dialect)
    # In the order of their ids, so that two who add the same ones never wait for each other.
    values = [
        (
            build.id,
            build.status,
            build.host.root if build.placed else "",
            build.attempt,
            build.generation,
            build.deadline,
            now,
            _encode(build.placed).decode() if build.placed else "",
            _encode(_story_of(build)).decode(),
        )
        for build in sorted(made, key=_by_id)
    ]
    inserted = await tx.execute(_insert(tx.dialect), n.bind(values))
    return {id_ for (id_,) in inserted}


async def load(tx: Transaction, ids: Collection[str]) -> dict[str, Build]:
    found = await tx.execute(_select(tx.dialect), _id_rows(tx.dialect).bind((id_,) for id_ in ids))
    return {row[0]: _build(row) for row in found}


async def save(tx: Transaction, changed: Iterable[Build], now: float) -> None:
    """Store what these builds became, or Conflict when another has changed one since it was loaded."""
    n = _changed_rows(tx.dialect)
    values = [
        (
            build.id,
            build.version,
            build.status,
            build.host.root if build.placed else "",
            build.attempt,
            build.generation,
            build.deadline,
            now,
            _encode(_story_of(build)).decode(),
        )
        for build in sorted(changed, key=_by_id)
    ]
    updated = await tx.execute(_update(tx.dialect), n.bind(values))
    if updated.rowcount != len(values):
        raise Conflict(f"{len(values) - updated.rowcount} of {len(values)} builds were changed meanwhile")


async def place(tx: Transaction, build: Build) -> None:
    """What was deleted before it was placed has been placed now."""
    await tx.execute(_PLACE, {"id": build.id, "placed": _encode(build.placed).decode()})


async def overdue(tx: Transaction, now: float, limit: int) -> list[Build]:
    found = await tx.execute(_OVERDUE, {"now": now, "limit": limit})
    return [_build(row) for row in found]


async def silent(tx: Transaction, since: float, now: float, after: str, limit: int) -> list[Build]:
    """Builds with ids beyond `after` that wait, and were last heard or spoken of by then; now they are."""
    found = await tx.execute(_SILENT, {"since": since, "now": now, "after": after, "limit": limit})
    return [_build(row) for row in found]


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Forget builds that hold nothing and have been over for long; gives how many."""
    return (await tx.execute(_PRUNE, {"before": before, "limit": limit})).rowcount


async def census(database: Database) -> dict[str, Standing]:
    """Every build this conductor knows of."""
    async with database.read() as tx:
        found = await tx.execute(_CENSUS)
        return {row.id: Standing(row.status, row.root, row.generation) for row in found}


def _by_id(build: Build) -> str:
    return build.id


def _story_of(build: Build) -> _Story:
    return _Story(build.cell, build.at, build.started, build.attempts, build.doom, build.end, build.replies)


def _build(row: Sequence[Any]) -> Build:
    id_, version, status, attempt, generation, deadline, placed, story = row
    told = _story(story)
    return Build(
        id=id_,
        cell=told.cell,
        status=status,
        placed=_placed(placed) if placed else None,
        version=version,
        attempt=attempt,
        at=told.at,
        generation=generation,
        started=told.started,
        deadline=deadline,
        attempts=told.attempts,
        doom=told.doom,
        end=told.end,
        replies=told.replies,
    )


def _id_rows(dialect: Dialect) -> Rows:
    return rows(dialect, "n", id=str)


def _new_rows(dialect: Dialect) -> Rows:
    return rows(
        dialect,
        "n",
        id=str,
        status=str,
        root=str,
        attempt=int,
        generation=int,
        deadline=float,
        said=float,
        placed=str,
        story=str,
    )


def _changed_rows(dialect: Dialect) -> Rows:
    return rows(
        dialect,
        "n",
        id=str,
        version=int,
        status=str,
        root=str,
        attempt=int,
        generation=int,
        deadline=float,
        said=float,
        story=str,
    )


@cache
def _insert(dialect: Dialect) -> TextClause:
    return text(f"""
        INSERT INTO builds (id, version, status, root, attempt, generation, deadline, said, placed, story)
        SELECT id, 0, status, root, attempt, generation, deadline, said, placed, story
        FROM {_new_rows(dialect)} WHERE true
        ON CONFLICT (id) DO NOTHING RETURNING id""")


@cache
def _select(dialect: Dialect) -> TextClause:
    columns = ", ".join(f"builds.{column}" for column in _COLUMNS.split(", "))
    return text(f"SELECT {columns} FROM {_id_rows(dialect)} JOIN builds ON builds.id = n.id")


@cache
def _update(dialect: Dialect) -> TextClause:
    return text(f"""
        UPDATE builds SET version = n.version + 1, status = n.status, root = n.root, attempt = n.attempt,
            generation = n.generation, deadline = n.deadline, said = n.said, story = n.story
        FROM {_changed_rows(dialect)} WHERE builds.id = n.id AND builds.version = n.version""")


_PLACE = text("UPDATE builds SET placed = :placed WHERE id = :id")
# Each names the condition of its partial index, word for word: SQLite uses the index only then.
_OVERDUE = text(f"""
    SELECT {_COLUMNS} FROM builds
    WHERE {UNSETTLED} AND status = 'building' AND deadline <= :now ORDER BY deadline LIMIT :limit""")
_SILENT = text(f"""
    UPDATE builds SET said = :now
    WHERE id IN (SELECT id FROM builds WHERE {UNSETTLED} AND said <= :since AND id > :after
        ORDER BY id LIMIT :limit)
    RETURNING {_COLUMNS}""")
_PRUNE = text(f"""
    DELETE FROM builds
    WHERE id IN (SELECT id FROM builds WHERE {OVER} AND said < :before ORDER BY said LIMIT :limit)""")
_CENSUS = text("SELECT id, status, root, generation FROM builds")
