"""`berth top`: the hosts, cells and projects that need attention first, or use the most."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated

from berth.commands.host_tables import CLASSES, host_facts, hosts_table, others_text, share, use_facts
from berth.kit.builds import instance_pages
from berth.kit.cells import ask_cells, chosen_cells, require_all_answers
from berth.kit.command_groups import Commands
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import option, positional
from berth.operations.host_summaries import HostSummary, host_summaries, total
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.host_health import not_up
from bus.queries import PRESENT, FindInstances
from bus.resources import FindUsages

commands = Commands()

_LISTS = ("hosts", "cells", "projects")


@commands.command("top")
async def top_command(
    cli: ListCli,
    what: Annotated[str, positional("What to list.", metavar="|".join(_LISTS))] = "hosts",
    limit: int = option(10, "How many.", min=1),
    cell: str = option("", "Only hosts of this cell.", metavar="NAME"),
) -> None:
    """List the hosts, cells or projects that need attention first, or use the most.

    `hosts` lists hosts that are not up, by their number of instances, and then the fullest. `cells` lists
    cells with the used share of each resource class, the fullest first. `projects` lists the projects with
    the most instances, and what all consumers of each project hold.
    """
    if what not in _LISTS:
        raise BadSetting(f"top {what!r}: it is one of {', '.join(_LISTS)}")
    if cell and what != "hosts":
        raise BadSetting(f"--cell is for `berth top hosts`, not for {what}")
    if what == "hosts":
        await top_hosts(cli, limit, cell)
    elif what == "cells":
        await top_cells(cli, limit)
    else:
        await top_projects(cli, limit)


async def top_hosts(cli: ListCli, limit: int, cell: str) -> None:
    """List the worst hosts: first hosts that are not up, by their number of instances; then the fullest."""
    async with cli.bus("top") as bus:
        hosts = worst_first(await host_summaries(bus, cell))[:limit]
    cli.rows(map(host_facts, hosts), hosts_table(hosts, Clock().now()) if hosts else "no host is listed")


def worst_first(hosts: Sequence[HostSummary]) -> list[HostSummary]:
    """Return hosts that are not up by their number of instances, and then the others by the share of the
    resource class that is used most.
    """

    def rank(host: HostSummary) -> tuple[bool, float, str]:
        is_up = host.standing.state == "up"
        return is_up, -(host.fullest[1].share if is_up else host.instances or 0), host.root.host

    return sorted(hosts, key=rank)


async def top_cells(cli: ListCli, limit: int) -> None:
    """List cells with the used share of each resource class, the fullest first."""
    async with cli.bus("top") as bus:
        hosts = await host_summaries(bus)
    of_cells: defaultdict[str, list[HostSummary]] = defaultdict(list)
    for host in hosts:
        of_cells[host.root.cell].append(host)
    uses = {cell: total(host.use for host in of_cells[cell]) for cell in of_cells}
    fullest = {cell: max((each.share for each in use.values()), default=0.0) for cell, use in uses.items()}
    facts, rows = [], []
    for cell in sorted(uses, key=lambda cell: (-fullest[cell], cell))[:limit]:
        states = Counter[str](host.standing.state for host in of_cells[cell])
        instances, use = sum(host.instances or 0 for host in of_cells[cell]), uses[cell]
        facts.append({
            "cell": cell, "hosts": len(of_cells[cell]), "states": dict(states), "instances": instances,
            "used": use_facts(use),
        })  # fmt: skip
        shares = (share(use.get(class_)) for class_ in CLASSES)
        closed, others = not_up(states) or "-", others_text(use) or "-"
        rows.append((cell, len(of_cells[cell]), instances, *shares, closed, others))
    titles = ("cell", "hosts", "instances", *CLASSES.values(), "not up", "other")
    table = plain_table(titles, rows, folded=("not up", "other"), wide=_unused(rows))
    cli.rows(facts, table if rows else "no cell has a host")


async def top_projects(cli: ListCli, limit: int) -> None:
    """List the projects with the most instances, and what all consumers of each project hold."""
    counts = Counter[str]()
    async with cli.bus("top") as bus:

        async def count(cell: str) -> bool:
            async for page in instance_pages(bus, FindInstances(cell=cell, statuses=PRESENT)):
                counts.update(instance.project for instance in page.instances)
            return True

        _, silent = await ask_cells(await chosen_cells(bus, cli.settings, ()), count)
        projects = sorted(counts, key=lambda project: (-counts[project], project))[:limit]
        ask = bus.asker(topics.USAGES)
        answers = await asyncio.gather(*(ask(FindUsages(project=project)) for project in projects))
    facts, rows = [], []
    for project, answer in zip(projects, answers, strict=True):
        held: Counter[str] = sum(map(Counter, answer.used.values()), Counter[str]())
        facts.append({"project": project, "instances": counts[project], "holds": dict(held)})
        others = ", ".join(f"{name} {held[name]}" for name in sorted(held.keys() - CLASSES.keys()))
        rows.append((project, counts[project], *(held[class_] for class_ in CLASSES), others or "-"))
    titles = ("project", "instances", "vcpus", "memory MB", "disk GB", "other")
    table = plain_table(titles, rows, folded=("other",), wide=_unused(rows))
    cli.rows(facts, table if rows else "no project has an instance")
    require_all_answers(sorted(silent))


def _unused(rows: Sequence[Sequence[object]]) -> tuple[str, ...]:
    """Return the title of the last column if no row has a value in it, so that the usual table omits it."""
    return () if any(row[-1] != "-" for row in rows) else ("other",)
