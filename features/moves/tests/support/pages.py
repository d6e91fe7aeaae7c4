"""The pages of moves and the forms of drains, for tests of all pages of the control room."""

from typing import Any

from bus.worker import Worker, answers, on
from features.moves import plan_requests
from features.moves.messages import (
    FIND_MOVES,
    MOVE_PROGRESS,
    MOVE_STEER,
    FindMoves,
    MoveProgress,
    MoveRequested,
    MovesFound,
    MoveStands,
    MoveSteered,
)
from features.moves.pages import STEERINGS
from tests.support.ids import uid
from tests.support.waiting import in_time

MOVE = uid(9)
PATIENCE = (plan_requests,)  # modules whose questions are repeated for PUBLISH_SECONDS, without answers
OPEN_HOST, DRAINED_HOST = uid(1, "a"), uid(2, "a")  # of the tests of roles

PAGES = {"moves": "/moves", "move": "/moves/{move}"}
VALUES: dict[str, str] = {}
FORMS = {
    "/hosts/{host}": [
        (f"/hosts/{OPEN_HOST}", "mark host", {"act": "drain"}),
        (f"/hosts/{DRAINED_HOST}", "mark host", {"act": "stop-drain"}),
        (f"/hosts/{DRAINED_HOST}", "mark host", {"act": "stop-drain-and-open"}),
    ],
    "/moves": [
        ("/moves", "mark host", {"act": act, "root": DRAINED_HOST}) for act in ("stop", "stop-and-open")
    ],
    "/moves/{move}": [(f"/moves/{MOVE}", "steer move", {"act": act}) for act in STEERINGS],
}
PARAMETERS = {"/moves": ("host",)}
STREAMS = ("/moves",)
IN_PATHS = ("/moves/{}", "/moves/{}/events")
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {
    "/hosts/host-1": {"most": {"act": "drain"}},
    "/moves": {"root": {}, "act": {}},
    f"/moves/{uid(1)}": {"act": {}},
}


async def steered(order: MoveSteered) -> MoveProgress:
    return MoveProgress(
        move=order.move, build=order.build, cell="c1", phase="send", host="h", reply_to=order.reply_to
    )


async def found(_: FindMoves) -> MovesFound:
    return MovesFound(
        moves=(MoveStands(move=MOVE, build=uid(2), kind="live", cell="c1", phase="send", host="h"),)
    )


CELLS = (
    Worker(
        "cell",
        consumes=[on(MOVE_STEER.at(cell="c1"), steered, emits=[MOVE_PROGRESS])],
        answers=[answers(FIND_MOVES, found, cell="c1")],
    ),
)


def workers() -> list[Any]:
    return []


async def fill(berth: Any) -> None:
    """Migrate an instance until the move waits for confirmation."""
    end = next(end for end in await berth.boot(3) if end.status == "active")
    move, reply_to = berth.bus.clock.uuid(), berth.bus.clock.uuid()
    asked = MoveRequested(move=move, build=end.build, kind="migrate", verify=True, reply_to=reply_to)
    listener = await berth.bus.listen(MOVE_PROGRESS.at(reply_to=reply_to))
    await berth.bus.publish(asked)
    while (await in_time(listener.get())).phase != "verify":
        pass
    await listener.stop()
    berth.named["move"] = move
