"""Encodes builds as rows and as answers to clients, and decodes stored builds."""

import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Literal, get_args

import msgspec

from bus.errors import NOT_JSON, Poison
from bus.messages import Attempt, BuildPlaced, Selection
from bus.parts import stored_decoder, stored_encoder
from bus.queries import BuildStands
from bus.requests import BuildSpec
from bus.vocabulary import Compact
from cell_conductor.core.build import Build, BuildParts, Leftover, Status
from cell_conductor.core.course import Courses, HeldStatuses, guest_on, operation

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
