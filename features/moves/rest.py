"""The moves' part of the REST API: requests moves, shows them, and steers them."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

from msgspec import structs
from starlette.responses import Response

from berth.kit import (
    REPLY_TO,
    Call,
    DescribedOperation,
    EndRule,
    NotFound,
    RestCaller,
    RestOperation,
    RestPart,
    RestRequests,
    answer,
    ask_cells,
    known_cells,
)
from features.moves.messages import (
    FIND_MOVES,
    FindMoves,
    MoveConflict,
    MoveEnded,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveStands,
    MoveSteered,
    Steering,
)
from features.moves.rest_bodies import MoveAccepted, MoveDetails, SteerRequested


async def move(call: Call) -> Response:
    return answer(await request_move(call.operations, call.caller, await call.body(MoveRequested)), 202)


async def show_move(call: Call) -> Response:
    return answer(await shown_move(call.operations, call.caller, call.id))


async def steer(call: Call) -> Response:
    to = (await call.body(SteerRequested)).to
    return answer(await steer_move(call.operations, call.caller, call.id, to), 202)


async def request_move(operations: RestRequests, caller: RestCaller, asked: MoveRequested) -> MoveAccepted:
    """Accept a move of an instance, if the caller may move it."""
    owners = await operations.owners(caller, asked, asked.build)
    project = owners.projects[asked.build]
    asked = structs.replace(asked, reply_to=REPLY_TO)
    await operations.accept_request(caller, asked.move, asked, project, owners)
    return MoveAccepted(move=asked.move, build=asked.build)


async def shown_move(operations: RestRequests, caller: RestCaller, id_: str) -> MoveDetails:
    """Return a move that the caller may read."""
    stands = await _stands(operations, id_)
    if stands is not None:
        with _unknown(id_):
            await operations.project(caller, stands.build)
        return MoveDetails(move=id_, build=stands.build, status=stands.phase, stands=stands)
    await operations.project(caller, id_)
    refusal = await operations.end_of(id_, MoveRefused)
    if refusal is not None:
        return MoveDetails(move=id_, build=refusal.build, status="refused", reason=refusal.reason)
    waiting = await operations.waiting(id_)
    build = waiting.builds[0] if waiting is not None and waiting.builds else ""
    status = "waiting" if waiting else "requested"
    return MoveDetails(move=id_, build=build, status=status, waiting=waiting)


async def steer_move(operations: RestRequests, caller: RestCaller, id_: str, to: Steering) -> MoveAccepted:
    """Accept an order for a move in progress, if the caller may steer it."""
    stands = await _stands(operations, id_)
    if stands is None:
        raise NotFound(_UNKNOWN.format(id_))
    order = MoveSteered(move=id_, build=stands.build, cell=stands.cell, to=to, reply_to=REPLY_TO)
    with _unknown(id_):
        owners = await operations.owners(caller, order, stands.build)
    project = owners.projects[stands.build]
    caller.check(order, project, owners, MovesFound(moves=(stands,)))
    await operations.join(id_, project)
    await operations.publish([order])
    return MoveAccepted(move=id_, build=stands.build)


@contextmanager
def _unknown(move: str) -> Iterator[None]:
    """Refuse a move as an unknown one if the caller may not read its build: the refusal names no build."""
    try:
        yield
    except NotFound:
        raise NotFound(_UNKNOWN.format(move)) from None


_UNKNOWN = "no cell that answers has a move {}"


async def _stands(operations: RestRequests, move: str) -> MoveStands | None:
    find = operations.bus.asker(FIND_MOVES)
    cells = await known_cells(operations.bus, operations.settings)
    found, _ = await ask_cells(cells, lambda cell: find(FindMoves(cell=cell, moves=(move,))))
    every = [stands for answered in found.values() for stands in answered.moves]
    return min(every, key=lambda stands: bool(stands.in_cell), default=None)


def _is_result(progress: MoveProgress) -> bool:
    """Return whether a client is to act on a move's progress: to confirm it, or to read a refusal."""
    return bool(progress.refused) or progress.phase == "verify"


_of_move = attrgetter("move")
PART = RestPart(
    operations={
        ("/v1/moves", "POST"): RestOperation(
            DescribedOperation(
                "Move, resize, shelve or rebuild an instance. A repetition changes nothing.",
                MoveAccepted,
                body=MoveRequested,
                status=202,
                refusals=(400, 404, 409),
            ),
            move,
        ),
        ("/v1/moves/{id}", "GET"): RestOperation(
            DescribedOperation("Show a move.", MoveDetails, refusals=(400, 404)), show_move
        ),
        ("/v1/moves/{id}/steer", "POST"): RestOperation(
            DescribedOperation(
                "Confirm, revert, abort or force a move. The result is an event.",
                MoveAccepted,
                body=SteerRequested,
                status=202,
                refusals=(400, 404),
            ),
            steer,
        ),
    },
    ends={
        MoveEnded: EndRule(request=_of_move, subject=_of_move),
        MoveRefused: EndRule(request=_of_move, subject=_of_move, has_record=True),
        MoveConflict: EndRule(request=_of_move, subject=_of_move, repeats=True),
        MoveProgress: EndRule(request=_of_move, subject=_of_move, repeats=True, is_end=_is_result),
    },
)
