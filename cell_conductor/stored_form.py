"""Encodes builds as rows and as answers to clients, and decodes stored builds.

The stored form is older than `Build.parts`: a build has fields and statuses of features. This module names
features until messages and rows carry parts.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from bus import parts
from bus.errors import NOT_JSON, Poison
from bus.messages import Attempt, BuildPlaced, Selection
from bus.queries import BuildStands
from bus.requests import BuildSpec
from bus.vocabulary import Compact
from cell_conductor.core.build import Build, BuildParts, Leftover
from cell_conductor.core.course import Courses, shown
from cell_conductor.moves.core.move import BuildMove, HeldStatus, MovePart, held_status, last_move
from cell_conductor.preemption.courses import Awaited, Vacate

log = logging.getLogger(__name__)

LOST = "what its conductor had stored of it could not be read any more"

_HELD: dict[str, HeldStatus] = {status: status for status in get_args(HeldStatus)}


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


_encode = parts.stored_encoder().encode
_story = msgspec.json.Decoder(_StoredContext).decode
_placed = parts.stored_decoder(BuildPlaced).decode
_changed = parts.stored_decoder(_ChangedBuild).decode
decode_leftovers = msgspec.json.Decoder(tuple[Leftover, ...]).decode


def encoded(value: Any) -> str:
    return _encode(value).decode() if value else ""


def state_columns(build: Build) -> tuple[Any, ...]:
    """Return the values of the columns of `builds` that steps change, except the leftovers."""
    awaited = build.parts.get(Awaited)
    context = _StoredContext(
        replies=build.replies,
        end=build.end,
        doom=build.doom,
        reshaped=build.reshaped,
        at=build.at,
        attempts=build.attempts,
        started=build.started,
        cell=build.cell,
        awaits=awaited.builds if awaited is not None else (),
        vacates=build.parts.get(Vacate),
    )
    move = last_move(build)
    changed = _ChangedBuild(build.added_hosts, build.new_spec, move)
    values = (held_status(build) or build.status, build.attempt, build.generation, build.deadline)
    return *values, _encode(context).decode(), _encode(changed).decode() if move is not None else ""


def place_columns(build: Build, courses: Courses) -> tuple[str, str, str, str]:
    """Return the values of the columns of `placed_builds` by which builds are found."""
    if build.placed is None:
        return "", "", "", ""
    return build.host.root, shown(build, courses).guest_on.host, build.spec.project, build.spec.name


def readable(rows: Iterable[Mapping[str, Any]]) -> list[Build]:
    """Decode stored builds; an unreadable build is logged and skipped, so that it blocks no other build."""
    found = []
    for row in rows:
        try:
            found.append(read_build(row))
        except Poison as unreadable:
            log.error("passed over: %s", unreadable)
    return found


def read_build(row: Mapping[str, Any]) -> Build:
    """Decode a stored build; raise Poison if its placement or its moves are unreadable."""
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
        status="held" if row["status"] in _HELD else row["status"],
        placed=placed,
        version=row["version"],
        attempt=row["attempt"],
        generation=row["generation"],
        deadline=row["deadline"],
        leftovers=_read_leftovers(row),
        added_hosts=changed.added_hosts,
        new_spec=changed.new_spec,
        parts=_parts(row["status"], changed.move, story.pop("awaits"), story.pop("vacates")),
        **story,
    )


def _parts(
    stored_status: str, move: BuildMove | None, awaits: tuple[str, ...], vacates: Vacate | None
) -> BuildParts:
    held = _HELD.get(stored_status)
    moves = MovePart(move, held) if move is not None or held is not None else None
    return BuildParts(vacates, Awaited(awaits) if awaits else None, moves)


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
        end="error" if status == "error" else "active" if status in ("active", *_HELD) else "",
        # the build may have had to end in error, so it ends in error
        doom=LOST if status in ("swapping", "error") else "",
        reshaped=0,
        at=next((number for number, host in enumerate(hosts) if host.root == row["root"]), 0),
        attempts=(),
        started=0.0,
        cell=placed.cell if placed else "unknown",
    )


def stands(build: Build, courses: Courses) -> BuildStands | None:
    """Return a build as clients see it; None if it was never placed, or is in another cell."""
    if build.placed is None:
        return None
    status, guest_on = shown(build, courses)
    move = last_move(build)
    if status == "moved":
        return None
    return BuildStands(
        build=build.id,
        status=status,
        placed=build.as_placed,
        host=guest_on.host,
        attempts=build.attempts,
        reason=build.doom,
        attempt=build.attempt,
        generation=build.generation,
        chosen=build.host,
        spec=build.spec,
        move=move.id if move is not None else None,
    )
