"""`berth host`: hosts, their inventories, and disabling them. `berth provider`: assign hosts to cells.

An operator's choice is a trait of the host's root in placement: it is effective immediately and needs no
agent.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from rich.text import Text
from rich.tree import Tree as Picture

from berth.commands.options import Commands, argument, described, option, positional
from berth.commands.terminal import Cli, plain_table
from berth.operations.adoptable import SHARES
from berth.operations.cells import chosen_cells
from berth.operations.host_states import (
    HostStandings,
    Marking,
    checked_cause,
    disabling,
    enabling,
    every_provider,
    forcing_down,
    host_named,
    reported_hosts,
)
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.chunks import portions
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.resources import FindProviders, OwnerEditRequested, OwnerGiven, Provider
from bus.vocabulary import Missing

commands = Commands()
hosts = Commands(name="host", no_args_is_help=True)
providers = Commands(name="provider", no_args_is_help=True)
commands.add_typer(hosts)
commands.add_typer(providers)

Names = Annotated[list[str] | None, positional("Names of hosts, or their roots' uuids.", metavar="HOST...")]
Because = Annotated[
    str, described("The cause; several can be added, and removed one by one.", metavar="WORD")
]
OfAgent = Annotated[str, described("All hosts of this agent.", "--agent")]


@hosts.command("list")
async def show_all(
    cli: Cli,
    cell: str = option("", "Only hosts of this cell."),
    agent: str = option("", "Only hosts of this agent."),
    closed: bool = option(False, "Only hosts that are not up."),
) -> int:
    """List every host and Ironic node that an agent builds on, with its state as a scheduler judges it."""
    async with cli.bus("host") as bus:
        found = [host async for host in reported_hosts(bus, agent) if not cell or host.cell == cell]
        standings = await HostStandings.ask(bus)
    hosts = [(host, standings.of(host)) for host in sorted(found, key=lambda each: (each.cell, each.host))]
    shown = [(host, now) for host, now in hosts if not closed or now.state != "up"]
    facts = (
        {
            "host": host.host, "uuid": host.id, "cell": host.cell, "agent": host.agent, "zone": host.zone,
            "state": now.state, "why": now.why, "since": now.since or None,
        }
        for host, now in shown
    )  # fmt: skip
    rows = ((host.host, host.cell, host.agent, host.zone or "-", now, host.id) for host, now in shown)
    table = plain_table(("host", "cell", "agent", "zone", "state", "uuid"), rows)
    cli.rows(facts, table if shown else "no such host")
    return 0


@hosts.command("show")
async def show(cli: Cli, host: Annotated[str, positional("Its name, or its root's uuid.")]) -> int:
    """Show the provider tree of a host: inventories, usage and traits."""
    async with cli.bus("host") as bus:
        root = await host_named(bus, host)
        query = FindProviders(in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner"))
        tree = (await bus.asker(topics.PROVIDERS)(query)).providers
        now = (await HostStandings.ask(bus, (root.id,))).of(root)
    owner = f"  {root.agent} in cell {root.cell}  {now}" if root.agent else "  nobody reports it"
    cli.rows(tree, picture(tree, owner))
    return 0


@hosts.command("disable")
async def disable_command(cli: Cli, hosts: Names = None, agent: OfAgent = "", because: Because = "") -> int:
    """Disable hosts: no new builds; instances stay.

    Several causes are possible: `berth host disable h1 --because disk`, and `--because upgrade` by another
    operator; the host is enabled when the last cause is removed. `berth drain` moves the instances away.
    """
    return await mark(cli, hosts or (), agent, disabling(checked_cause(because)))


@hosts.command("enable")
async def enable_command(cli: Cli, hosts: Names = None, agent: OfAgent = "", because: Because = "") -> int:
    """Enable hosts, unless the agent or another cause keeps them disabled.

    `berth host enable h1 --because disk` removes that cause; without the option, the cause without a name.
    """
    return await mark(cli, hosts or (), agent, enabling(checked_cause(because)))


@hosts.command("force-down")
async def force_down_command(
    cli: Cli,
    hosts: Names = None,
    agent: OfAgent = "",
    undo: bool = option(False, "It counts as up again while its agent sends heartbeats."),
) -> int:
    """Mark hosts as down, whatever their agents report."""
    return await mark(cli, hosts or (), agent, forcing_down(not undo))


def picture(tree: Sequence[Provider], about: str) -> Picture:
    """Return a provider tree as text, each provider below its parent."""
    found: dict[str | None, Picture] = {}
    waiting = sorted(tree, key=lambda each_provider: each_provider.name)
    while waiting:
        ready = [provider for provider in waiting if provider.parent is None or provider.parent in found]
        if not ready:
            break
        for provider in ready:
            label = Text(printable(provider.name), style="bold")
            label.append(about if provider.parent is None else "", style="")
            drawn = found[provider.parent].add(label) if provider.parent is not None else Picture(label)
            found[provider.id] = drawn
            for class_, has in sorted(provider.inventories.items()):
                used, ratio = provider.used.get(class_, 0), f" ×{has.allocation_ratio:g}"
                least = f", {has.reserved} reserved" if has.reserved else ""
                more = ratio if has.allocation_ratio != 1 else ""
                drawn.add(Text(f"{class_}  {used} of {has.capacity} used  ({has.total}{more}{least})"))
            if provider.traits:
                drawn.add(Text(" ".join(provider.traits), style="dim"))
        waiting = [provider for provider in waiting if provider.id not in found]
    return next(found[provider.id] for provider in tree if provider.parent is None)


async def mark(cli: Cli, names: Sequence[str], agent: str, marking: Marking) -> int:
    """Mark the named hosts, or without names all hosts of an agent, as the command says."""
    if bool(names) == bool(agent):
        raise BadSetting("say which: names of hosts, or --agent")
    async with cli.bus("host") as bus:
        roots = [await host_named(bus, name) for name in names] or [
            one async for one in reported_hosts(bus, agent)
        ]
        if not roots:
            raise OperationRefused(f"no host is reported by an agent {agent!r}")
        for root in roots:
            name, state = root.host or root.name, await marking(bus, root)
            cli.tell(f"{name}: {state}", host=name, uuid=root.id, cell=root.cell, becomes=state)
    return 0


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_AT_ONCE = 100  # roots
_SHOWN = 10


@providers.callback()
def provider() -> None:
    """Assign hosts to cells."""


@providers.command("reset")
async def reset_command(
    cli: Cli,
    cell: Annotated[str, described("The cell that has it from now on.", metavar="NAME")],
    root: str = argument("", "The uuid of its root provider, or its name.", metavar="ROOT"),
    ownerless: bool = option(
        False,
        "Every root without a cell, as after `berth import`, except sharing providers.",
        "--all-without-owner",
    ),
    match: str = option("*", "Only roots with a matching name: 'rack7-*'.", metavar="PATTERN"),
    dry_run: bool = option(False, "Show the roots that would change, and do nothing."),
) -> int:
    """Assign a host to a cell, whatever its present cell, and restart the sequence of its reports.

    It corrects a report of the wrong cell, or one with a sequence far ahead, and assigns hosts that an
    operator created or imported. Nothing is placed there until the cell has reported the host.
    """
    if bool(root) == ownerless:
        raise BadSetting("say which: a root, or --all-without-owner")
    if ownerless:
        return await reset_the_ownerless(cli, cell, match, dry_run)
    return await reset(cli, root, cell)


async def reset(cli: Cli, root: str, cell: str) -> int:
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        if not _UUID.fullmatch(root):
            found = (await bus.asker(topics.PROVIDERS)(FindProviders(name=root))).providers
            if not found:
                raise OperationRefused(f"there is no provider {root}")
            root = found[0].root
        order = checked(OwnerEditRequested(root=root, cell=cell))
        result = (await bus.asker(topics.EDIT_OWNER)(order)).result
        if isinstance(result, Missing):
            raise OperationRefused(f"there is no root provider {root}")
    if not isinstance(result, OwnerGiven):
        raise OperationRefused("other processes are changing it: try again")
    before = f"cell {result.cell}" if result.cell else "no cell"
    agent_note = f", agent {result.agent}" if result.agent else ""
    cli.value(
        result, f"{root} is of cell {cell}; it was of {before}{agent_note}, last report {result.sequence}"
    )
    return 0


async def reset_the_ownerless(cli: Cli, cell: str, match: str, dry_run: bool) -> int:
    """Assign all root providers without an owner to a cell, except pools that share with other hosts."""
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        found = [provider for provider in await _ownerless(bus) if fnmatchcase(provider.name, match)]
        failed: list[str] = []
        for part in portions([] if dry_run else found, _AT_ONCE):
            orders = [OwnerEditRequested(root=provider.id, cell=cell) for provider in part]
            answers = await bus.asker_of_many(topics.EDIT_OWNER, timeout=60.0)(orders)
            given = [isinstance(answer.result, OwnerGiven) for answer in answers]
            failed += [provider.name for provider, done in zip(part, given, strict=True) if not done]
    names = [provider.name for provider in found if provider.name not in failed]
    some = f": {', '.join(printable(each.name) for each in found[:_SHOWN])}" if found else ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    goes = f"would go to cell {cell}" if dry_run else f"are of cell {cell} now"
    sentence = f"{len(found) - len(failed)} hosts {goes}{some}{more}"
    cli.tell(sentence, cell=cell, hosts=names, failed=failed, done=not dry_run)
    if failed:
        raise OperationRefused(f"other processes change {', '.join(failed[:_SHOWN])}: say the same again")
    return 0


async def _ownerless(bus: Bus) -> list[Provider]:
    """Return the root providers without a cell, sorted by name, except pools that share with other hosts."""
    found = [
        provider
        async for provider in every_provider(bus, FindProviders(parts=("owner", "traits")), timeout=60.0)
        if provider.parent is None and not provider.cell and SHARES not in provider.traits
    ]
    return sorted(found, key=lambda each_provider: each_provider.name)
