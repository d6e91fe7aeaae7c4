"""`berth confirm`, `revert`, `abort`, `force`: control moves in progress."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.commands.asking_cells import known_cells, named
from berth.commands.following import MoveListener, MoveOutcome, following, moves_of, waiting_moves
from berth.commands.move_output import MovePrinter
from berth.commands.options import Json, StateDir
from berth.commands.terminal import CommandRefused, checked, complain, effective, run, say, write_json
from berth.commands.whereabouts import uuid_of
from berth.publishing import PATIENCE, publish
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildCancelled, BuildCancelRequested
from bus.moves import FindMoves, MoveProgress, MoveStands, MoveSteered, Steering
from bus.queries import WaitingRequest

CANCEL_SECONDS = 30.0  # for a scheduler to confirm a cancellation
ANSWER_SECONDS = 5.0  # for a cell to accept or refuse
_GOOD = {"confirm": ("done",), "force": ("done",), "revert": ("reverted",), "abort": ("aborted", "reverted")}

commands = typer.Typer()

OfMove = Annotated[
    list[str], typer.Argument(metavar="BUILD|MOVE...", help="Uuids of instances, or of their moves.")
]
Follow = Annotated[
    bool, typer.Option("--wait", help="Follow it to its end; exit 1 unless that is the one you asked for.")
]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to follow it.")]
Cell = Annotated[str, typer.Option(help="The cell it is in, if you know: then nobody else is asked.")]


@commands.command("confirm")
def confirm_command(
    of: OfMove,
    wait: Follow = False,
    timeout: Timeout = 600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Confirm a move that waits for it: the instance stays at its destination, and the source is released."""
    run(steer(effective(state_dir=state_dir).settings, of, "confirm", cell, wait, timeout, as_json, say))


@commands.command("revert")
def revert_command(
    of: OfMove,
    wait: Follow = False,
    timeout: Timeout = 600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Revert a move that waits for confirmation: the instance returns to its source, unchanged."""
    run(steer(effective(state_dir=state_dir).settings, of, "revert", cell, wait, timeout, as_json, say))


@commands.command("abort")
def abort_command(
    of: OfMove,
    wait: Follow = False,
    timeout: Timeout = 600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """End a move early: the instance continues at its source.

    Possible until it is started on its new host; later the command is refused. A move that waits for
    capacity stops waiting.
    """
    run(steer(effective(state_dir=state_dir).settings, of, "abort", cell, wait, timeout, as_json, say))


@commands.command("force")
def force_command(
    of: OfMove,
    wait: Follow = False,
    timeout: Timeout = 600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """End the copying of a live move early: the instance is stopped for the rest.

    For an instance that changes its memory faster than it can be copied.
    """
    run(steer(effective(state_dir=state_dir).settings, of, "force", cell, wait, timeout, as_json, say))


async def steer(
    settings: Settings,
    of: Sequence[str],
    to: Steering,
    cell: str,
    wait: bool,
    timeout: float,
    as_json: bool,
    say: Console,
) -> int:
    ids = list(dict.fromkeys(uuid_of(one, "a build or a move") for one in of))
    async with Bus(wiring.transport(settings, "steer")) as bus:
        cells = (cell,) if cell else await known_cells(bus, settings)
        telling = MovePrinter(as_json, say)
        meant = [await _meant(bus, cells, id_, to) for id_ in ids]
        cancelled = [await _wait_ended(bus, one, telling) for one in meant if isinstance(one, WaitingRequest)]
        # A move that no longer waited has just begun
        begun = [await _under_way(bus, cells, move) for move in cancelled if move]
        under_way = [one for one in meant if isinstance(one, MoveStands)] + begun
        steering = _Steered(bus, to, wait, timeout, telling)
        async with asyncio.TaskGroup() as group:
            each = [group.create_task(steering.steer(stands)) for stands in under_way]
    return 0 if all(task.result() for task in each) else 1


async def _meant(bus: Bus, cells: Sequence[str], id_: str, to: Steering) -> MoveStands | WaitingRequest:
    """Return the move in progress or, for abort, one that waits for capacity."""
    try:
        return await _under_way(bus, cells, id_)
    except CommandRefused:
        waiting = await waiting_moves(bus, (id_,)) if to == "abort" else ()
        if waiting:
            return waiting[0]
        raise


async def _wait_ended(bus: Bus, waits: WaitingRequest, telling: MovePrinter) -> str:
    """Return an empty string if it no longer waits; else its id, because it has begun or ended."""
    said = await end_wait(bus, waits.request)
    if not said.waited:
        return waits.request
    build = next(iter(waits.builds), "")
    telling.over(MoveOutcome(move=waits.request, build=build, end="cancelled", kind=waits.move))
    return ""


async def end_wait(bus: Bus, request: str) -> BuildCancelled:
    """Cancel a waiting move; one that has a host by then keeps it."""
    name = f"steer-{Clock().uuid()[:8]}"
    answers = await bus.listen(topics.BUILD_CANCELLED.at(reply_to=name))
    try:
        await publish(bus, checked(BuildCancelRequested(build=request, reply_to=name)), patience=PATIENCE)
        async with asyncio.timeout(CANCEL_SECONDS):
            return await answers.get()
    except TimeoutError:
        raise CommandRefused(
            f"no scheduler said within {CANCEL_SECONDS:g} s that {request} waits no more; one that"
            " comes back will still end it"
        ) from None
    finally:
        await answers.stop()


async def _under_way(bus: Bus, cells: Sequence[str], id_: str) -> MoveStands:
    """The move that is meant: it itself, or the one its build is in."""
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
        raise CommandRefused(
            f"move {elsewhere.move} of {elsewhere.build} is on its way to cell {elsewhere.in_cell}:"
            " say it again when it is there"
        )
    if over is not None:
        raise CommandRefused(f"move {over.move} of {over.build} is over: {over.phase}")
    unheard = f"; did not answer: {named(silent)}" if silent else ""
    raise CommandRefused(f"{id_}: no move of it is under way{unheard}")


@asynccontextmanager
async def word_said(
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


class _Steered:
    """Steers several moves with one message each."""

    def __init__(self, bus: Bus, to: Steering, wait: bool, timeout: float, telling: MovePrinter) -> None:
        self.bus = bus
        self.to: Steering = to
        self.wait = wait
        self.timeout = timeout
        self.telling = telling

    async def steer(self, stands: MoveStands) -> bool:
        """Return whether the move reached the requested state; without --wait, whether its cell accepted the
        message.
        """
        try:
            async with word_said(self.bus, stands, self.to, self.telling) as (outcome, answer):
                if answer.done() and answer.result().refused:
                    return self._refused(answer.result())
                if not self.wait and not outcome.done():
                    return self._taken(stands, heard=answer.done())
                return self._over(await self._within(outcome, stands))
        except asyncio.CancelledError:
            complain.print(f"{self.to} was said; `berth moves show {stands.move}` shows what comes of it")
            raise

    async def _within(self, outcome: asyncio.Future[MoveOutcome], stands: MoveStands) -> MoveOutcome:
        try:
            async with asyncio.timeout(self.timeout):
                return await outcome
        except TimeoutError:
            raise CommandRefused(
                f"not followed any longer: {stands.move} was not over within {self.timeout:g} s"
            ) from None

    def _refused(self, said: MoveProgress) -> bool:
        if self.telling.as_json:
            write_json(said)
        else:
            self.telling.say.print(f"{said.build}: {said.refused}", style="red", markup=False)
        return False

    def _taken(self, stands: MoveStands, *, heard: bool) -> bool:
        if self.telling.as_json:
            write_json({"move": stands.move, "build": stands.build, "to": self.to, "heard": heard})
        else:
            yet = "" if heard else f", and cell {stands.cell} has not answered yet"
            self.telling.say.print(f"{stands.build}: {self.to} is said{yet}", markup=False)
        return True

    def _over(self, outcome: MoveOutcome) -> bool:
        self.telling.over(outcome)
        return outcome.end in _GOOD[self.to]
