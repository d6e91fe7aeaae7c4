"""`berth resource aggregate`: manages host aggregates with their zones, tenants and filter options."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from berth.importing.bring_over_aggregates import BringOver, NoAggregates, read
from berth.kit.aggregates import aggregate_named, find_aggregates, hosts_inside
from berth.kit.builds import uuid_of
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.hosts import check_host_names
from berth.kit.key_values import pairs_given
from berth.kit.listing import ListCli, plain_table
from berth.kit.options import described, option, positional
from berth.kit.publishing import checked
from berth.kit.terminal import Cli, complain, write_json
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
from bus.vocabulary import UNSAID_ID
from control_room.kit.words import several

if TYPE_CHECKING:
    from berth.operations.aggregate_edits import SupposedAggregate

commands = Commands()
aggregates = Commands(name="aggregate", no_args_is_help=True)
commands.add_typer(aggregates)

Which = Annotated[str, positional("Its name or uuid.", metavar="AGGREGATE")]
ZoneNamed = Annotated[str | None, described("Makes it this availability zone.", "--zone", metavar="NAME")]
Properties = Annotated[
    list[str] | None,
    described(
        "filter_tenant_id=PROJECT, cpu_weight_multiplier=2, ssd=true, ...; may be repeated.",
        "--property",
        metavar="KEY=VALUE",
    ),
]
Force = Annotated[bool, described("Even where the zone of a host with instances changes by it.", "--force")]


@aggregates.command("list")
async def show_all(
    cli: ListCli,
    host: str = option("", "Only aggregates that contain this host."),
    key: str = option("", "Only aggregates with this property."),
) -> None:
    """List aggregates with their zones, hosts and properties."""
    async with cli.bus("aggregate") as bus:
        found = await find_aggregates(bus, host=host, key=key)
    facts = ({**_facts(aggregate), "host_count": count} for aggregate, count in found)
    table = plain_table(
        ("name", "zone", "hosts", "properties", "uuid"),
        map(_row, sorted(found, key=lambda each: (each[0].name, each[0].id))),
    )
    cli.rows(facts, table if found else "no such aggregate" if host or key else "no aggregate")


def _row(found: tuple[Aggregate, int]) -> tuple[str, ...]:
    aggregate, count = found
    rest = ", ".join(f"{key}={value}" for key, value in sorted(aggregate.metadata.items()) if key != ZONE)
    return aggregate.name or "-", aggregate.metadata.get(ZONE) or "-", f"{count:,}", rest or "-", aggregate.id


@aggregates.command("show")
async def show(cli: Cli, aggregate: Which) -> None:
    """Show one aggregate with its properties and all hosts."""
    async with cli.bus("aggregate") as bus:
        found = await aggregate_named(bus, aggregate)
        hosts = sorted(await hosts_inside(bus, found.id), key=lambda each: each.host or each.name)
    if cli.as_json:
        inside = [{"uuid": each.id, "name": each.host or each.name, "cell": each.cell} for each in hosts]
        write_json({**_facts(found), "host_count": len(hosts), "hosts": inside})
        return
    cli.line(f"{found.name or '(no name)'}  {found.id}")
    for key, value in sorted(found.metadata.items()):
        cli.line(f"  {printable(f'{key} = {value}')}")
    cli.line(f"{several(len(hosts), 'host')}{':' if hosts else ''}")
    for each in hosts:
        owner_note = "" if found.id in each.kept_aggregates or not each.agent else "  (as its owner reports)"
        cli.line(f"  {printable(each.host or each.name)}  {each.id}{owner_note}")


@dataclass(frozen=True)
class NewAggregate:
    name: Annotated[str, positional("Its new name.")]
    zone: ZoneNamed = None
    properties: Properties = None
    host: list[str] | None = option(None, "A host to put in; may be repeated.", metavar="HOST")
    id_: str = option("", "Its uuid (default: a new one).", "--uuid")
    force: Force = False


@aggregates.command("create")
async def create_command(cli: Cli, options: NewAggregate) -> None:
    """Create an aggregate. Example: `berth resource aggregate create east --zone east --host host-1`."""
    edit = MakeAggregate(
        aggregate=uuid_of(options.id_, "an aggregate") if options.id_ else Clock().uuid(),
        name=options.name,
        metadata=metadata_given(options.zone, options.properties),
        hosts=tuple(options.host or ()),
        force=options.force,
    )
    order = checked(AggregateEditRequested(edit=edit))
    async with cli.bus("aggregate") as bus:
        await check_host_names(bus, edit.hosts)
        _print_result(cli, (await bus.asker(topics.EDIT_AGGREGATE)(order)).result)
        return


@dataclass(frozen=True)
class AggregateChanges:
    name: str | None = option(None, "Another name.", metavar="NAME")
    zone: ZoneNamed = None
    no_zone: bool = option(False, "It is no availability zone any more.")
    properties: Properties = None
    no_property: list[str] | None = option(None, "Without this property; may be repeated.", metavar="KEY")
    add_host: list[str] | None = option(
        None, "A host or Ironic node to put in, by name or uuid; may be repeated.", metavar="HOST"
    )
    remove_host: list[str] | None = option(
        None, "A host or Ironic node to take out; may be repeated.", metavar="HOST"
    )
    force: Force = False


@aggregates.command("set")
async def set_command(cli: ActCli, aggregate: Which, changes: AggregateChanges) -> None:
    """Change an aggregate's name, zone, properties or hosts; everything that no option names stays as it was.

    Later reports of the agents do not take out hosts that an operator has put in. All changes are made, or
    none. Example: `berth resource aggregate set east --add-host host-1 --add-host host-2`.
    """
    unset = (*(changes.no_property or ()), *([ZONE] if changes.no_zone else []))
    given = metadata_given(changes.zone, changes.properties)
    if both := given.keys() & {*unset}:
        raise BadSetting(f"set and taken away: {', '.join(sorted(both))}")
    edit = ChangeAggregate(
        aggregate=UNSAID_ID,
        name=changes.name,
        set=given,
        unset=unset,
        add=tuple(changes.add_host or ()),
        remove=tuple(changes.remove_host or ()),
        force=changes.force,
    )
    if changes.name is None and not (edit.set or edit.unset or edit.add or edit.remove):
        raise BadSetting("nothing to change: give --name, --zone, --property, --add-host or another option")
    await change(cli, aggregate, edit)


@aggregates.command("delete")
async def delete_command(
    cli: ActCli,
    aggregate: Which,
    force: bool = option(False, "With hosts in it, which leave it; whatever runs there."),
) -> None:
    """Delete an aggregate; if it has hosts, only with --force."""
    await change(cli, aggregate, DropAggregate(aggregate=UNSAID_ID, force=force))


@commands.command("aggregates")
async def import_command(
    cli: ActCli,
    file: Annotated[
        Path, positional("Output of `openstack aggregate list --long -f json`; - is standard input.")
    ],
    force: Force = False,
) -> int:
    """Import Nova's aggregates with their names, zones, properties and hosts.

    The import can be repeated. Properties in the file replace an aggregate's properties in berth; hosts that
    the file does not list stay in the aggregate. Run the command after `berth openstack import placement`,
    which imports aggregates without names. Exit code 1 if an aggregate or host was not imported; each is
    listed.
    """
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        wanted = read(text)
    except NoAggregates as problem:
        raise BadSetting(f"{file}: {problem}") from None
    failed = 0
    async with cli.bus("aggregate") as bus:
        async for result in BringOver(bus, force).run(wanted, cli.dry_run):
            cli.tell(f"{result.name}: {result.did}", **vars(result))
            if not cli.as_json:
                for sentence in result.failed:
                    cli.line(f"  not brought over: {sentence}", "red")
                for sentence in result.notes:
                    cli.line(f"  {sentence}", "yellow")
            failed += bool(result.failed)
    return 1 if failed else 0


def metadata_given(zone: str | None, properties: Sequence[str] | None) -> dict[str, str]:
    """Return the metadata that the options give; `--zone` is the key of the availability zone."""
    metadata = pairs_given("--property", properties or ())
    if zone is not None:
        if not zone:
            raise BadSetting(
                "--zone takes a name; `berth resource aggregate set AGGREGATE --no-zone` makes it no zone"
            )
        metadata[ZONE] = zone
    if "," in metadata.get(ZONE, ""):
        raise BadSetting(f"--zone {metadata[ZONE]}: one zone; its name contains no comma")
    return metadata


def _facts(aggregate: Aggregate) -> dict[str, Any]:
    return {"uuid": aggregate.id, "name": aggregate.name, "metadata": aggregate.metadata}


async def change(cli: ActCli, name: str, edit: ChangeAggregate | DropAggregate) -> None:
    """Ask placement to change or delete the aggregate with the given name or uuid; print the result, and
    return the exit code 0. Raise OperationRefused if placement refuses.
    """
    checked(AggregateEditRequested(edit=edit))  # errors in the file are reported before any query
    async with cli.bus("aggregate") as bus:
        found = await aggregate_named(bus, name)
        edit = structs.replace(edit, aggregate=found.id)
        if cli.dry_run:
            from berth.operations.aggregate_edits import suppose_edit  # imports much of placement

            _print_supposed(cli, await suppose_edit(bus, edit))
            return
        order = AggregateEditRequested(edit=edit)
        _print_result(cli, (await bus.asker(topics.EDIT_AGGREGATE)(order)).result)


def _print_supposed(cli: ActCli, would: "SupposedAggregate") -> None:
    """Print what an edit would make of an aggregate."""
    found = would.aggregate
    changed = ("put in", would.added), ("taken out", would.removed)
    counts = [f"{several(len(hosts), 'host')} {change}" for change, hosts in changed if hosts]
    did = "would be deleted" if found.gone else "would be changed" if would.changed else "is so already"
    lists = {"added": would.added, "removed": would.removed}
    cli.tell(
        f"{found.name or found.id}: {', '.join([did, *counts])}", **_facts(found), gone=found.gone, **lists
    )


def _print_result(cli: Cli, result: AggregateResult) -> None:
    if not isinstance(result, AggregateEdited):
        raise OperationRefused(refusal_reason(result))
    found = result.aggregate
    lists = {"added": result.added, "removed": result.removed, "warnings": result.warnings}
    changed = ("put in", result.added), ("taken out", result.removed)
    counts = [f"{several(len(roots), 'host')} {change}" for change, roots in changed if roots]
    did = (
        "deleted"
        if found.gone
        else "made"
        if result.made
        else "changed"
        if result.number
        else "is so already"
    )
    uuid = f"\n  uuid {found.id}" if result.made else ""
    sentence = f"{found.name or found.id}: {', '.join([did, *counts])}{uuid}"
    cli.tell(sentence, **_facts(found), gone=found.gone, **lists)
    for warning in () if cli.as_json else result.warnings:
        complain.print(f"  {printable(warning)}", style="yellow", markup=False)
