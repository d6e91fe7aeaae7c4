"""`berth host`: which hosts there are, what each has, and keeping new instances away from them.

An operator's word is a trait on the root, written into placement: it counts at once, and needs no agent.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Picture

from berth import wiring
from berth.commands.options import Json, StateDir
from berth.commands.terminal import CommandRefused, effective, printable, run, say, write_json
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.host_marks import DISABLED, FORCED_DOWN
from bus.names import MakeName, NameEditRequested
from bus.resources import Edited, EditRequested, FindProviders, Provider, SetTraits, Stale

A_PAGE = 500
_TRIES = 8

commands = typer.Typer(
    no_args_is_help=True, help="See what hosts have, and keep new instances away from them."
)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="HOST...", help="Names of hosts, or their roots' uuids.")
]
OfAgent = Annotated[str, typer.Option("--agent", help="All hosts of this agent.")]


@commands.command("list")
def list_command(
    cell: Annotated[str, typer.Option(help="Only those of this cell.")] = "",
    agent: Annotated[str, typer.Option(help="Only those of this agent.")] = "",
    closed: Annotated[bool, typer.Option("--closed", help="Only those disabled or forced down.")] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Every host and Ironic node that an agent builds on, and whether it is open to new instances."""
    run(show_all(effective(state_dir=state_dir).settings, cell, agent, closed, as_json, say))


@commands.command("show")
def show_command(
    host: Annotated[str, typer.Argument(help="Its name, or its root's uuid.")],
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Its providers as a tree: what each has, how much of it is used, and its traits."""
    run(show(effective(state_dir=state_dir).settings, host, as_json, say))


@commands.command("disable")
def disable_command(hosts: Names = None, agent: OfAgent = "", state_dir: StateDir = None) -> None:
    """Nothing new is built there, from now on; what runs there stays."""
    run(mark(effective(state_dir=state_dir).settings, hosts or (), agent, DISABLED, True, say))


@commands.command("enable")
def enable_command(hosts: Names = None, agent: OfAgent = "", state_dir: StateDir = None) -> None:
    """Open to new instances again, unless the agent itself keeps it closed."""
    run(mark(effective(state_dir=state_dir).settings, hosts or (), agent, DISABLED, False, say))


@commands.command("force-down")
def force_down_command(
    hosts: Names = None,
    agent: OfAgent = "",
    undo: Annotated[bool, typer.Option("--undo", help="It counts as up again while it is heard.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Count it as down, whatever is heard of it."""
    run(mark(effective(state_dir=state_dir).settings, hosts or (), agent, FORCED_DOWN, not undo, say))


# Looking


async def show_all(
    settings: Settings, cell: str, agent: str, closed: bool, as_json: bool, say: Console
) -> int:
    table = Table("host", "cell", "agent", "zone", "state", "uuid", box=None, pad_edge=False)
    async with Bus(wiring.transport(settings, "host")) as bus:
        found = [one async for one in _hosts(bus, agent) if not cell or one.cell == cell]
    for one in sorted(found, key=lambda each: (each.cell, each.host)):
        state = state_of(one)
        if closed and state == "open":
            continue
        if as_json:
            facts = {"cell": one.cell, "agent": one.agent, "zone": one.zone, "state": state}
            write_json({"host": one.host, "uuid": one.id, **facts})
        cells = (one.host, one.cell, one.agent, one.zone or "-", state, one.id)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if not as_json:
        say.print(table if table.row_count else "no such host")
    return 0


def state_of(root: Provider) -> str:
    """What keeps new instances away from it, as placement has it."""
    if root.gone:
        return "gone"
    words = []
    if FORCED_DOWN in root.traits:
        words.append("forced down")
    if DISABLED in root.traits:
        words.append("disabled" if DISABLED in root.kept_traits else "disabled by its agent")
    return ", ".join(words) or "open"


async def show(settings: Settings, name: str, as_json: bool, say: Console) -> int:
    async with Bus(wiring.transport(settings, "host")) as bus:
        root = await _named(bus, name)
        query = FindProviders(in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner"))
        tree = (await bus.asker(topics.PROVIDERS)(query)).providers
    if as_json:
        for one in tree:
            write_json(one)
        return 0
    owner = f"  {root.agent} in cell {root.cell}  {state_of(root)}" if root.agent else "  nobody reports it"
    say.print(picture(tree, owner))
    return 0


def picture(tree: Sequence[Provider], about: str) -> Picture:
    """Each provider below its parent."""
    found: dict[str | None, Picture] = {}
    waiting = sorted(tree, key=lambda one: one.name)
    while waiting:
        ready = [one for one in waiting if one.parent is None or one.parent in found]
        if not ready:
            break
        for one in ready:
            label = Text(printable(one.name), style="bold")
            label.append(about if one.parent is None else "", style="")
            drawn = found[one.parent].add(label) if one.parent is not None else Picture(label)
            found[one.id] = drawn
            for class_, has in sorted(one.inventories.items()):
                used, ratio = one.used.get(class_, 0), f" ×{has.allocation_ratio:g}"
                least = f", {has.reserved} reserved" if has.reserved else ""
                more = ratio if has.allocation_ratio != 1 else ""
                drawn.add(Text(f"{class_}  {used} of {has.capacity} used  ({has.total}{more}{least})"))
            if one.traits:
                drawn.add(Text(" ".join(one.traits), style="dim"))
        waiting = [one for one in waiting if one.id not in found]
    return next(found[one.id] for one in tree if one.parent is None)


async def _hosts(bus: Bus, agent: str = "") -> AsyncIterator[Provider]:
    """Roots that somebody reports, page by page."""
    after, more = "", True
    while more:
        query = FindProviders(
            parts=("traits", "owner"), agents=(agent,) if agent else (), after=after, limit=A_PAGE
        )
        page = (await bus.asker(topics.PROVIDERS)(query)).providers
        for one in page:
            if one.parent is None and one.agent:
                yield one
        after, more = max((one.id for one in page), default=""), len(page) == A_PAGE


async def _named(bus: Bus, name: str) -> Provider:
    try:
        query = FindProviders(ids=(str(uuid.UUID(name)),), parts=("traits", "owner"))
    except ValueError:
        query = FindProviders(name=name, parts=("traits", "owner"))
    found = [one for one in (await bus.asker(topics.PROVIDERS)(query)).providers if one.parent is None]
    if not found:
        raise CommandRefused(f"there is no host {name!r}; `berth host list` lists them")
    return found[0]


# Marking


async def mark(
    settings: Settings, names: Sequence[str], agent: str, trait: str, there: bool, say: Console
) -> int:
    """The trait is to be on these roots, or not; who has named none has done so by his agent."""
    if bool(names) == bool(agent):
        raise BadSetting("say which: names of hosts, or --agent")
    async with Bus(wiring.transport(settings, "host")) as bus:
        roots = [await _named(bus, name) for name in names] or [one async for one in _hosts(bus, agent)]
        if not roots:
            raise CommandRefused(f"no host is reported by an agent {agent!r}")
        if there and trait == FORCED_DOWN:  # a trait of ours, which no placement has from the beginning
            await bus.asker(topics.EDIT_NAME)(NameEditRequested(kind="trait", edit=MakeName(name=trait)))
        for root in roots:
            say.print(f"{root.host or root.name}: {await _mark(bus, root, trait, there)}", markup=False)
    return 0


async def _mark(bus: Bus, root: Provider, trait: str, there: bool) -> str:
    for _ in range(_TRIES):
        if (trait in root.traits) is there:
            return f"is so already ({state_of(root)})"
        if not there and trait not in root.kept_traits:
            return "its agent has disabled it: only that can undo it"
        traits = {*root.traits, trait} if there else {*root.traits} - {trait}
        edit = SetTraits(provider=root.id, traits=tuple(sorted(traits)), generation=root.generation)
        result = (await bus.asker(topics.EDIT)(EditRequested(edit=edit))).result
        root = await _named(bus, root.id)
        if isinstance(result, Edited):
            return state_of(root)
        if not isinstance(result, Stale):
            raise CommandRefused(f"{root.name}: {result}")
    raise CommandRefused(f"{root.name}: others change it all the time; try again")
