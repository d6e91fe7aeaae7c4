"""The form in which `Build.parts` and the status `held` are stored, and shown to clients.

The stored form is older than parts: fields of features are fields of a build, and statuses of features are
statuses of a build. This module names features until messages and rows carry parts.
"""

from typing import cast

from bus.queries import BuildStands
from cell_conductor.core.build import Build, BuildParts, Status
from cell_conductor.core.course import Courses, shown
from cell_conductor.moves.core.move import BuildMove, HeldStatus, MoveState, held_status, last_move
from cell_conductor.preemption.courses import Awaited, Vacate

_HELD: dict[str, HeldStatus] = {
    "moving": "moving",
    "verifying": "verifying",
    "shelved": "shelved",
    "moved": "moved",
}


def stored_status(build: Build) -> str:
    return held_status(build) or build.status


def read_status(stored: str) -> Status:
    return "held" if stored in _HELD else cast(Status, stored)


def read_parts(
    stored_status: str, move: BuildMove | None, awaits: tuple[str, ...], vacates: Vacate | None
) -> BuildParts:
    held = _HELD.get(stored_status)
    moved = MoveState(move, held) if move is not None or held is not None else None
    return BuildParts(vacates, Awaited(awaits) if awaits else None, moved)


def awaits(build: Build) -> tuple[str, ...]:
    awaited = build.parts.get(Awaited)
    return awaited.builds if awaited is not None else ()


def stands(build: Build, courses: Courses) -> BuildStands | None:
    """Return a build as clients see it; None if it is in another cell."""
    status, guest_on = shown(build, courses)
    move = last_move(build)
    if build.placed is None or status == "moved":
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
