"""`berth instances` lists the instances of all cells, `berth waiting` the requests that wait for capacity."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from msgspec import structs
from rich.console import Console
from rich.table import Table

from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, coloured, complain, progress_bar, write_json
from berth.operations.cells import all_shown, chosen_cells
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.masking import printable
from bus.queries import (
    FindInstances,
    FindWaiting,
    Instance,
    InstancesFound,
    InstanceStatus,
    WaitingFound,
    WaitingRequest,
)

SECONDS = 10.0  # a cell may take for one page
_PAGE = 500
_COLUMNS = ("build", "name", "status", "host", "cell", "project", "flavor")

commands = Commands()


@dataclass(frozen=True)
class InstanceOptions:
    """The options that say which instances are listed."""

    project: str = option("", "Only this project's.")
    host: str = option("", "Only what is on this host, or was last.", metavar="NAME|UUID")
    status: list[str] | None = option(
        None,
        "building, swapping, active, moving, verifying, shelved, error, deleting or deleted; may be"
        " repeated. Without it: all but the deleted.",
        metavar="STATUS",
    )
    name: str = option("", "Only those called so (`berth boot --name`).")
    cell: list[str] | None = option(None, "Only in this cell; may be repeated.")
    sort: str = option("host", "By one of the columns, or `since`.")
    limit: int = option(200, "So many of each cell, by their ids.", min=1)
    every: bool = option(False, "However many there are.", "--all")


@commands.command("instances")
async def instances_command(cli: Cli, options: InstanceOptions) -> int:
    """List instances: all cells are queried in parallel.

    A cell that does not answer is named, and the others are shown; then the exit code is 1.
    """
    known: tuple[InstanceStatus, ...] = get_args(InstanceStatus)
    for one in options.status or []:
        if one not in known:
            raise BadSetting(f"--status {one!r}: it is one of {', '.join(known)}")
    if options.sort not in (*_COLUMNS, "since"):
        raise BadSetting(f"--sort {options.sort!r}: it is one of {', '.join((*_COLUMNS, 'since'))}")
    statuses = tuple([literal for literal in known if literal in (options.status or [])])
    question = checked(
        FindInstances(
            cell="any", project=options.project, host=options.host, name=options.name, statuses=statuses
        )
    )
    return await show_instances(
        cli, options.cell or (), question, options.sort, None if options.every else options.limit
    )


async def show_instances(
    cli: Cli, only: Sequence[str], question: FindInstances, sort: str, most: int | None
) -> int:
    async with cli.bus("instances") as bus:
        cells = await chosen_cells(bus, cli.settings, only)
        asking = _Asking(bus, question, most)
        await asking.ask(cells)
    found = sorted(asking.found, key=lambda one: (getattr(one, sort), one.build))
    cli.rows(found, instances_table(found) if found else "none")
    if asking.there > len(found):
        complain.print(f"... and {asking.there - len(found)} more: --all shows them", style="dim")
    all_shown(sorted(asking.silent))
    return 0


async def instances_of(bus: Bus, cell: str, most: int) -> tuple[Sequence[Instance], bool]:
    """Return at most this many unfinished instances of a cell, and whether the cell did not answer."""
    statuses: tuple[InstanceStatus, ...] = (
        "building", "swapping", "active", "moving", "verifying", "deleting",
    )  # fmt: skip
    asking = _Asking(bus, FindInstances(cell=cell, statuses=statuses), most)
    await asking.ask([cell])
    return asking.found, bool(asking.silent)


class _Asking:
    """The parallel queries to all cells for their instances, page by page."""

    def __init__(self, bus: Bus, question: FindInstances, most: int | None) -> None:
        self._ask = bus.asker(topics.FIND_INSTANCES, timeout=SECONDS)
        self._question = question
        self._most = most
        self.found: list[Instance] = []
        self.silent: list[str] = []
        self.there = 0  # in all, as the cells counted at first

    async def ask(self, cells: Sequence[str]) -> None:
        with progress_bar() as bar:
            shown = bar.add_task("instances", total=None)

            def seen() -> None:
                bar.update(shown, completed=len(self.found), total=max(self.there, 1))

            async with asyncio.TaskGroup() as group:
                for cell in cells:
                    group.create_task(self._ask_cell(cell, seen))

    async def _ask_cell(self, cell: str, seen: Callable[[], None]) -> None:
        after, taken, more = "", 0, True
        while more and (self._most is None or taken < self._most):
            limit = _PAGE if self._most is None else min(_PAGE, self._most - taken)
            page = await self._page(cell, after, limit)
            if page is None:
                self.silent.append(cell)
                return
            self.there += page.count
            self.found += page.instances
            taken += max(len(page.instances), 1)
            after, more = page.last, page.more
            seen()

    async def _page(self, cell: str, after: str, limit: int) -> InstancesFound | None:
        question = structs.replace(self._question, cell=cell, after=after, limit=limit, count=not after)
        try:
            return await self._ask(question)
        except (Unavailable, Unroutable):
            return None


def instances_table(found: Sequence[Instance]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _COLUMNS:
        table.add_column(title, no_wrap=title in ("build", "status"), overflow="fold")
    for instance in found:
        row = [printable(str(getattr(instance, column))) for column in _COLUMNS]
        row[_COLUMNS.index("status")] = coloured(instance.status)
        table.add_row(*row)
    return table


_WAITING_PAGE = 200


@commands.command("waiting")
async def waiting_command(
    cli: Cli,
    project: str = option("", "Only what this one asked for."),
    limit: int = option(50, "So many of them, those who go first.", min=1),
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
        found = await ask(FindWaiting(project=project, limit=min(limit, _WAITING_PAGE)))
        waiting += found.waiting
        while found.more is not None and len(waiting) < limit:
            found = await ask(
                FindWaiting(project=project, after=found.more, limit=min(limit - len(waiting), _WAITING_PAGE))
            )
            waiting += found.waiting
    if cli.as_json:
        for one in waiting:
            write_json(one)
        return 0
    if not found.count:
        cli.say.print("nobody waits")
    else:
        cli.say.print(_waiting_table(waiting, now))
        _tell_the_rest(found, len(waiting), cli.say)
    if found.rescued:
        cli.say.print(f"[red]{found.rescued} waited though there was room[/red]: that is a fault of berth's")
    return 0


def _waiting_table(waiting: Sequence[WaitingRequest], now: float) -> Table:
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
    """Return a duration as text, such as 3m 20s."""
    left = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{left // size}{unit}"
    return f"{left}s"
