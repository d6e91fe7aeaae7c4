"""`berth moves`: moves in progress, ended moves, and the phases of each."""

from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import structs
from rich.markup import escape

from berth.commands.move_output import attempts_of, moves_table, phases_table, print_funnel
from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, write_json
from berth.operations.cells import all_shown, ask_cells, chosen_cells, uuid_of
from berth.operations.following import moves_of
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.moves import FindMoves, MoveStands

commands = Commands(name="moves", no_args_is_help=True)


@commands.callback()
def moves() -> None:
    """Moves of instances from host to host."""


@commands.command("list")
async def list_command(
    cli: Cli,
    build: list[str] | None = option(None, "Only this instance's; may be repeated."),
    host: str = option("", "Only those from this host, or to it.", metavar="NAME|UUID"),
    every: bool = option(False, "Those that are over, too.", "--all"),
    cell: list[str] | None = option(None, "Only in this cell; may be repeated."),
    limit: int = option(100, "So many of each cell, the newest.", min=1, max=1000),
) -> int:
    """List the moves in progress in all cells; with --all also ended moves."""
    question = FindMoves(
        cell="any",
        builds=tuple(uuid_of(one) for one in build or ()),
        host=host,
        under_way=not every,
        limit=limit,
    )
    return await list_moves(cli, cell or (), question)


@commands.command("show")
async def show_command(
    cli: Cli,
    of: Annotated[
        str, typer.Argument(metavar="MOVE|BUILD", help="Its uuid; or an instance's: its last one.")
    ],
) -> int:
    """One move: how it stands, every phase with what it took, every host tried, and why it went there."""
    return await show_move(cli, uuid_of(of, "a move or a build"))


async def list_moves(cli: Cli, only: Sequence[str], question: FindMoves) -> int:
    async with cli.bus("moves") as bus:
        found, silent = await _ask(bus, await chosen_cells(bus, cli.settings, only), question)
    found.sort(key=lambda one: (-one.since, one.move))
    none = "none is under way (--all shows those that are over)" if question.under_way else "none"
    cli.rows(found, moves_table(found, Clock().now()) if found else none)
    all_shown(silent)
    return 0


async def show_move(cli: Cli, id_: str) -> int:
    async with cli.bus("moves") as bus:
        cells = await chosen_cells(bus, cli.settings, ())
        found, silent = await _ask(bus, cells, FindMoves(cell="any", moves=(id_,)))
        if not found:
            found, silent = await _ask(bus, cells, FindMoves(cell="any", builds=(id_,)))
    if not found:
        all_shown(silent)
        raise OperationRefused(
            f"no cell knows a move {id_}, or one of a build {id_}; of one that waits or was refused"
            f" `berth why {id_}` tells"
        )
    one = max(found, key=lambda each: (not each.ended, each.since))
    if cli.as_json:
        write_json(one)
        return 0
    for fact in facts_of(one):
        cli.say.print(fact)
    if one.phases:
        cli.say.print(phases_table(one))
    for line in attempts_of(one.attempts):
        cli.line(line)
    if one.decision.considered:
        cli.say.print("why there", style="bold")
        print_funnel(one.decision, cli.say)
    return 0


def facts_of(move: MoveStands) -> list[str]:
    way = f"from {move.source or '-'} to {move.host or '-'}"
    percent = f", {move.percent}%" if move.percent and not move.ended else ""
    verb = "ended" if move.ended else "is at"
    facts = [
        f"{move.kind} {move.move} of {move.build}, {way} in cell {move.cell}: {verb} {move.phase}{percent}"
    ]
    if move.reason:
        facts.append(f"  {move.reason}")
    return [escape(printable(fact)) for fact in facts]


async def _ask(bus: Bus, cells: Sequence[str], question: FindMoves) -> tuple[list[MoveStands], list[str]]:
    """Query the cells for their moves in parallel. Return the moves, and the cells that did not answer.

    Of a move that two cells know, the record of the responsible cell is returned.
    """
    answers, silent = await ask_cells(cells, lambda cell: moves_of(bus, structs.replace(question, cell=cell)))
    found = [move for answer in answers.values() for move in answer]
    known = {move.move for move in found if not move.in_cell}
    return [move for move in found if not move.in_cell or move.move not in known], silent
