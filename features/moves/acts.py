"""The acts on moves, and the refusals of their requests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from msgspec import structs

from bus.acts import BOTH, Act, Requested, Target, allocations_of, sent
from bus.clients import BuildPlace, ProjectsFound
from bus.invalid_requests import InvalidRequest, RequestKind
from bus.vocabulary import Message
from features.moves.messages import (
    FIND_MOVES,
    MOVE_REQUESTED,
    MOVE_STEER,
    FindMoves,
    MoveKind,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveSteered,
)


def _of_move(message: MoveRequested, target: Target, owners: ProjectsFound, state: Message | None) -> Target:
    """Return the target of a move with the cell of the build, or without a cell if the move names another."""
    place = owners.places.get(message.build) or BuildPlace(cell="")
    is_there = message.to_cell in ("", place.cell) and message.source in ("", place.root, place.host)
    project = owners.projects.get(message.build, "")
    return replace(target, cell=place.cell if is_there else "", project=project)


def _bound_move(message: MoveRequested, real: Target, owners: ProjectsFound) -> MoveRequested:
    place = owners.places.get(message.build)
    if place is None or not place.root:
        return message
    return structs.replace(message, cell=place.cell, source=place.root)


def _of_steering(
    message: MoveSteered, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    moves = state.moves if isinstance(state, MovesFound) else ()
    is_there = [(move.build, move.cell, move.in_cell) for move in moves] == [
        (message.build, message.cell, "")
    ]
    project = owners.projects.get(message.build, "")
    return replace(target, cell=message.cell if is_there else "", project=project)


ACTS = (
    Act(
        "move",
        "operator",
        "move, resize, evacuate, shelve or rebuild instances",
        sent(MOVE_REQUESTED),
        limited_by=BOTH,
    ),
    Act(
        "steer move",
        "operator",
        "confirm, revert, abort or force a move",
        sent(MOVE_STEER),
        limited_by=("cells",),
    ),
)
REQUESTED: Mapping[type[Message], Requested] = {
    MoveRequested: Requested(
        state=lambda message: allocations_of(message.build),
        ids=lambda message: ({message.move}, {message.build}),
        real=_of_move,
        bound=_bound_move,
    ),
    MoveSteered: Requested(
        state=lambda message: (FIND_MOVES, FindMoves(cell=message.cell, moves=(message.move,))),
        ids=lambda message: (set(), {message.build}),
        real=_of_steering,
        by_owner=False,  # its cell's record of the move decides
    ),
}


def _not_moved(request: InvalidRequest) -> Message:
    kind: Any = request.fields.get("kind")
    return MoveRefused(
        move=request.id("move"),
        build=request.id("build"),
        kind=kind if kind in get_args(MoveKind) else "migrate",
        reason=request.why,
        code=request.code,
        decision=request.decision,
        reply_to=request.reply_to,
    )


def _not_steered(request: InvalidRequest) -> Message:
    return MoveProgress(
        move=request.id("move"),
        build=request.id("build"),
        cell=request.cell_of(),
        phase="",
        refused=request.why,
        code=request.code,
        reply_to=request.reply_to,
    )


REQUEST_KINDS = (
    RequestKind(MOVE_REQUESTED, _not_moved, "move"),
    RequestKind(MOVE_STEER, _not_steered, "steer"),
)
