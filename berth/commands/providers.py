"""`berth resource provider`, `class`, `trait` and `usage`: show placement's records, and assign hosts to
cells.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from berth.kit.cells import chosen_cells
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.hosts import every_provider, hosts_named
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import argument, described, option, positional
from berth.kit.publishing import checked
from berth.kit.terminal import Cli
from berth.settings import BadSetting
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.names import FindNames, NameKind
from bus.reports import SHARES
from bus.requests import ResourceGroup
from bus.resources import FindAllocations, FindProviders, FindUsages, OwnerEditRequested, OwnerGiven, Provider
from bus.vocabulary import Missing, portions

commands = Commands()
providers = Commands(name="provider", no_args_is_help=True)
classes = Commands(name="class", no_args_is_help=True)
traits = Commands(name="trait", no_args_is_help=True)
for group in (providers, classes, traits):
    commands.add_typer(group)

_SHOWN_PARTS: Final = ("inventories", "traits", "aggregates", "owner")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_AT_ONCE = 100  # root providers per query
_SHOWN = 10


TIMEOUT = 60.0  # seconds for an answer: a large region has many providers

OfTraits = Annotated[
    list[str] | None, described("Only with this trait; may be repeated.", "--trait", metavar="TRAIT")
]
OfClass = Annotated[str, described("Only with an inventory of this class.", "--class", metavar="CLASS")]


@providers.command("list")
async def list_providers(
    cli: ListCli,
    trait: OfTraits = None,
    resource_class: OfClass = "",
    cell: str = option("", "Only providers of this cell.", metavar="NAME"),
    match: str = option("*", "Only providers with a matching name: 'rack7-*'.", metavar="PATTERN"),
) -> None:
    """List resource providers with the used amount and the capacity of each resource class.

    A provider is a host, or a part of one: a NUMA node, a device, a share. Its host is the root of its tree.
    """
    if resource_class:
        await _check_name(cli, "resource class", resource_class)
    for each in trait or ():
        await _check_name(cli, "trait", each)
    await show_providers(cli, trait or (), resource_class, cell, match)


@providers.command("show")
async def show_provider(
    cli: Cli, provider: Annotated[str, positional("Name or uuid.", metavar="PROVIDER")]
) -> None:
    """Show one provider: its parent and children, inventories, traits, aggregates and allocations."""
    async with cli.bus("provider") as bus:
        shown = await _provider_named(bus, provider)
        holders = await bus.asker(topics.ALLOCATIONS, TIMEOUT)(FindAllocations(providers=(shown.id,)))
    held = {consumer.id: dict(consumer.allocations.get(shown.id, {})) for consumer in holders.consumers}
    if cli.as_json:
        cli.value({"provider": shown, "allocations": held}, "")
        return
    for title, text in (
        ("name", shown.name), ("uuid", shown.id), ("parent", shown.parent or ""), ("root", shown.root),
        ("host", shown.host), ("cell", shown.cell), ("agent", shown.agent), ("zone", shown.zone),
        ("generation", str(shown.generation)), ("traits", ", ".join(shown.traits)),
        ("aggregates", ", ".join(shown.aggregates)),
    ):  # fmt: skip
        if text:
            cli.line(f"{title:<11}{printable(text)}")
    titles = ("class", "used", "capacity", "total", "reserved", "ratio", "min", "max", "step")
    rows = [
        (
            *(name, shown.used.get(name, 0), stock.capacity, stock.total, stock.reserved),
            *(f"{stock.allocation_ratio:g}", stock.min_unit, stock.max_unit, stock.step_size),
        )
        for name, stock in sorted(shown.inventories.items())
    ]
    cli.say.print(plain_table(titles, (map(str, row) for row in rows)))
    if held:
        cli.say.print(plain_table(("consumer", "holds"), ((id_, _amounts(of)) for id_, of in held.items())))


@classes.command("list")
async def list_classes(cli: ListCli) -> None:
    """List the resource classes, OpenStack's standard classes first."""
    await show_names(cli, "resource class")


@traits.command("list")
async def list_traits(
    cli: ListCli,
    prefix: str = option("", "Only traits that begin so: CUSTOM_, HW_CPU_.", metavar="TEXT"),
    used: bool = option(False, "Only traits that a provider has."),
) -> None:
    """List the traits, OpenStack's standard traits first."""
    await show_names(cli, "trait", prefix, used)


@commands.command("usage")
async def usage_command(
    cli: ListCli,
    project: Annotated[str, positional("Id of the project.", metavar="PROJECT")],
    user: str = option("", "Only consumers of this user.", metavar="ID"),
) -> None:
    """Show the allocations of a project by type of consumer: instances, moves in progress, other types."""
    async with cli.bus("usage") as bus:
        found = await bus.asker(topics.USAGES)(checked(FindUsages(project=project, user=user)))
    rows = [(type_, found.consumers.get(type_, 0), held) for type_, held in sorted(found.used.items())]
    lines = ((type_, str(count), _amounts(held)) for type_, count, held in rows)
    facts = ({"type": type_, "consumers": count, "holds": held} for type_, count, held in rows)
    cli.rows(facts, plain_table(("type", "consumers", "holds"), lines))
    if not rows and not cli.as_json:
        cli.line(f"project {project} holds nothing", "dim")


async def show_providers(
    cli: Cli, traits: Sequence[str], resource_class: str = "", cell: str = "", match: str = "*"
) -> None:
    """Print the providers that match all given conditions."""
    async with cli.bus("provider") as bus:
        found = [each async for each in _found(bus, traits, resource_class, cell, match)]
    found.sort(key=lambda provider: (provider.host or provider.name, provider.name))
    rows = []
    for provider in found:
        shown = {"name": provider.name, "uuid": provider.id, "host": provider.host, "cell": provider.cell}
        amounts = {
            name: (provider.used.get(name, 0), stock.capacity)
            for name, stock in sorted(provider.inventories.items())
            if resource_class in ("", name)
        }
        rows.append((shown, amounts))
    lines = (
        (
            *map(printable, shown.values()),
            ", ".join(f"{name} {used}/{capacity}" for name, (used, capacity) in amounts.items()),
        )
        for shown, amounts in rows
    )
    facts = (
        shown
        | {"inventories": {name: {"used": used, "capacity": most} for name, (used, most) in amounts.items()}}
        for shown, amounts in rows
    )
    cli.rows(facts, plain_table(("provider", "uuid", "host", "cell", "used/capacity"), lines))
    if not cli.as_json:
        cli.line(f"{len(rows)} providers", "dim")


async def _provider_named(bus: Bus, name: str) -> Provider:
    """Return the provider with this name or uuid, or the root provider of the host with this name. Raise
    OperationRefused if there is none, or if several hosts have the name.
    """
    uuid = name.lower() if _UUID.fullmatch(name.lower()) else ""
    query = FindProviders(ids=(uuid,) if uuid else (), name="" if uuid else name, parts=_SHOWN_PARTS)
    ask = bus.asker(topics.PROVIDERS)
    found = (await ask(query)).providers
    if not uuid and (hosts := await hosts_named(bus, name)) and not found:
        found = (await ask(FindProviders(ids=(hosts[0].id,), parts=_SHOWN_PARTS))).providers
    if not found:
        raise OperationRefused(f"there is no provider {name}: `berth resource provider list` lists them")
    return found[0]


async def _found(
    bus: Bus, traits: Sequence[str], resource_class: str, cell: str, match: str
) -> AsyncIterator[Provider]:
    like = ResourceGroup(required=tuple(traits)) if traits else None
    question = FindProviders(like=like, parts=("inventories", "owner"))
    async for provider in every_provider(bus, checked(question), timeout=TIMEOUT):
        has_class = not resource_class or resource_class in provider.inventories
        names = (provider.name, provider.host) if provider.parent is None else (provider.name,)
        if has_class and cell in ("", provider.cell) and any(fnmatchcase(name, match) for name in names):
            yield provider


async def show_names(cli: Cli, kind: NameKind, prefix: str = "", used: bool = False) -> None:
    """Print resource classes or traits; `used`: only those of a provider."""
    question = FindNames(kind=kind, prefix=prefix, associated=True if used else None)
    async with cli.bus("names") as bus:
        names = (await bus.asker(topics.NAMES)(checked(question))).names
    cli.rows(names, plain_table((kind,), ((named.name,) for named in names)))


async def _check_name(cli: Cli, kind: NameKind, name: str) -> None:
    """Raise OperationRefused if there is no resource class or trait of this name."""
    async with cli.bus("names") as bus:
        found = (await bus.asker(topics.NAMES)(checked(FindNames(kind=kind, names=(name,))))).names
    if not found:
        lists = f"`berth resource {kind.split()[-1]} list`"
        raise OperationRefused(f"there is no {kind} {name}: {lists} lists them")


def _amounts(held: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(held.items()))


@providers.command("reset")
async def reset_command(
    cli: ActCli,
    cell: Annotated[str, described("The cell that has it from now on.", metavar="NAME")],
    root: str = argument("", "The uuid of its root provider, or its name.", metavar="ROOT"),
    ownerless: bool = option(
        False,
        "Every root without a cell, as after `berth openstack import`, except sharing providers.",
        "--all-without-owner",
    ),
    match: str = option("*", "Only roots with a matching name: 'rack7-*'.", metavar="PATTERN"),
) -> None:
    """Assign a host to a cell, whatever cell it has now, and accept the next report of its agent.

    Use it if an agent has reported the host for a wrong cell, or with a sequence number so high that later
    reports are refused, and for hosts that an operator created or imported. Schedulers use the host after
    the cell's next report.
    """
    if bool(root) == ownerless:
        raise BadSetting("give a root, or --all-without-owner")
    if ownerless:
        await reset_the_ownerless(cli, cell, match)
        return
    await reset(cli, root, cell)


async def reset(cli: ActCli, root: str, cell: str) -> None:
    """Assign a host to a cell, whatever cell it has now, and accept the next report of its agent."""
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        if not _UUID.fullmatch(root):
            root = (await _provider_named(bus, root)).root
        order = checked(OwnerEditRequested(root=root, cell=cell))
        if cli.dry_run:
            await bus.rehearse(order)
            now = await _root(bus, root)
            facts = {"root": root, "cell": now.cell, "agent": now.agent, "sequence": now.sequence}
            was = f"it is of {_owner(now.cell, now.agent)}, last report {now.sequence}"
            cli.tell(f"{root} would be of cell {cell}; {was}", **facts, to=cell)
            return
        result = (await bus.asker(topics.EDIT_OWNER)(order)).result
        if isinstance(result, Missing):
            raise OperationRefused(f"there is no root provider {root}")
    if not isinstance(result, OwnerGiven):
        raise OperationRefused("other processes are changing it: try again")
    before = _owner(result.cell, result.agent)
    cli.value(result, f"{root} is of cell {cell}; it was of {before}, last report {result.sequence}")


def _owner(cell: str, agent: str) -> str:
    return f"{f'cell {cell}' if cell else 'no cell'}{f', agent {agent}' if agent else ''}"


async def _root(bus: Bus, root: str) -> Provider:
    """Return a root provider; raise OperationRefused if there is none."""
    question = FindProviders(ids=(root,), parts=("owner",))
    for provider in (await bus.asker(topics.PROVIDERS)(question)).providers:
        if provider.parent is None:
            return provider
    raise OperationRefused(f"there is no root provider {root}")


async def reset_the_ownerless(cli: ActCli, cell: str, match: str) -> None:
    """Assign root providers without a cell to this cell if their names match the pattern `match`, except
    pools that share resources with hosts. Return the exit code 0; raise OperationRefused if some failed.
    """
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        found = [provider for provider in await _ownerless(bus) if fnmatchcase(provider.name, match)]
        failed: list[str] = []
        for part in portions(found, _AT_ONCE):
            orders = [OwnerEditRequested(root=provider.id, cell=cell) for provider in part]
            if cli.dry_run:
                await bus.rehearse(*orders)
                continue
            answers = await bus.asker_of_many(topics.EDIT_OWNER, timeout=60.0)(orders)
            given = [isinstance(answer.result, OwnerGiven) for answer in answers]
            failed += [provider.name for provider, done in zip(part, given, strict=True) if not done]
    names = [provider.name for provider in found if provider.name not in failed]
    some = f": {', '.join(printable(each.name) for each in found[:_SHOWN])}" if found else ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    goes = f"would go to cell {cell}" if cli.dry_run else f"are of cell {cell} now"
    sentence = f"{len(found) - len(failed)} hosts {goes}{some}{more}"
    cli.tell(sentence, cell=cell, hosts=names, failed=failed, done=not cli.dry_run)
    if failed:
        raise OperationRefused(f"other processes change {', '.join(failed[:_SHOWN])}: repeat the command")


async def _ownerless(bus: Bus) -> list[Provider]:
    """Return the root providers without a cell, sorted by name, except pools of shared resources."""
    found = [
        provider
        async for provider in every_provider(bus, FindProviders(parts=("owner", "traits")), timeout=60.0)
        if provider.parent is None and not provider.cell and SHARES not in provider.traits
    ]
    return sorted(found, key=lambda each_provider: each_provider.name)
