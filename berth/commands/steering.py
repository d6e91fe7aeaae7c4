"""`berth confirm`, `revert`, `abort`, `force`: control moves in progress."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from berth.commands.move_output import MovePrinter
from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, complain, write_json
from berth.operations.cells import known_cells, uuid_of
from berth.operations.following import MoveOutcome, waiting_moves
from berth.operations.moving import end_wait, move_in_progress, steering
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.moves import MoveProgress, MoveStands, Steering
from bus.queries import WaitingRequest

_GOOD = {"confirm": ("done",), "force": ("done",), "revert": ("reverted",), "abort": ("aborted", "reverted")}

commands = Commands()


@dataclass(frozen=True)
class SteeringOptions:
    """The options of the four commands."""

    of: Annotated[
        list[str], typer.Argument(metavar="BUILD|MOVE...", help="Uuids of instances, or of their moves.")
    ]
    wait: bool = option(False, "Follow it to its end; exit 1 unless that is the one you asked for.")
    timeout: float = option(600.0, "Seconds to follow it.", min=0)
    cell: str = option("", "The cell it is in, if you know: then nobody else is asked.")


@commands.command("confirm")
async def confirm(cli: Cli, options: SteeringOptions) -> int:
    """Confirm a move that waits for it: the instance stays at its destination, and the source is released."""
    return await steer(cli, options, "confirm")


@commands.command("revert")
async def revert(cli: Cli, options: SteeringOptions) -> int:
    """Revert a move that waits for confirmation: the instance returns to its source, unchanged."""
    return await steer(cli, options, "revert")


@commands.command("abort")
async def abort(cli: Cli, options: SteeringOptions) -> int:
    """End a move early: the instance continues at its source.

    Possible until it is started on its new host; later the command is refused. A move that waits for
    capacity stops waiting.
    """
    return await steer(cli, options, "abort")


@commands.command("force")
async def force(cli: Cli, options: SteeringOptions) -> int:
    """End the copying of a live move early: the instance is stopped for the rest.

    For an instance that changes its memory faster than it can be copied.
    """
    return await steer(cli, options, "force")


async def steer(cli: Cli, options: SteeringOptions, to: Steering) -> int:
    ids = list(dict.fromkeys(uuid_of(one, "a build or a move") for one in options.of))
    async with cli.bus("steer") as bus:
        cells = (options.cell,) if options.cell else await known_cells(bus, cli.settings)
        telling = MovePrinter(cli)
        meant = [await _meant(bus, cells, id_, to) for id_ in ids]
        cancelled = [await _wait_ended(bus, one, telling) for one in meant if isinstance(one, WaitingRequest)]
        # A move that no longer waited has just begun
        begun = [await move_in_progress(bus, cells, move) for move in cancelled if move]
        under_way = [one for one in meant if isinstance(one, MoveStands)] + begun
        steered = _Steered(bus, to, options, telling)
        async with asyncio.TaskGroup() as group:
            each = [group.create_task(steered.steer(stands)) for stands in under_way]
    return 0 if all(task.result() for task in each) else 1


async def _meant(bus: Bus, cells: Sequence[str], id_: str, to: Steering) -> MoveStands | WaitingRequest:
    """Return the move in progress with this id or of this build or, for abort, a move that waits for
    capacity.
    """
    try:
        return await move_in_progress(bus, cells, id_)
    except OperationRefused:
        waiting = await waiting_moves(bus, (id_,)) if to == "abort" else ()
        if waiting:
            return waiting[0]
        raise


async def _wait_ended(bus: Bus, waits: WaitingRequest, telling: MovePrinter) -> str:
    """Return an empty string if the move no longer waits; else its id, because it has begun or ended."""
    said = await end_wait(bus, waits.request)
    if not said.waited:
        return waits.request
    build = next(iter(waits.builds), "")
    telling.over(MoveOutcome(move=waits.request, build=build, end="cancelled", kind=waits.move))
    return ""


class _Steered:
    """The control of several moves, with one message for each."""

    def __init__(self, bus: Bus, to: Steering, options: SteeringOptions, telling: MovePrinter) -> None:
        self.bus = bus
        self.to: Steering = to
        self.wait = options.wait
        self.timeout = options.timeout
        self.telling = telling

    async def steer(self, stands: MoveStands) -> bool:
        """Return whether the move reached the requested state; without --wait, whether its cell accepted the
        message.
        """
        try:
            async with steering(self.bus, stands, self.to, self.telling) as (outcome, answer):
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
            raise OperationRefused(
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
