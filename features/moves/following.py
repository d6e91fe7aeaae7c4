"""Requests moves as a client, and returns the result of each move even if messages are lost."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from berth.operations.publishing import PATIENCE, each_message, publish
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, Unavailable, Unroutable
from bus.messages import Attempt
from bus.parts import waits_for
from bus.queries import FindWaiting, WaitingRequest
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MOVE_REFUSED,
    FindMoves,
    MoveEnded,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MoveStands,
    PhaseOver,
)

POLL_SECONDS = 2.0  # between two reads of the cells' records of moves, in case a message was lost
AGAIN_SECONDS = 15.0  # time until a move is requested again that no cell knows and no scheduler refused
_MOVES_A_POLL = 500  # moves in one query

REFUSED = "refused"
VERIFYING = "verifying"  # the move waits for confirm or revert


@dataclass(frozen=True, kw_only=True)
class MoveOutcome:
    """The result of a move, from a message or from a cell's records."""

    move: str
    build: str
    end: str  # a MoveEnd, REFUSED or VERIFYING
    kind: str = ""
    host: str = ""
    reason: str = ""
    code: str = ""
    phases: tuple[PhaseOver, ...] = ()
    attempts: tuple[Attempt, ...] = ()


@dataclass
class _Open:
    """A move with a result that a client awaits, and the progress (`shown`) last reported to its listener."""

    cell: str
    asked: MoveRequested | None  # None: requested by another client
    since: float
    outcome: asyncio.Future[MoveOutcome]
    past_verifying: bool = False
    shown: tuple[str, str, int] = field(default=("", "", 0))


class MoveListener:
    """Base class of objects that receive the progress of moves; its methods do nothing."""

    def progress(self, progress: MoveProgress) -> None: ...

    def waits(self, waiting: WaitingRequest) -> None: ...

    def on_outcome(self, outcome: MoveOutcome) -> None: ...


class FollowedMoves:
    """Watches several moves at the same time, each until it has a result; reports progress to a listener."""

    def __init__(self, bus: Bus, name: str, listener: MoveListener) -> None:
        self.bus = bus
        self.reply_to = name
        self._listener = listener
        self._open: dict[str, _Open] = {}

    async def ask(self, request: MoveRequested) -> MoveOutcome:
        """Request a move, and return its result when it has ended or waits for confirmation."""
        outcome = self.join(request.move, request.cell, asked=request)
        try:
            await publish(self.bus, request, patience=PATIENCE)
        except (Unavailable, Unroutable):
            # Else it would be requested again. A move with a result was published in spite of the error.
            if self._open.pop(request.move, None) is not None:
                raise
        return await outcome

    def join(
        self, move: str, cell: str, *, past_verifying: bool = False, asked: MoveRequested | None = None
    ) -> asyncio.Future[MoveOutcome]:
        """Begin to follow a requested move, and return the future of its result. Without `past_verifying` a
        wait for confirmation is a result, too. `asked`: the request, if this client sent it.
        """
        outcome = asyncio.get_running_loop().create_future()
        since = self.bus.clock.monotonic()
        self._open[move] = _Open(cell, asked, since, outcome, past_verifying)
        return outcome

    def refused(self, refusal: MoveRefused) -> None:
        self._end(_outcome(refusal, end=REFUSED))

    def ended(self, move_ended: MoveEnded) -> None:
        self._end(_outcome(move_ended))

    def progress(self, progress: MoveProgress) -> None:
        followed = self._open.get(progress.move)
        if followed is None:
            return
        if progress.refused:
            self._listener.progress(progress)
            return
        now = (progress.phase, progress.host, progress.percent)
        if now != followed.shown:
            followed.shown = now
            self._listener.progress(progress)
        if progress.phase in ("verify", VERIFYING) and not followed.past_verifying:
            self._end(
                MoveOutcome(move=progress.move, build=progress.build, end=VERIFYING, host=progress.host)
            )

    def _end(self, outcome: MoveOutcome) -> None:
        followed = self._open.pop(outcome.move, None)
        if followed is not None and not followed.outcome.done():
            followed.outcome.set_result(outcome)

    async def poll(self) -> None:
        """Query the cells repeatedly for moves without a result, because messages may be lost."""
        wait = POLL_SECONDS / 8
        while True:
            await asyncio.sleep(wait)
            wait = min(2 * wait, POLL_SECONDS)
            cells: dict[str, list[str]] = {}
            for move, open in self._open.items():
                cells.setdefault(open.cell, []).append(move)
            for cell, moves in cells.items():
                await self._read_states(cell, moves[:_MOVES_A_POLL])

    async def _read_states(self, cell: str, moves: list[str]) -> None:
        found = await moves_of(self.bus, FindMoves(cell=cell, moves=tuple(moves), limit=_MOVES_A_POLL))
        if found is None:
            return  # the cell does not answer
        for stands in found:
            if stands.in_cell:  # the move's other cell reports the result
                if (followed := self._open.get(stands.move)) is not None:
                    followed.cell = stands.in_cell
            elif stands.ended:
                back = stands.phase in ("reverted", "aborted")
                host = stands.at or (stands.source if back else stands.host)  # older cells have no `at`
                self._end(_outcome(stands, end=stands.phase, host=host))
            elif stands.move in self._open:
                self.progress(
                    MoveProgress(
                        move=stands.move, build=stands.build, cell=cell, phase=stands.phase,
                        host=stands.towards, percent=stands.percent,
                    )
                )  # fmt: skip
        await self._ask_again({*moves} - {stands.move for stands in found})

    async def _ask_again(self, unknown: Collection[str]) -> None:
        """Repeat the requests of moves that no cell has a record of: such a move may have been refused and
        the message with the refusal lost, and the scheduler then refuses the move again.
        """
        now = self.bus.clock.monotonic()
        waiting = await self._that_wait(unknown)
        for move in sorted(unknown):
            followed = self._open.get(move)
            if followed is None or followed.asked is None or now - followed.since < AGAIN_SECONDS:
                continue
            if waits_for(followed.asked.parts) and (waiting is None or move in waiting):
                continue
            followed.since = now
            try:
                await self.bus.publish(followed.asked)
            except (Unavailable, Unroutable):
                return

    async def _that_wait(self, moves: Collection[str]) -> Collection[str] | None:
        """Return which of the moves wait for capacity, or None if no scheduler answers. Only moves that this
        client has requested, with permission to wait, are queried.
        """
        open_ = [self._open[move] for move in sorted(moves) if move in self._open]
        may = [open.asked.move for open in open_ if open.asked is not None and waits_for(open.asked.parts)]
        if not may:
            return ()
        found = await waiting_moves(self.bus, may)
        for request in found or ():
            self._listener.waits(request)
        return None if found is None else {request.request for request in found}


def _outcome(message: MoveRefused | MoveEnded | MoveStands, **changed: str) -> MoveOutcome:
    """Return a move's result, copied from a message or a cell's record; `changed` has values that replace
    the copied fields.
    """
    fields = {
        name: getattr(message, name) for name in MoveOutcome.__dataclass_fields__ if hasattr(message, name)
    }
    return MoveOutcome(**fields | changed)


async def moves_of(bus: Bus, question: FindMoves) -> tuple[MoveStands, ...] | None:
    """Query a cell for one page of its moves; return None if the cell does not answer."""
    try:
        return (await bus.asker(FIND_MOVES)(question)).moves
    except UNANSWERED:
        return None


async def waiting_moves(bus: Bus, ids: Collection[str]) -> tuple[WaitingRequest, ...] | None:
    """Return the moves that wait for capacity and have one of the given ids (of the move or of its build);
    None if no scheduler answers.
    """
    try:
        found = await bus.asker(topics.WAITING)(FindWaiting(requests=tuple(ids), limit=_MOVES_A_POLL))
    except UNANSWERED:
        return None
    return tuple(request for request in found.waiting if request.move)


@asynccontextmanager
async def following(bus: Bus, name: str, listener: MoveListener) -> AsyncIterator[FollowedMoves]:
    """Yield an object that watches moves in the `with` block.

    `name`: the reply address (`reply_to`) at which the client receives progress and results of its moves.
    """
    moves = FollowedMoves(bus, name, listener)
    refusals = await bus.listen(MOVE_REFUSED.at(reply_to=name))
    ends = await bus.listen(MOVE_ENDED.at(reply_to=name))
    progress = await bus.listen(MOVE_PROGRESS.at(reply_to=name))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(each_message(refusals, moves.refused)),
            group.create_task(each_message(ends, moves.ended)),
            group.create_task(each_message(progress, moves.progress)),
            group.create_task(moves.poll()),
        ]
        try:
            yield moves
        finally:
            for task in tasks:
                task.cancel()
            for subscription in (refusals, ends, progress):  # the bus may be used afterwards
                await subscription.stop()
