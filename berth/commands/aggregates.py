"""`berth aggregate`: groups of hosts with zones, tenants and options of filters."""

import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs

from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, complain, plain_table, write_json
from berth.importing.bring_over_aggregates import BringOver, NoAggregates, NovaAggregate, read
from berth.operations.names import aggregate_named, find_aggregates, hosts_inside
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.aggregates import (
    ZONE,
    Aggregate,
    AggregateEdited,
    AggregateEditRequested,
    AggregateResult,
    ChangeAggregate,
    DropAggregate,
    MakeAggregate,
    refusal_reason,
)
from bus.clock import Clock
from bus.errors import OperationRefused
from bus.masking import printable

commands = Commands(name="aggregate", no_args_is_help=True)

Which = Annotated[str, typer.Argument(metavar="AGGREGATE", help="Its name or uuid.")]
HostNames = Annotated[
    list[str],
    typer.Argument(metavar="HOST...", help="Names of hosts or Ironic nodes, or their roots' uuids."),
]
ZoneNamed = Annotated[
    str | None, typer.Option("--zone", metavar="NAME", help="Makes it this availability zone.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="KEY=VALUE",
        help="filter_tenant_id=PROJECT, cpu_weight_multiplier=2, ssd=true, ...; may be repeated.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Even where the zone of a host with instances changes by it.")
]


@commands.command("list")
async def show_all(
    cli: Cli,
    host: str = option("", "Only those that this host is in."),
    key: str = option("", "Only those with this property."),
) -> int:
    """List aggregates with their zones, hosts and properties."""
    async with cli.bus("aggregate") as bus:
        found = await find_aggregates(bus, host=host, key=key)
    facts = ({**_told(aggregate), "host_count": count} for aggregate, count in found)
    table = plain_table(("name", "zone", "hosts", "properties", "uuid"), map(_row, sorted(found, key=_name)))
    cli.rows(facts, table if found else "no such aggregate" if host or key else "no aggregate")
    return 0


def _name(found: tuple[Aggregate, int]) -> tuple[str, str]:
    return found[0].name, found[0].id


def _row(found: tuple[Aggregate, int]) -> tuple[str, ...]:
    aggregate, count = found
    rest = ", ".join(f"{key}={value}" for key, value in sorted(aggregate.metadata.items()) if key != ZONE)
    return aggregate.name or "-", aggregate.metadata.get(ZONE) or "-", f"{count:,}", rest or "-", aggregate.id


@commands.command("show")
async def show(cli: Cli, aggregate: Which) -> int:
    """Show one aggregate with its properties and all hosts."""
    async with cli.bus("aggregate") as bus:
        one = await aggregate_named(bus, aggregate)
        hosts = sorted(await hosts_inside(bus, one.id), key=lambda each: each.host or each.name)
    if cli.as_json:
        told_of = [{"uuid": each.id, "name": each.host or each.name, "cell": each.cell} for each in hosts]
        write_json({**_told(one), "host_count": len(hosts), "hosts": told_of})
        return 0
    cli.line(f"{one.name or '(no name)'}  {one.id}")
    for key, value in sorted(one.metadata.items()):
        cli.line(f"  {printable(f'{key} = {value}')}")
    cli.say.print(f"{len(hosts):,} host{'' if len(hosts) == 1 else 's'}{':' if hosts else ''}")
    for each in hosts:
        kept = "" if one.id in each.kept_aggregates or not each.agent else "  (as its owner reports)"
        cli.line(f"  {printable(each.host or each.name)}  {each.id}{kept}")
    return 0


@dataclass(frozen=True)
class NewAggregate:
    """The options of a new aggregate."""

    name: Annotated[str, typer.Argument(help="What it is to be called.")]
    zone: ZoneNamed = None
    properties: Properties = None
    host: list[str] | None = option(None, "A host to put in; may be repeated.", metavar="HOST")
    id_: str = option("", "Its uuid, where it is to have a certain one.", "--uuid")
    force: Force = False


@commands.command("create")
async def create_command(cli: Cli, options: NewAggregate) -> int:
    """Make one. `berth aggregate create east --zone east --host host-1` makes an availability zone."""
    edit = MakeAggregate(
        aggregate=_uuid(options.id_) if options.id_ else Clock().uuid(),
        name=options.name,
        metadata=said_of(options.zone, options.properties),
        hosts=tuple(options.host or ()),
        force=options.force,
    )
    return await create(cli, edit)


@commands.command("set")
async def set_command(
    cli: Cli,
    aggregate: Which,
    name: str | None = option(None, "Another name.", metavar="NAME"),
    zone: ZoneNamed = None,
    properties: Properties = None,
    force: Force = False,
) -> int:
    """Change an aggregate's name, zone or properties; everything that is not named stays."""
    if name is None and zone is None and not properties:
        raise BadSetting("nothing to set: say --name, --zone or --property")
    edit = ChangeAggregate(aggregate=NOBODY, name=name, set=said_of(zone, properties), force=force)
    return await change(cli, aggregate, edit)


@commands.command("unset")
async def unset_command(
    cli: Cli,
    aggregate: Which,
    zone: bool = option(False, "It is no availability zone any more."),
    properties: list[str] | None = option(None, "May be repeated.", "--property", metavar="KEY"),
    force: Force = False,
) -> int:
    """Remove an aggregate's zone or properties."""
    keys = (*(properties or ()), *([ZONE] if zone else []))
    if not keys:
        raise BadSetting("nothing to unset: say --zone or --property")
    edit = ChangeAggregate(aggregate=NOBODY, unset=keys, force=force)
    return await change(cli, aggregate, edit)


@commands.command("add")
async def add_command(cli: Cli, aggregate: Which, hosts: HostNames, force: Force = False) -> int:
    """Put hosts in. They stay in it whatever their agents report."""
    edit = ChangeAggregate(aggregate=NOBODY, add=tuple(hosts), force=force)
    return await change(cli, aggregate, edit)


@commands.command("remove")
async def remove_command(cli: Cli, aggregate: Which, hosts: HostNames, force: Force = False) -> int:
    """Take hosts out."""
    edit = ChangeAggregate(aggregate=NOBODY, remove=tuple(hosts), force=force)
    return await change(cli, aggregate, edit)


@commands.command("delete")
async def delete_command(
    cli: Cli,
    aggregate: Which,
    force: bool = option(False, "With hosts in it, which leave it; whatever runs there."),
) -> int:
    """Forget it. One with hosts in it stays, unless it is forced."""
    edit = DropAggregate(aggregate=NOBODY, force=force)
    return await change(cli, aggregate, edit)


@commands.command("import")
async def import_command(
    cli: Cli,
    file: Annotated[
        Path,
        typer.Argument(help="What `openstack aggregate list --long -f json` wrote; - is standard input."),
    ],
    dry_run: bool = option(False, "Change nothing; say what there is."),
    force: Force = False,
) -> int:
    """Import Nova's aggregates: names, zones, properties, hosts.

    The import can be repeated. Properties are replaced by those of the file; hosts that exist only in berth
    stay. Run it after `berth import placement`, whose aggregates get their names. Exit code 1 if something
    could not be imported; it is listed.
    """
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        wanted = read(text)
    except NoAggregates as problem:
        raise BadSetting(f"{file}: {problem}") from None
    return await bring_over(cli, wanted, dry_run, force)


NOBODY = "00000000-0000-0000-0000-000000000000"  # placeholder until its name has been resolved


def said_of(zone: str | None, properties: Sequence[str] | None) -> dict[str, str]:
    pairs = [property_.partition("=") for property_ in properties or ()]
    for one, (key, equals, _) in zip(properties or (), pairs, strict=True):
        if not key or not equals:
            raise BadSetting(f"--property takes KEY=VALUE, not {one!r}")
    said = {key: value for key, _, value in pairs}
    if zone is not None:
        if not zone:
            raise BadSetting("--zone takes a name; `berth aggregate unset AGGREGATE --zone` makes it no zone")
        said[ZONE] = zone
    if "," in said.get(ZONE, ""):
        raise BadSetting(f"--zone {said[ZONE]}: one zone, whose name has no comma")
    return said


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise BadSetting(f"{text!r} is no uuid") from None


# Looking


def _told(aggregate: Aggregate) -> dict[str, Any]:
    return {"uuid": aggregate.id, "name": aggregate.name, "metadata": aggregate.metadata}


# Changing


async def create(cli: Cli, edit: MakeAggregate) -> int:
    order = checked(AggregateEditRequested(edit=edit))
    async with cli.bus("aggregate") as bus:
        return _tell(cli, (await bus.asker(topics.EDIT_AGGREGATE)(order)).result)


async def change(cli: Cli, name: str, edit: ChangeAggregate | DropAggregate) -> int:
    """Apply an edit to the aggregate of this name or uuid, and print the result."""
    checked(AggregateEditRequested(edit=edit))  # errors in the file are reported before any query
    async with cli.bus("aggregate") as bus:
        found = await aggregate_named(bus, name)
        order = AggregateEditRequested(edit=structs.replace(edit, aggregate=found.id))
        return _tell(cli, (await bus.asker(topics.EDIT_AGGREGATE)(order)).result)


def _tell(cli: Cli, result: AggregateResult) -> int:
    if not isinstance(result, AggregateEdited):
        raise OperationRefused(refusal_reason(result))
    one = result.aggregate
    if cli.as_json:
        lists = {"added": result.added, "removed": result.removed, "warnings": result.warnings}
        write_json({**_told(one), "gone": one.gone, **lists})
        return 0
    counts = [
        f"{len(roots):,} host{'' if len(roots) == 1 else 's'} {what}"
        for what, roots in (("put in", result.added), ("taken out", result.removed))
        if roots
    ]
    did = (
        "deleted" if one.gone else "made" if result.made else "changed" if result.number else "is so already"
    )
    cli.line(f"{one.name or one.id}: {', '.join([did, *counts])}")
    if result.made:
        cli.line(f"  uuid {one.id}")
    for warning in result.warnings:
        complain.print(f"  {printable(warning)}", style="yellow", markup=False)
    return 0


async def bring_over(cli: Cli, wanted: Sequence[NovaAggregate], dry_run: bool, force: bool) -> int:
    async with cli.bus("aggregate") as bus:
        failed = 0
        async for result in BringOver(bus, force).run(wanted, dry_run):
            cli.tell(f"{result.name}: {result.did}", **vars(result))
            if not cli.as_json:
                for sentence in result.failed:
                    cli.line(f"  not brought over: {sentence}", "red")
                for sentence in result.notes:
                    cli.line(f"  {sentence}", "yellow")
            failed += bool(result.failed)
    return 1 if failed else 0
