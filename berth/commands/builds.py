"""`berth boot` requests builds and follows them until they have ended; `berth delete` deletes builds."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from rich.markup import escape

from berth.commands.decision_output import wait_sentence
from berth.commands.options import (
    HOW_MANY,
    WHERE,
    Commands,
    OptionsOf,
    WaitingCommand,
    described,
    option,
    positional,
)
from berth.commands.terminal import Cli, coloured, note, write_json
from berth.operations.boot_options import (
    BootOptions,
    boot_request,
    feature_options,
    follow_boot,
    names_of,
    notes_of,
    waiting_time,
)
from berth.operations.cells import uuid_of
from berth.operations.deleting import DeleteOptions, delete_build
from berth.operations.host_states import ByName, resolved
from berth.operations.publishing import PATIENCE, checked, publish
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED
from bus.masking import printable
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.parts import waits_for
from bus.queries import WaitingRequest
from bus.vocabulary import seconds_of

commands = Commands()

BOOT_OPTIONS = {
    "vcpus": described("VCPU of each instance (default: 1).", min=0),
    "memory_mb": described("Memory of each instance (default: 512).", min=0),
    "disk_gb": described("Disk of each instance (default: 1).", min=0),
    "flavor": described("Name of the flavor that size options and --spec describe; `metal` needs none."),
    "extra_spec": described(
        "resources:CLASS=n, trait:NAME=required, hw:numa_nodes=2, ... (docs/requests.md); may be repeated.",
        "--extra-spec",
        "--spec",
        metavar="KEY=VALUE",
    ),
    "or_else": described(
        "What would do instead: JSON, or what differs (vcpus=2,KEY=); the better first.",
        metavar="FILE|KEY=VALUE,...",
    ),
    "image": described("The image; for Ironic a name or URL that it can fetch.", metavar="NAME"),
    "image_property": described(
        "Of the image: trait:NAME=required, hw_...; image_source, ... for Ironic.", metavar="KEY=VALUE"
    ),
    "count": described("Instances, all or none.", min=1, max=1000, panel=HOW_MANY),
    "at_least": described(
        "The least number of instances that is enough, if --count do not fit.",
        min=0,
        metavar="N",
        panel=HOW_MANY,
    ),
    "zone": described("Only hosts of this zone.", panel=WHERE),
    "cell": described("Only hosts of this cell.", panel=WHERE),
    "aggregate": described(
        "Only hosts in one of these aggregates; if repeated, every option must be met.",
        metavar="NAME|UUID,...",
        panel=WHERE,
    ),
    "not_aggregate": described(
        "No host in these aggregates; may be repeated.", metavar="NAME|UUID,...", panel=WHERE
    ),
    "host": described("Only this host.", metavar="NAME|UUID", panel=WHERE),
    "force_host": described(
        "This host, without filters; it still needs enough free capacity.", metavar="NAME|UUID", panel=WHERE
    ),
    "ignore_host": described("Not this host; may be repeated.", metavar="NAME|UUID", panel=WHERE),
    "hint": described(
        "same_host=UUID, different_host=UUID, build_near_host_ip=IP, cidr=/24, query=JSON; may be repeated.",
        metavar="KEY=VALUE",
        panel=WHERE,
    ),
    "prefer_trait": described(
        "Rather hosts with it, by so much (1; less than 0: rather not); may be repeated.",
        metavar="TRAIT[=WEIGHT]",
        panel=WHERE,
    ),
    "name": described("What you call them; `berth instances --name` finds them."),
    "project": described("The project that owns the instances.", panel=WHERE),
    "more": OptionsOf(feature_options()),
}


def boot_options(*without: str) -> dict[str, Any]:
    """Return the descriptions of the options of `berth boot`, except those of the fields `without`."""
    described = {name: option for name, option in BOOT_OPTIONS.items() if name not in without}
    return described | {"more": OptionsOf(feature_options(), without)}


@commands.command("boot", cls=WaitingCommand)
async def boot_command(
    cli: Annotated[Cli, "Print JSON lines."],
    options: Annotated[BootOptions, BOOT_OPTIONS],
    wait: str | None = option(
        None,
        "Follow it to its end; exit 1 unless all are active. With a time (90s, 30m, 12h, 7d) it may wait so"
        " long for room.",
        metavar="[TIME]",
        panel=HOW_MANY,
    ),
    timeout: float = option(
        600.0, "Seconds to follow it, in addition to its waiting time for capacity.", min=0, panel=HOW_MANY
    ),
) -> int:
    """Publish a build request; with --wait, follow it until its builds have ended.

    If no host fits, the command prints the requirements that rejected hosts, and the closest hosts. Example
    for bare metal: `berth boot --flavor metal --wait`. Example for a gold node, or else a silver node, within
    an hour: `berth boot --flavor metal --spec trait:CUSTOM_GOLD=required --or-else
    trait:CUSTOM_GOLD=,trait:CUSTOM_SILVER=required --wait 1h`.
    """
    options = dataclasses.replace(options, wait=waiting_time(wait))
    request = boot_request(options)
    names = names_of(options)
    print_notes(request)
    timeout += seconds_of(waits_for(request.parts))
    return await boot(cli, request, wait is not None, timeout, names)


def print_notes(request: BuildRequested) -> None:
    """Print which parts of a build request berth ignores, because they have no meaning for berth."""
    from berth.operations.request_sense import sense_of  # loads the scheduler's parser, which takes long

    for text in sense_of(checked(request)):
        note(text)


async def boot(cli: Cli, request: BuildRequested, wait: bool, timeout: float, names: ByName) -> int:
    from berth.operations.request_sense import sense_of

    if wait:
        request = msgspec.structs.replace(request, reply_to=f"boot-{request.request[:8]}")
    request = checked(request)
    async with cli.bus("boot") as bus:
        printer = _BootPrinter(bus, len(request.instances), sense_of(request), cli)
        request = checked(await resolved(bus, request, names))
        if wait:
            active = await follow_boot(bus, request, timeout, printer)
            return 0 if active >= (request.at_least or len(request.instances)) else 1
        await publish(bus, request, patience=min(timeout, PATIENCE))
    for instance in request.instances:
        cli.tell(f"asked for {instance}", build=instance, request=request.request)
    return 0


class _BootPrinter:
    """Prints a build request's progress: notes about ignored parts, why the request waits, and its result."""

    def __init__(self, bus: Bus, requested: int, notes: tuple[str, ...], cli: Cli) -> None:
        self._bus = bus
        self._requested = requested
        self._notes = set(notes)  # printed before the publication
        self._notes_read = False
        self._lacks = ""
        self._cli = cli

    async def ended(self, build_ended: BuildEnded) -> None:
        if not self._notes_read:  # one build of a request is sufficient
            self._notes_read = True
            try:
                self._note(await notes_of(self._bus, build_ended))
            except UNANSWERED as problem:
                note(f"what was noted is not known: {problem}")
        if self._cli.as_json:
            write_json(build_ended)
            return
        where = (
            f"on {build_ended.host} in cell {build_ended.cell}"
            if build_ended.status == "active"
            else build_ended.reason
        )
        self._cli.say.print(build_ended.build, coloured(build_ended.status), escape(where))
        for number, attempt in enumerate(build_ended.attempts, 1):
            if attempt.outcome != "built":
                self._cli.line(f"  {number}. {attempt.host}: {attempt.outcome}: {attempt.cause}")

    def unplaceable(self, refusal: BuildUnplaceable) -> None:
        self._note(refusal.decision.notes)
        if self._cli.as_json:
            write_json(refusal)
            return
        without = len(refusal.instances)
        of = f" for {without} of {self._requested}" if without < self._requested else ""
        self._cli.say.print(f"[red]no host[/red]{of}: {escape(refusal.reason)}")
        self._cli.say.print(f"[dim]berth why {refusal.request} shows how that came to be[/dim]")

    def waits(self, waiting: WaitingRequest) -> None:
        lacks = wait_sentence(waiting)
        if lacks != self._lacks:
            self._lacks = lacks
            self._cli.value(waiting, f"waiting: {lacks}")

    def _note(self, notes: Iterable[str]) -> None:
        for text in dict.fromkeys(notes):
            if text not in self._notes:
                self._notes.add(text)
                note(printable(text))


@commands.command("delete")
async def delete(
    cli: Cli,
    build: Annotated[str, positional("The build's uuid; or a request's, while it waits.")],
    cell: str = option("", "Its cell, if known: other cells are not queried then."),
    wait: bool = option(False, "Wait until it is down; exit 1 unless it was there, and is."),
    fence: bool = option(
        False, "Also if no build has this id yet: a later request with it gets no host. The id is used up."
    ),
    timeout: float = option(600.0, "Seconds to wait.", min=0),
) -> None:
    """Delete a build and release its resources, or cancel a waiting request.

    A build can be deleted at any moment: while it waits, is placed or built, and after its end. The command
    queries all cells for the build. If no cell has it, the scheduler cancels it, or forwards the deletion to
    the cell in which it was placed. An unknown id is an error (exit 1). With --wait the command returns when
    placement has no more allocations for the build.
    """
    build = uuid_of(build)
    options = DeleteOptions(cell=cell, wait=wait, fence=fence, timeout=timeout)
    async with cli.bus("delete") as bus:
        results = await delete_build(bus, cli.settings, build, options, note)
    for deleted in results:
        becomes = "deleted" if wait else "will be deleted"
        if deleted.why:
            sentence, becomes = f"{deleted.build}: {printable(deleted.why)}", "not placed"
        else:
            by = f" by cell {deleted.cell}" if deleted.by_scheduler else ""
            sentence = f"{deleted.build} {becomes}{by}"
        facts = {"build": deleted.build, "becomes": becomes, "cell": deleted.cell, "why": deleted.why}
        cli.tell(sentence, **facts)
