"""Asking for moves of several builds, and following them to their outcomes."""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import structs
from rich.console import Console

from berth import wiring
from berth.commands.asking_cells import check_to_cell
from berth.commands.following import VERIFYING, FollowedMoves, MoveOutcome, following
from berth.commands.host_states import host_named
from berth.commands.move_output import MovePrinter
from berth.commands.supposing_moves import supposed, tell_supposed
from berth.commands.terminal import CommandRefused, checked, complain, write_json
from berth.commands.whereabouts import uuid_of, whereabouts
from berth.publishing import PATIENCE, publish
from berth.settings import Settings
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.moves import MoveRequested
from bus.queries import BuildStands
from bus.requests import BuildSpec

ANY = "00000000-0000-0000-0000-000000000000"  # in place of ids that each gets when it is asked for

Making = Callable[[BuildStands], MoveRequested]  # what is asked for, of a build as it stands


def spec_of(stands: BuildStands) -> BuildSpec:
    """Return the instance's present spec."""
    return stands.spec or stands.placed.spec


async def request_moves(
    settings: Settings,
    builds: Sequence[str],
    cell: str,
    making: Making,
    wait: bool,
    timeout: float,
    as_json: bool,
    say: Console,
    dry_run: bool = False,
) -> int:
    ids = list(dict.fromkeys(uuid_of(build) for build in builds))
    async with Bus(wiring.transport(settings, "move")) as bus:
        found = await whereabouts(bus, settings, ids, cell)
        clock, name = Clock(), f"move-{Clock().uuid()[:8]}"
        made = [(stands, making(stands)) for stands in found.values()]
        across = await _cell_of_host(bus, made[0][1]) if made else ""
        asked = [
            checked(
                structs.replace(
                    request,
                    to_cell=request.to_cell or (across if across != stands.placed.cell else ""),
                    move=clock.uuid(),
                    build=stands.build,
                    cell=stands.placed.cell,
                    reply_to=name if wait else "",
                )
            )
            for stands, request in made
        ]
        for cell in {request.to_cell for _, request in made}:
            await check_to_cell(bus, settings, cell)
        if dry_run:
            return tell_supposed(asked, await supposed(bus, asked), as_json, say)
        if not wait:
            await publish(bus, *asked, patience=PATIENCE)
            for request in asked:
                if as_json:
                    write_json({"move": request.move, "build": request.build, "kind": request.kind})
                else:
                    say.print(
                        f"asked for: {request.kind} of {request.build} (`berth moves show {request.move}`)",
                        markup=False,
                    )
            return 0
        from scheduler_worker import seconds_of

        longest = max((seconds_of(request.wait) for request in asked), default=0.0)
        return await follow_moves(bus, name, asked, timeout + longest, MovePrinter(as_json, say))


async def _cell_of_host(bus: Bus, asked: MoveRequested) -> str:
    """Return the cell of the requested host if it is another cell, else an empty string. All moves of a
    request name the same host.
    """
    name = asked.wanted_host or asked.forced_host
    if not name or asked.to_cell or asked.kind not in ("migrate", "resize", "unshelve"):
        return ""
    try:
        return (await host_named(bus, name)).cell
    except (CommandRefused, Unavailable, Unroutable):
        return ""  # the scheduler reports the error


async def follow_moves(
    bus: Bus, name: str, asked: Sequence[MoveRequested], timeout: float, telling: MovePrinter
) -> int:
    """1 unless all are done, or wait to be confirmed where that was asked."""
    open_ = {request.move: request for request in asked}
    good = 0

    async def follow(moves: FollowedMoves, one: MoveRequested) -> None:
        nonlocal good
        outcome = await moves.ask(one)
        del open_[one.move]
        good += outcome.end == "done" or outcome.end == VERIFYING
        telling.over(outcome)
        _tell_what_next(outcome, telling)

    try:
        async with asyncio.timeout(timeout), following(bus, name, telling) as moves:
            async with asyncio.TaskGroup() as group:
                for request in asked:
                    group.create_task(follow(moves, request))
    except TimeoutError:
        raise CommandRefused(
            f"not followed any longer, and under way after {timeout:g} s: {', '.join(sorted(open_))}"
        ) from None
    except asyncio.CancelledError:
        if open_:
            complain.print(
                f"{len(open_)} under way, or waiting for room, which go on without you: `berth moves list`"
                " and `berth waiting` show them, `berth abort BUILD` ends one early",
                markup=False,
            )
        raise
    return 0 if good == len(asked) else 1


def _tell_what_next(outcome: MoveOutcome, telling: MovePrinter) -> None:
    if outcome.end == VERIFYING and not telling.as_json:
        telling.say.print(
            f"  `berth confirm {outcome.build}` keeps it there,"
            f" `berth revert {outcome.build}` brings it back",
            style="dim",
            markup=False,
        )
