"""`berth confirm`, `revert`, `abort`, `force`: control moves in progress."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from berth.commands.move_output import MovePrinter
from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, complain
from berth.operations.cells import known_cells, uuid_of
from berth.operations.following import MoveOutcome, waiting_moves
from berth.operations.moving import end_wait, move_in_progress, steering
from berth.operations.publishing import within
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.moves import MoveStands, Steering
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
    ids = list(dict.fromkeys(uuid_of(given, "a build or a move") for given in options.of))
    async with cli.bus("steer") as bus:
        cells = (options.cell,) if options.cell else await known_cells(bus, cli.settings)
        printer = MovePrinter(cli)
        found = [await _found(bus, cells, id_, to) for id_ in ids]
        waiting = [request for request in found if isinstance(request, WaitingRequest)]
        begun = [request.request for request in waiting if not await _wait_ended(bus, request, printer)]
        moves = [move for move in found if isinstance(move, MoveStands)]
        moves += [await move_in_progress(bus, cells, move) for move in begun]
        async with asyncio.TaskGroup() as group:
            each = [group.create_task(_steer(bus, move, to, options, printer)) for move in moves]
    return 0 if all(task.result() for task in each) else 1


async def _found(bus: Bus, cells: Sequence[str], id_: str, to: Steering) -> MoveStands | WaitingRequest:
    """Return the move in progress with this id or of this build or, for abort, a move that waits."""
    try:
        return await move_in_progress(bus, cells, id_)
    except OperationRefused:
        waiting = await waiting_moves(bus, (id_,)) if to == "abort" else ()
        if waiting:
            return waiting[0]
        raise


async def _wait_ended(bus: Bus, waits: WaitingRequest, printer: MovePrinter) -> bool:
    """End the wait of a move. Return False if it no longer waited, because it has just begun."""
    said = await end_wait(bus, waits.request)
    if said.waited:
        build = next(iter(waits.builds), "")
        printer.over(MoveOutcome(move=waits.request, build=build, end="cancelled", kind=waits.move))
    return said.waited


async def _steer(
    bus: Bus, stands: MoveStands, to: Steering, options: SteeringOptions, printer: MovePrinter
) -> bool:
    """Return whether the move reached the requested state; without --wait, whether it was not refused."""
    try:
        async with steering(bus, stands, to, printer) as (outcome, answer):
            if answer.done() and (refusal := answer.result()).refused:
                printer.cli.value(refusal, f"{refusal.build}: {refusal.refused}", "red")
                return False
            if not options.wait and not outcome.done():
                yet = "" if answer.done() else f", and cell {stands.cell} has not answered yet"
                facts = {"move": stands.move, "build": stands.build, "to": to, "heard": answer.done()}
                printer.cli.tell(f"{stands.build}: {to} is said{yet}", **facts)
                return True
            late = f"not followed any longer: {stands.move} was not over within {options.timeout:g} s"
            ended = await within(options.timeout, outcome, late)
            printer.over(ended)
            return ended.end in _GOOD[to]
    except asyncio.CancelledError:
        complain.print(f"{to} was said; `berth moves show {stands.move}` shows what comes of it")
        raise
