"""The operations of the REST API on moves, for tests of all its operations."""

from collections.abc import Callable
from typing import Any

from bus.clock import Clock
from features.moves.messages import FIND_MOVES, FindMoves, MovesFound, MoveStands
from tests.support.ids import uid
from tests.support.rest_region import BUILD

MOVE = uid(1, "d")


def a_move(**fields: Any) -> dict[str, Any]:
    return {"move": Clock().uuid(), "build": BUILD, "kind": "migrate", **fields}


def found(question: FindMoves) -> MovesFound:
    move = MoveStands(move=MOVE, build=BUILD, kind="resize", cell="c1", phase="verify")
    return MovesFound(moves=(move,) if question.cell == "c1" and MOVE in question.moves else ())


OPERATIONS: dict[tuple[str, str], tuple[str, str, Callable[[], Any]]] = {
    ("/v1/moves", "POST"): ("move", "/v1/moves", a_move),
    ("/v1/moves/{id}", "GET"): ("read", f"/v1/moves/{MOVE}", lambda: None),
    ("/v1/moves/{id}/steer", "POST"): ("steer move", f"/v1/moves/{MOVE}/steer", lambda: {"to": "confirm"}),
}
ANSWERS = {FIND_MOVES: found}
