"""Steers moves in progress: confirm, revert, abort, force; and ends the wait of moves."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from berth.operations.cells import named
from berth.operations.errors import checked
from berth.operations.following import MoveListener, MoveOutcome, following, moves_of
from berth.operations.publishing import PATIENCE, publish
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import BuildCancelled, BuildCancelRequested
from bus.moves import FindMoves, MoveProgress, MoveStands, MoveSteered, Steering
from bus.queries import WaitingRequest

CANCEL_SECONDS = 30.0  # for a scheduler to confirm a cancellation
ANSWER_SECONDS = 5.0  # for a cell to accept or refuse


async def end_wait(bus: Bus, request: str) -> BuildCancelled:
    """Cancel a waiting move; one that has a host by then keeps it."""
    name = f"steer-{Clock().uuid()[:8]}"
    answers = await bus.listen(topics.BUILD_CANCELLED.at(reply_to=name))
    try:
        await publish(bus, checked(BuildCancelRequested(build=request, reply_to=name)), patience=PATIENCE)
        async with asyncio.timeout(CANCEL_SECONDS):
            return await answers.get()
    except TimeoutError:
        raise OperationRefused(
            f"no scheduler said within {CANCEL_SECONDS:g} s that {request} waits no more; one that"
            " comes back will still end it"
        ) from None
    finally:
        await answers.stop()


async def move_in_progress(bus: Bus, cells: Sequence[str], id_: str) -> MoveStands:
    """Return the move in progress of this id or build, or raise OperationRefused."""
    over: MoveStands | None = None
    elsewhere: MoveStands | None = None
    silent = []
    for cell in cells:
        for question in (
            FindMoves(cell=cell, moves=(id_,)),
            FindMoves(cell=cell, builds=(id_,), under_way=True),
            FindMoves(cell=cell, builds=(id_,), limit=1),
        ):
            found = await moves_of(bus, question)
            if found is None:
                silent.append(cell)
                break
            for move in found:
                if move.in_cell:
                    elsewhere = move
                elif not move.ended:
                    return move
                else:
                    over = move
    if elsewhere is not None and (over is None or over.move != elsewhere.move):
        raise OperationRefused(
            f"move {elsewhere.move} of {elsewhere.build} is on its way to cell {elsewhere.in_cell}:"
            " say it again when it is there"
        )
    if over is not None:
        raise OperationRefused(f"move {over.move} of {over.build} is over: {over.phase}")
    unheard = f"; did not answer: {named(silent)}" if silent else ""
    raise OperationRefused(f"{id_}: no move of it is under way{unheard}")


@asynccontextmanager
async def steering(
    bus: Bus, stands: MoveStands, to: Steering, telling: MoveListener
) -> AsyncIterator[tuple[asyncio.Future[MoveOutcome], asyncio.Future[MoveProgress]]]:
    """Publish the steering message, and yield futures of the move's result and of the cell's answer."""
    name = f"steer-{Clock().uuid()[:8]}"
    order = MoveSteered(move=stands.move, build=stands.build, cell=stands.cell, to=to, reply_to=name)
    answer: asyncio.Future[MoveProgress] = asyncio.get_running_loop().create_future()
    async with following(bus, name, _Answered(answer, telling)) as moves:
        outcome = moves.join(stands.move, stands.build, stands.cell, past_verifying=True)
        await publish(bus, checked(order), patience=PATIENCE)
        await asyncio.wait((outcome, answer), timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        yield outcome, answer


class _Answered:
    """Takes the first message as the answer."""

    def __init__(self, answer: "asyncio.Future[MoveProgress]", telling: MoveListener) -> None:
        self._answer = answer
        self._telling = telling

    def progress(self, said: MoveProgress) -> None:
        if not self._answer.done():
            self._answer.set_result(said)
        if not said.refused:
            self._telling.progress(said)

    def waits(self, said: WaitingRequest) -> None:
        self._telling.waits(said)
