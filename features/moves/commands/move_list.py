"""`berth move list` and `show`; `berth move confirm`, `revert`, `abort` and `force` control moves."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import structs
from rich.table import Table

from berth.kit import (
    SHORTEST_ID,
    ActCli,
    Cli,
    Commands,
    ListCli,
    age_text,
    ask_cells,
    attempts_of,
    chosen_cells,
    complain,
    end_wait,
    known_cells,
    only_one,
    option,
    plain_table,
    positional,
    print_funnel,
    require_all_answers,
    whole_id,
    whole_ids,
    within_seconds,
    write_json,
)
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.messages import BuildCancelRequested
from bus.queries import WaitingRequest
from features.moves.commands.moves import MovePrinter
from features.moves.core.steering import why_not_steered
from features.moves.messages import FindMoves, MoveStands, MoveSteered, Steering
from features.moves.moving import MoveOutcome, move_in_progress, moves_of, steering, waiting_moves

_UUID_LENGTH = 32  # characters at least of a whole id

commands = Commands()
moves = Commands(name="move", no_args_is_help=True)
commands.add_typer(moves)


@moves.command("list")
async def list_command(
    cli: ListCli,
    build: list[str] | None = option(None, "Only this instance's; may be repeated."),
    host: str = option("", "Only moves from or to this host.", metavar="NAME|UUID"),
    every: bool = option(False, "Ended moves, too.", "--all"),
    cell: list[str] | None = option(None, "Only in this cell; may be repeated."),
    limit: int = option(100, "So many of each cell, the newest.", min=1, max=1000),
) -> None:
    """List the moves in progress in all cells; with --all, also moves that have ended."""
    async with cli.bus("moves") as bus:
        builds = await whole_ids(bus, cli.settings, build or ())
        question = FindMoves(cell="any", builds=tuple(builds), host=host, under_way=not every, limit=limit)
        found, silent = await _ask(bus, await chosen_cells(bus, cli.settings, cell or ()), question)
    found.sort(key=lambda move: (-move.since, move.move))
    none = "none" if every else "no move is in progress (--all shows ended ones)"
    cli.rows(found, moves_table(found, Clock().now()) if found else none)
    require_all_answers(silent)


@moves.command("show")
async def show_command(
    cli: Cli,
    of: Annotated[
        str, positional("UUID of a move, or of an instance (its last move).", metavar="MOVE|BUILD")
    ],
) -> None:
    """Show a move: its state, phases with durations, the hosts tried, and why its destination was chosen."""
    async with cli.bus("moves") as bus:
        cells = await chosen_cells(bus, cli.settings, ())
        id_ = await _whole_id(bus, cli, cells, of)
        found, silent = await _ask(bus, cells, FindMoves(cell="any", moves=(id_,)))
        if not found:
            found, silent = await _ask(bus, cells, FindMoves(cell="any", builds=(id_,)))
    if not found:
        require_all_answers(silent)
        raise OperationRefused(
            f"no cell has a record of a move {id_}, or of a move of a build {id_};"
            f" `berth why {id_}` explains waiting and refused moves"
        )
    shown_move = max(found, key=lambda each: (not each.ended, each.since))
    if cli.as_json:
        write_json(shown_move)
        return
    for fact in facts_of(shown_move):
        cli.line(fact)
    if shown_move.phases:
        cli.say.print(phases_table(shown_move))
    for line in attempts_of(shown_move.attempts):
        cli.line(line)
    if shown_move.decision.considered:
        cli.say.print("why there", style="bold")
        print_funnel(shown_move.decision, cli.say)


def facts_of(move: MoveStands) -> list[str]:
    """Return the state of a move as parts of a sentence."""
    way = f"from {move.source or '-'} to {move.host or '-'}"
    percent = f", {move.percent}%" if move.percent and not move.ended else ""
    verb = "ended" if move.ended else "is at"
    facts = [
        f"{move.kind} {move.move} of {move.build}, {way} in cell {move.cell}: {verb} {move.phase}{percent}"
    ]
    facts += [f"  {text}" for text in (move.note, move.reason) if text]
    return [printable(fact) for fact in facts]


async def _ask(bus: Bus, cells: Sequence[str], question: FindMoves) -> tuple[list[MoveStands], list[str]]:
    """Query cells for moves; return the moves, and the cells that did not answer. If two cells have a record
    of a move, the record of the cell that runs the move is returned.
    """
    answers, silent = await ask_cells(cells, lambda cell: moves_of(bus, structs.replace(question, cell=cell)))
    found = [move for answer in answers.values() for move in answer]
    known = {move.move for move in found if not move.in_cell}
    return [move for move in found if not move.in_cell or move.move not in known], silent


_GOOD = {"confirm": ("done",), "force": ("done",), "revert": ("reverted",), "abort": ("aborted", "reverted")}


@dataclass(frozen=True)
class SteeringOptions:
    of: Annotated[
        list[str],
        positional(
            "Uuids of instances, or of their moves; at least 8 characters of each.", metavar="BUILD|MOVE..."
        ),
    ]
    wait: bool = option(False, "Follow it to its end; exit 1 unless it ends as requested.")
    timeout: float = option(600.0, "Seconds to follow it.", min=0)
    cell: str = option("", "Its cell, if known: other cells are not queried then.")


@moves.command("confirm")
async def confirm(cli: ActCli, options: SteeringOptions) -> int:
    """Confirm a move that waits for confirmation: the instance stays at the destination; the source is
    released.
    """
    return await steer(cli, options, "confirm")


@moves.command("revert")
async def revert(cli: ActCli, options: SteeringOptions) -> int:
    """Revert a move that waits for confirmation: the instance returns to its source, unchanged."""
    return await steer(cli, options, "revert")


@moves.command("abort")
async def abort(cli: ActCli, options: SteeringOptions) -> int:
    """Abort a move: the instance continues to run at its source.

    This is possible until the instance is started on its new host; later the command is refused. A move that
    waits for capacity is cancelled.
    """
    return await steer(cli, options, "abort")


@moves.command("force")
async def force(cli: ActCli, options: SteeringOptions) -> int:
    """Force a live migration to complete: the instance is stopped while the remaining memory is copied.

    Use it for an instance that changes its memory faster than it can be copied.
    """
    return await steer(cli, options, "force")


async def steer(cli: ActCli, options: SteeringOptions, to: Steering) -> int:
    """Confirm, revert, abort or force moves; return 1 if one is refused or, with `wait`, does not end so."""
    async with cli.bus("steer") as bus:
        cells = (options.cell,) if options.cell else await known_cells(bus, cli.settings)
        ids = [await _whole_id(bus, cli, cells, given) for given in options.of]
        printer, moves = MovePrinter(cli), list[MoveStands]()

        async def steer_one(id_: str) -> bool:
            found = await _find_move(bus, cells, id_, to)
            if cli.dry_run:
                return await _rehearse(cli, bus, found, to)
            if isinstance(found, WaitingRequest):
                if await _wait_ended(bus, found, printer):
                    return True
                found = await move_in_progress(bus, cells, found.request)
            moves.append(found)
            return True

        code = await cli.each(ids, steer_one)
        async with asyncio.TaskGroup() as group:
            each = [group.create_task(_steer(bus, move, to, options, printer)) for move in moves]
    return code if all(task.result() for task in each) else 1


async def _whole_id(bus: Bus, cli: Cli, cells: Sequence[str], given: str) -> str:
    """Return the uuid of a build or move that is given whole or by its first characters. Raise
    OperationRefused if several moves in progress, or several builds, begin so.
    """
    begins = given.lower()
    question = FindMoves(cell="any", under_way=True, limit=1000)
    is_beginning = SHORTEST_ID <= len(begins) < _UUID_LENGTH
    found = (await _ask(bus, cells, question))[0] if is_beginning else []
    move = only_one([move.move for move in found], begins, given, "moves")
    return move or await whole_id(bus, cli.settings, given, "a build or a move")


_WOULD = {
    "confirm": "would stay on {host}, and its capacity on {source} would be released",
    "revert": "would return to {source}",
    "abort": "would stay on {source}",
    "force": "would be stopped while the rest of its memory is copied to {host}",
}


async def _rehearse(cli: ActCli, bus: RecordingBus, found: MoveStands | WaitingRequest, to: Steering) -> bool:
    """Print what an order would do to a move; return whether it would be carried out."""
    if isinstance(found, WaitingRequest):
        await bus.rehearse(BuildCancelRequested(build=found.request))
        build = next(iter(found.builds), found.request)
        cli.tell(f"{build}: its move would not wait any more", move=found.request, build=build, to=to)
        return True
    await bus.rehearse(MoveSteered(move=found.move, build=found.build, cell=found.cell, to=to))
    facts = {"move": found.move, "build": found.build, "to": to, "phase": found.phase}
    if why := why_not_steered(to, found.kind, found.phase):
        cli.value({**facts, "refused": why}, f"{found.build}: {why}", "red")
        return False
    would = _WOULD[to].format(host=printable(found.host) or "-", source=printable(found.source) or "-")
    cli.tell(f"{found.build} {would}", **facts)
    return True


async def _find_move(bus: Bus, cells: Sequence[str], id_: str, to: Steering) -> MoveStands | WaitingRequest:
    """Return the move in progress that has this id or moves this build. The command `abort` also finds a move
    that waits for capacity. Raise OperationRefused if no move is found.
    """
    try:
        return await move_in_progress(bus, cells, id_)
    except OperationRefused:
        waiting = await waiting_moves(bus, (id_,)) if to == "abort" else ()
        if waiting:
            return waiting[0]
        raise


async def _wait_ended(bus: Bus, waits: WaitingRequest, printer: MovePrinter) -> bool:
    """Cancel a move that waits for capacity; return False if the move has started in the meantime."""
    waited = await end_wait(bus, waits.request)
    if waited.waited:
        build = next(iter(waits.builds), "")
        printer.on_outcome(MoveOutcome(move=waits.request, build=build, end="cancelled", kind=waits.move))
    return waited.waited


async def _steer(
    bus: Bus, stands: MoveStands, to: Steering, options: SteeringOptions, printer: MovePrinter
) -> bool:
    """Confirm, revert, abort or force a move. Return False if it is refused or, with --wait, if it fails."""
    try:
        async with steering(bus, stands, to, printer) as (outcome, answer):
            if answer.done() and (refusal := answer.result()).refused:
                printer.cli.value(refusal, f"{refusal.build}: {refusal.refused}", "red")
                return False
            if not options.wait and not outcome.done():
                yet = "" if answer.done() else f", and cell {stands.cell} has not answered yet"
                facts = {"move": stands.move, "build": stands.build, "to": to, "answered": answer.done()}
                printer.cli.tell(f"{stands.build}: {to} is requested{yet}", **facts)
                return True
            late = f"not followed any longer: {stands.move} was not over within {options.timeout:g} s"
            ended = await within_seconds(options.timeout, outcome, late)
            printer.on_outcome(ended)
            return ended.end in _GOOD[to]
    except asyncio.CancelledError:
        complain.print(f"{to} was requested; `berth move show {stands.move}` shows what comes of it")
        raise


def moves_table(found: Sequence[MoveStands], now: float) -> Table:
    titles = ("move", "build", "kind", "is", "from", "to", "since", "took", "why")
    rows = []
    for move in found:
        percent = f" {move.percent}%" if move.percent and not move.ended else ""
        took = age_text(move.ended - move.since) if move.ended else ""
        way = move.source or "-", move.host or "-"
        since = age_text(now - move.since)
        rows.append(
            (move.move, move.build, move.kind, f"{move.phase}{percent}", *way, since, took, move.reason)
        )
    return plain_table(titles, rows, folded=("why",))


def phases_table(move: MoveStands) -> Table:
    rows = []
    for phase in move.phases:
        took = f"{max(phase.ended - phase.began, 0.0):.1f}s" if phase.ended else ""
        rows.append((phase.phase, phase.host, phase.outcome, took, phase.cause))
    return plain_table(("phase", "host", "came to", "took", "cause"), rows, folded=("cause",))
