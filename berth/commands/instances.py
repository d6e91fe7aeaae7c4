"""`berth instances` lists the instances of all cells, `berth waiting` the requests that wait for capacity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from msgspec import structs
from rich.table import Table
from rich.text import Text

from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, coloured, complain, plain_table, progress_bar
from berth.operations.cells import ask_cells, chosen_cells, instance_pages, require_all_answers
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.decisions import RefusedBuild
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.queries import PRESENT, FindInstances, FindWaiting, Instance, InstanceStatus, WaitingRequest

_COLUMNS = ("build", "name", "status", "host", "cell", "project", "flavor")

commands = Commands()


@dataclass(frozen=True)
class InstanceOptions:
    project: str = option("", "Only this project's.")
    host: str = option("", "Only instances that are on this host, or were there last.", metavar="NAME|UUID")
    status: list[str] | None = option(
        None,
        "building, swapping, active, moving, verifying, shelved, error, deleting or deleted; may be"
        " repeated. Without it: all but the deleted.",
        metavar="STATUS",
    )
    name: str = option("", "Only instances with this name (`berth boot --name`).")
    cell: list[str] | None = option(None, "Only in this cell; may be repeated.")
    sort: str = option("host", "Sort by a column, or `since`.")
    limit: int = option(200, "So many of each cell, by their ids.", min=1)
    every: bool = option(False, "However many there are.", "--all")


@commands.command("instances")
async def instances_command(cli: Cli, options: InstanceOptions) -> None:
    """List the instances of all cells, which are queried in parallel.

    If a cell does not answer, the command names it, lists the other cells' instances, and exits with 1.
    """
    known: tuple[InstanceStatus, ...] = get_args(InstanceStatus)
    for status in options.status or []:
        if status not in known:
            raise BadSetting(f"--status {status!r}: it is one of {', '.join(known)}")
    if options.sort not in (*_COLUMNS, "since"):
        raise BadSetting(f"--sort {options.sort!r}: it is one of {', '.join((*_COLUMNS, 'since'))}")
    statuses = tuple([literal for literal in known if literal in (options.status or [])])
    question = checked(
        FindInstances(
            cell="any", project=options.project, host=options.host, name=options.name, statuses=statuses
        )
    )
    async with cli.bus("instances") as bus:
        cells = await chosen_cells(bus, cli.settings, options.cell or ())
        most = None if options.every else options.limit
        found, count, silent = await _instances_of(bus, cells, question, most)
    found.sort(key=lambda instance: (getattr(instance, options.sort), instance.build))
    cli.rows(found, instances_table(found) if found else "none")
    if count > len(found):
        complain.print(f"... and {count - len(found)} more: --all shows them", style="dim")
    require_all_answers(sorted(silent))


async def _instances_of(
    bus: Bus, cells: Sequence[str], question: FindInstances, most: int | None
) -> tuple[list[Instance], int, list[str]]:
    """Return at most `most` instances of each cell, the number of instances without this limit, and the cells
    that did not answer.
    """
    found, count = list[Instance](), 0
    with progress_bar() as bar:
        shown = bar.add_task("instances", total=None)

        async def ask(cell: str) -> bool:
            nonlocal found, count
            async for page in instance_pages(bus, structs.replace(question, cell=cell, count=True), most):
                found += page.instances
                count += page.count
                bar.update(shown, completed=len(found), total=max(count, 1))
            return True

        _, silent = await ask_cells(cells, ask)
    return found, count, silent


async def unfinished_instances(bus: Bus, cell: str, most: int) -> tuple[Sequence[Instance], bool]:
    """Return at most `most` unfinished instances of a cell, and whether the cell failed to answer."""
    question = FindInstances(cell=cell, statuses=PRESENT)
    found, _, silent = await _instances_of(bus, [cell], question, most)
    return found, bool(silent)


def instances_table(found: Sequence[Instance | RefusedBuild]) -> Table:
    rows = []
    for instance in found:
        row = [getattr(instance, column, "") for column in _COLUMNS]
        row[_COLUMNS.index("status")] = Text.from_markup(coloured(instance.status))
        rows.append(row)
    return plain_table(_COLUMNS, rows, folded={*_COLUMNS} - {"build", "status"})


_WAITING_PAGE = 200


@commands.command("waiting")
async def waiting_command(
    cli: Cli,
    project: str = option("", "Only requests of this project."),
    limit: int = option(50, "The number of requests, the first in the queue.", min=1),
) -> None:
    """List the requests that wait for capacity: queue position, what they lack, what starts a new search.

    They are listed by priority, then by age, the oldest first. Requests of one equivalence class share a
    queue. "starts in 4m, 11m" is estimated from the recent pace of that queue: half of such requests start
    within 4 minutes, 90 % within 11 minutes; "late" means after the request's waiting time has ended. `berth
    boot --wait 30m --priority 5` adds a build, `berth delete BUILD` cancels it; `berth move BUILD --wait 30m`
    adds a move, `berth abort BUILD` cancels it.
    """
    waiting: list[WaitingRequest] = []
    async with cli.bus("waiting") as bus:
        question, found = FindWaiting(project=project), None
        while found is None or (found.more is not None and len(waiting) < limit):
            page = min(limit - len(waiting), _WAITING_PAGE)
            found = await bus.asker(topics.WAITING)(structs.replace(question, limit=page))
            question = structs.replace(question, after=found.more)
            waiting += found.waiting
    cli.rows(waiting, _waiting_table(waiting, Clock().now()) if found.count else "no request waits")
    if cli.as_json:
        return
    if len(found.kinds) > 1:
        kinds = [f"{printable(kind.flavor)} ({kind.kind}): {kind.requests}" for kind in found.kinds[:10]]
        cli.line(f"{found.count} wait, by kind: {', '.join(kinds)}")
    if len(waiting) < found.count:
        cli.line(f"... and {found.count - len(waiting)} more: --limit shows them", "dim")
    if found.backlog:
        cli.line(f"{sum(found.backlog.values())} more are in the backlog: `berth share show`", "dim")
    if found.rescued:
        cli.say.print(f"[red]{found.rescued} waited although a host fitted[/red]: please report this bug")


def _waiting_table(waiting: Sequence[WaitingRequest], now: float) -> Table:
    rows = []
    for request in waiting:
        several = "" if request.instances == 1 else f" and {request.instances - 1} more"
        times = duration(now - request.since), duration(request.until - now)
        build = f"{next(iter(request.builds), request.request)}{several}"
        move = request.move or "boot", request.flavor, request.instances
        queue = request.kind, request.position, request.priority
        starts = _starts_in(request, now)
        rows.append((*queue, *move, *times, starts, build, request.lacks, request.wakes))
    titles = (
        "line",
        "place",
        "priority",
        "asks",
        "flavor",
        "instances",
        "since",
        "for",
        "starts in",
        "build",
    )
    return plain_table((*titles, "lacks", "would wake it"), rows, folded=("lacks", "would wake it"))


def _starts_in(request: WaitingRequest, now: float) -> str:
    """Return the times within which a waiting request starts with a probability of 50 % and 90 %, such as
    `4m, 11m`; "late" for a time after the end of its wait, "unknown" without an estimate.
    """
    if request.start_p50 is None or request.start_p90 is None:
        return "unknown"
    limit = request.until
    times = (duration(at - now) if at <= limit else "late" for at in (request.start_p50, request.start_p90))
    return ", ".join(dict.fromkeys(times))


def duration(seconds: float) -> str:
    """Return a number of seconds as text in one unit, rounded down, such as 90s, 3m or 5h."""
    left = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{left // size}{unit}"
    return f"{left}s"
