"""`berth boot`: ask for builds and follow them to their ends."""

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from berth import wiring
from berth.commands import waiting
from berth.commands.boot_options import (
    WaitingCommand,
    flavor_instead,
    hints_given,
    pairs,
    waiting_time,
    weights_given,
)
from berth.commands.decision_notes import Noted
from berth.commands.name_resolution import ByName, named, resolved
from berth.commands.options import DiskGb, MemoryMb, StateDir, Vcpus
from berth.commands.terminal import (
    CommandRefused,
    checked,
    coloured,
    complain,
    effective,
    run,
    say,
    write_json,
)
from berth.publishing import PATIENCE, publish
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import (
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
)
from bus.requests import Flavor, Image

_METAL_NAME = "metal"
_DEFAULT_SIZE = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
_METAL = {
    "resources:CUSTOM_BAREMETAL": "1",
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources:DISK_GB": "0",
}

commands = typer.Typer()


_WHERE, _HOW = "Where", "How many, how long"


@commands.command("boot", cls=WaitingCommand)
def boot_command(
    vcpus: Vcpus = None,
    memory_mb: MemoryMb = None,
    disk_gb: DiskGb = None,
    flavor: Annotated[
        str,
        typer.Option(
            help="Name of the flavor that the size options and --spec describe; `metal` alone needs none."
        ),
    ] = "",
    extra_spec: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-spec",
            "--spec",
            metavar="KEY=VALUE",
            help="resources:CLASS=n, trait:NAME=required, hw:numa_nodes=2, ... (docs/requests.md);"
            " may be repeated.",
        ),
    ] = None,
    or_else: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|KEY=VALUE,...",
            help="What would do instead: JSON, or what differs (vcpus=2,KEY=); the better first.",
        ),
    ] = None,
    image: Annotated[
        str, typer.Option(metavar="NAME", help="What is to run; for Ironic a name or URL it can fetch.")
    ] = "",
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of the image: trait:NAME=required, hw_...; image_source, ... for Ironic.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, max=1000, help="Instances, all or none.", rich_help_panel=_HOW)
    ] = 1,
    at_least: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="So many of --count will do, if no more fit.", rich_help_panel=_HOW
        ),
    ] = 0,
    zone: Annotated[str, typer.Option(help="Only hosts of this zone.", rich_help_panel=_WHERE)] = "",
    cell: Annotated[str, typer.Option(help="Only hosts of this cell.", rich_help_panel=_WHERE)] = "",
    aggregate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|UUID,...",
            help="Only hosts in one of these aggregates; repeated, all of them must be met.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    not_aggregate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|UUID,...",
            help="No host in any of these; may be repeated.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="NAME|UUID", help="This host or none.", rich_help_panel=_WHERE)
    ] = "",
    force_host: Annotated[
        str,
        typer.Option(
            metavar="NAME|UUID",
            help="This host, whatever rules say; placement still must have room there.",
            rich_help_panel=_WHERE,
        ),
    ] = "",
    ignore_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|UUID", help="Not this host; may be repeated.", rich_help_panel=_WHERE),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            metavar="NAME|UUID", help="The server group they join (`berth group`).", rich_help_panel=_WHERE
        ),
    ] = "",
    hint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="same_host=UUID, different_host=UUID, build_near_host_ip=IP, cidr=/24, query=JSON;"
            " may be repeated.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    prefer_trait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRAIT[=WEIGHT]",
            help="Rather hosts with it, by so much (1; less than 0: rather not); may be repeated.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What you call them; `berth instances --name` finds them.")] = "",
    project: Annotated[str, typer.Option(help="Whose it is.", rich_help_panel=_WHERE)] = "",
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[TIME]",
            help="Follow it to its end; exit 1 unless all are active. With a time (90s, 30m, 12h, 7d) it"
            " may wait so long for room.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            min=0,
            max=9,
            help="9 is served first, before waiting requests of a lower priority.",
            rich_help_panel=_HOW,
        ),
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to follow it, on top of those it may wait for room.", rich_help_panel=_HOW
        ),
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is said as JSON lines.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Publish a build request; with --wait, follow it to its end.

    If no host fits, it prints which requirement rejected all hosts, and the closest hosts. Bare metal is
    `berth boot --flavor metal --wait`. One gold node, or else one silver, within an hour: `berth boot
    --flavor metal --spec trait:CUSTOM_GOLD=required --or-else
    trait:CUSTOM_GOLD=,trait:CUSTOM_SILVER=required --wait 1h`.
    """
    settings = effective(state_dir=state_dir).settings
    request, names = request_given(
        vcpus=vcpus,
        memory_mb=memory_mb,
        disk_gb=disk_gb,
        flavor=flavor,
        extra_spec=extra_spec,
        or_else=or_else,
        image=image,
        image_property=image_property,
        count=count,
        at_least=at_least,
        zone=zone,
        cell=cell,
        aggregate=aggregate,
        not_aggregate=not_aggregate,
        host=host,
        force_host=force_host,
        ignore_host=ignore_host,
        group=group,
        hint=hint,
        prefer_trait=prefer_trait,
        project=project,
    )
    request = msgspec.structs.replace(request, wait=waiting_time(wait), priority=priority, name=name)
    tell_notes(request)
    if request.wait:
        from scheduler_worker import seconds_of

        timeout += seconds_of(request.wait)
    run(boot(settings, request, wait is not None, timeout, as_json, say, names))


def request_given(
    *,
    vcpus: int | None,
    memory_mb: int | None,
    disk_gb: int | None,
    flavor: str,
    extra_spec: list[str] | None,
    or_else: list[str] | None,
    image: str,
    image_property: list[str] | None,
    count: int,
    at_least: int,
    zone: str,
    cell: str,
    aggregate: list[str] | None,
    not_aggregate: list[str] | None,
    host: str,
    force_host: str,
    ignore_host: list[str] | None,
    group: str,
    hint: list[str] | None,
    prefer_trait: list[str] | None,
    project: str,
) -> tuple[BuildRequested, ByName]:
    """Return the request for the options, and the names in it that are still to be resolved."""
    figures = {"vcpus": vcpus, "memory_mb": memory_mb, "disk_gb": disk_gb}
    described = {name: figure for name, figure in figures.items() if figure is not None}
    if flavor and flavor != _METAL_NAME and not described and not extra_spec:
        raise BadSetting(_undescribed(flavor))
    chosen = image_named(image, image_property or [])
    size = _DEFAULT_SIZE | described
    request = boot_request(
        size["vcpus"], size["memory_mb"], size["disk_gb"], flavor, extra_spec or [], count, zone, cell, chosen
    )
    hints = hints_given(hint or [])
    if hints.group and group:
        raise BadSetting("--group and --hint group= both say it")
    request = msgspec.structs.replace(
        request,
        project=project or request.project,
        or_else=tuple(flavor_instead(request.flavor, one) for one in or_else or []),
        at_least=at_least,
        wanted_host=host,
        forced_host=force_host,
        ignore_hosts=tuple(ignore_host or []),
        hints=hints,
        preferred_traits=weights_given(prefer_trait or []),
    )
    return request, named(group, aggregate or [], not_aggregate or [])


def _undescribed(flavor: str) -> str:
    """Return the refusal of a flavor that is only a name: berth has no list of flavors."""
    meant = f" Did you mean {_METAL_NAME}?" if get_close_matches(flavor, [_METAL_NAME]) else ""
    return (
        f"--flavor {flavor}: berth keeps no list of flavors; only `{_METAL_NAME}` is known by its name."
        f"{meant}"
        " Describe the flavor with --vcpus, --memory-mb, --disk-gb or --spec"
    )


def tell_notes(request: BuildRequested) -> None:
    from berth.request_sense import (
        sense_of,  # how schedulers read takes long to load, and few commands need it
    )

    for note in sense_of(checked(request)):
        complain.print(f"[yellow]note[/yellow]: {escape(note)}")


def boot_request(
    vcpus: int,
    memory_mb: int,
    disk_gb: int,
    flavor: str,
    extra_specs: Sequence[str],
    count: int,
    zone: str,
    cell: str,
    image: Image | None = None,
) -> BuildRequested:
    clock = Clock()
    specs = {**(_METAL if flavor == _METAL_NAME else {}), **pairs("--extra-spec", extra_specs)}
    return BuildRequested(
        request=clock.uuid(),
        instances=tuple(clock.uuid() for _ in range(count)),
        flavor=Flavor(
            name=flavor or "custom", vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb, extra_specs=specs
        ),
        image=image,
        zone=zone,
        cell=cell,
    )


def image_named(name: str, properties: Sequence[str]) -> Image | None:
    """Return the image of the options."""
    if properties and not name:
        raise BadSetting("--image-property is of an image: name it with --image")
    return Image(name=name, properties=pairs("--image-property", properties)) if name else None


async def boot(
    settings: Settings,
    request: BuildRequested,
    wait: bool,
    timeout: float,
    as_json: bool,
    say: Console,
    names: ByName,
) -> int:
    from berth.request_sense import sense_of

    name = f"boot-{request.request[:8]}"
    if wait:
        request = msgspec.structs.replace(request, reply_to=name)
    request = checked(request)
    async with Bus(wiring.transport(settings, "boot")) as bus:
        noted = Noted(bus, sense_of(request))
        request = checked(await resolved(bus, request, names))
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=name))
        unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=name))
        await publish(bus, request, patience=min(timeout, PATIENCE))
        if not wait:
            for instance in request.instances:
                if as_json:
                    write_json({"build": instance, "request": request.request})
                else:
                    say.print(f"asked for {instance}")
            return 0
        active, open_ = 0, set(request.instances)
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                no_host = group.create_task(unplaceable.get())
                telling = group.create_task(waiting.tell_while_it_waits(bus, request, as_json, say))
                while open_:
                    next_end = group.create_task(ended.get())
                    await asyncio.wait((no_host, next_end), return_when=asyncio.FIRST_COMPLETED)
                    if no_host.done():
                        next_end.cancel()
                        open_ -= set(no_host.result().instances)
                        noted.tell(no_host.result().decision.notes)
                        _tell_unplaceable(no_host.result(), len(request.instances), as_json, say)
                        no_host = group.create_task(unplaceable.get())
                        continue
                    said = next_end.result()
                    if said.build in open_:
                        open_.discard(said.build)
                        active += said.status == "active"
                        await noted.ask(said)
                        _tell_ended(said, as_json, say)
                no_host.cancel()
                telling.cancel()
        except TimeoutError:
            raise CommandRefused(
                f"not waiting any longer: {', '.join(sorted(open_))} did not end within {timeout:g} s"
            ) from None
    return 0 if active >= (request.at_least or len(request.instances)) else 1


def _tell_ended(said: BuildEnded, as_json: bool, say: Console) -> None:
    if as_json:
        write_json(said)
        return
    where = f"on {said.host} in cell {said.cell}" if said.status == "active" else said.reason
    say.print(said.build, coloured(said.status), escape(where))
    for number, attempt in enumerate(said.attempts, 1):
        if attempt.outcome != "built":
            say.print(f"  {number}. {attempt.host}: {attempt.outcome}: {attempt.cause}", markup=False)


def _tell_unplaceable(said: BuildUnplaceable, asked: int, as_json: bool, say: Console) -> None:
    if as_json:
        write_json(said)
        return
    without = len(said.instances)
    of = f" for {without} of {asked}" if without < asked else ""
    # The reason names the requirements and the closest hosts.
    say.print(f"[red]no host[/red]{of}: {escape(said.reason)}")
    say.print(f"[dim]berth why {said.request} shows how that came to be[/dim]")
