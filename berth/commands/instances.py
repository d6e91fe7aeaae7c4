"""`berth instance list` lists the instances of all cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from msgspec import structs
from rich.text import Text

from berth.commands.ends import ended_builds
from berth.kit.builds import instance_pages
from berth.kit.cells import ask_cells, chosen_cells, require_all_answers
from berth.kit.command_groups import Commands
from berth.kit.listing import ListCli, PlainTable, plain_table
from berth.kit.options import option
from berth.kit.publishing import checked
from berth.kit.terminal import coloured, complain, progress_bar
from berth.settings import BadSetting
from bus.clock import moment_text
from bus.decisions import RefusedBuild
from bus.delivery.runner import Bus
from bus.queries import PRESENT, FindInstances, Instance, InstanceStatus

_COLUMNS = ("build", "name", "status", "host", "cell", "flavor", "project", "since")
_WIDE = ("project", "since")
_ENDED = "Ended builds"  # panel of the options for them


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
    limit: int = option(200, "So many of each cell, by their ids.", min=1)
    every: bool = option(False, "However many there are.", "--all")
    ended: bool = option(False, "Builds that ended recently, also those without a host.", panel=_ENDED)
    since: str = option(
        "10m", "Builds that ended or changed in this time, such as 90s, 30m or 2d.", panel=_ENDED
    )
    reply_to: str = option("", "Only builds requested with this reply address.", metavar="NAME", panel=_ENDED)
    publish: bool = option(False, "Let the cells publish the end of each listed build again.", panel=_ENDED)


@commands.command("list")
async def instances_command(cli: ListCli, options: InstanceOptions) -> None:
    """List the instances of all cells, which are queried in parallel.

    If a cell does not answer, the command names it, lists the other cells' instances, and exits with 1.

    With --ended: builds that ended recently, from the records of their cells and of the schedulers. A client
    can miss an end (`build.ended`, or `build.unplaceable` for a build without a host, status "refused"), for
    example while a RabbitMQ node is cut off from the others. With `--publish` the listed ends are published
    again; clients can then receive an end twice.
    """
    if options.ended:
        if options.project or options.host or options.status or options.name:
            raise BadSetting("--ended lists all ended builds: --cell and --reply-to select some of them")
        await _list_ended(cli, options)
        return
    if options.publish or options.reply_to:
        raise BadSetting("--publish and --reply-to are for --ended")
    known: tuple[InstanceStatus, ...] = get_args(InstanceStatus)
    for status in options.status or []:
        if status not in known:
            raise BadSetting(f"--status {status!r}: it is one of {', '.join(known)}")
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
    found.sort(key=lambda instance: (instance.host, instance.build))
    cli.rows(found, instances_table(found) if found else "none")
    if count > len(found):
        complain.print(f"... and {count - len(found)} more: --all shows them", style="dim")
    require_all_answers(sorted(silent))


async def _list_ended(cli: ListCli, options: InstanceOptions) -> None:
    ended, silent = await ended_builds(
        cli, options.since, options.reply_to, options.cell or (), publish=options.publish
    )
    cli.rows(ended, instances_table(ended) if ended else "none")
    if options.publish and not cli.as_json:
        cli.line(f"{len(ended)} ends are published again")
    require_all_answers(silent)


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


def instances_table(found: Sequence[Instance | RefusedBuild]) -> PlainTable:
    """Return instances and refused builds as a table for the terminal."""
    rows = []
    for instance in found:
        row: list[Any] = [getattr(instance, column, "") for column in _COLUMNS]
        row[_COLUMNS.index("status")] = Text.from_markup(coloured(instance.status))
        row[_COLUMNS.index("since")] = moment_text(since) if (since := row[-1]) else ""
        rows.append(row)
    return plain_table(_COLUMNS, rows, folded={*_COLUMNS} - {"build", "status"}, wide=_WIDE)
