"""`berth waiting`: requests that wait for capacity."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from berth.commands.options import Commands
from berth.commands.terminal import Cli, write_json
from bus import topics
from bus.clock import Clock
from bus.masking import printable
from bus.queries import FindWaiting, WaitingFound, WaitingRequest

_PAGE = 200

commands = Commands()


@commands.command("waiting")
async def waiting_command(
    cli: Cli,
    project: Annotated[str, typer.Option(help="Only what this one asked for.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="So many of them, those who go first.")] = 50,
) -> int:
    """List waiting requests for builds and moves: their order, what they lack, what would wake them.

    The highest priority is first, then the oldest. Requests of one equivalence class share a queue. `berth
    boot --wait 30m --priority 5` adds one, `berth delete BUILD` cancels it; `berth move BUILD --wait 30m`
    adds one, `berth abort BUILD` cancels it.
    """
    return await show_waiting(cli, project, limit, Clock().now())


async def show_waiting(cli: Cli, project: str, limit: int, now: float) -> int:
    async with cli.bus("waiting") as bus:
        ask = bus.asker(topics.WAITING)
        waiting: list[WaitingRequest] = []
        found = await ask(FindWaiting(project=project, limit=min(limit, _PAGE)))
        waiting += found.waiting
        while found.more is not None and len(waiting) < limit:
            found = await ask(
                FindWaiting(project=project, after=found.more, limit=min(limit - len(waiting), _PAGE))
            )
            waiting += found.waiting
    if cli.as_json:
        for one in waiting:
            write_json(one)
        return 0
    if not found.count:
        cli.say.print("nobody waits")
    else:
        cli.say.print(_table(waiting, now))
        _tell_the_rest(found, len(waiting), cli.say)
    if found.rescued:
        cli.say.print(f"[red]{found.rescued} waited though there was room[/red]: that is a fault of berth's")
    return 0


def _table(waiting: Sequence[WaitingRequest], now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("line", "place", "priority", "asks", "flavor", "instances", "since", "for", "build"):
        table.add_column(title, no_wrap=True)
    for title in ("lacks", "would wake it"):
        table.add_column(title, overflow="fold")
    for one in waiting:
        several = "" if one.instances == 1 else f" and {one.instances - 1} more"
        table.add_row(
            one.kind,
            str(one.position),
            str(one.priority),
            one.move or "boot",
            printable(one.flavor),
            str(one.instances),
            duration(now - one.since),
            duration(one.until - now),
            f"{next(iter(one.builds), one.request)}{several}",
            printable(one.lacks),
            printable(one.wakes),
        )
    return table


def _tell_the_rest(found: WaitingFound, shown: int, say: Console) -> None:
    if len(found.kinds) > 1:
        kinds = [f"{printable(kind.flavor)} ({kind.kind}): {kind.requests}" for kind in found.kinds[:10]]
        say.print(f"{found.count} wait, by kind: {', '.join(kinds)}", markup=False)
    if shown < found.count:
        say.print(f"... and {found.count - shown} more: --limit shows them", style="dim")


def duration(seconds: float) -> str:
    """Return the duration as text."""
    left = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{left // size}{unit}"
    return f"{left}s"
