"""`berth boot` requests builds and follows them until they have ended; `berth delete` deletes builds."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import msgspec
from rich.markup import escape

from berth.kit.boot_command_options import BOOT_OPTIONS, print_notes
from berth.kit.boot_options import BootOptions, names_of
from berth.kit.boot_requests import boot_request
from berth.kit.builds import whole_ids
from berth.kit.command_groups import Commands, WaitingCommand
from berth.kit.decision_output import wait_sentence
from berth.kit.dry_run import ActCli
from berth.kit.named_objects import ByName, resolved_request
from berth.kit.options import HOW_MANY, option, positional
from berth.kit.publishing import PUBLISH_SECONDS, checked, publish
from berth.kit.terminal import Cli, coloured, note, write_json
from berth.kit.times import waiting_time
from berth.operations.deleting import Deleted, DeleteOptions, delete_build, suppose_deletion
from berth.operations.following_boots import follow_boot, notes_of
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED
from bus.masking import printable
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import WaitingRequest
from bus.vocabulary import seconds_of

commands = Commands()


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
    timeout += seconds_of(request.parts.waits.longest)
    return await boot(cli, request, wait is not None, timeout, names)


async def boot(cli: Cli, request: BuildRequested, wait: bool, timeout: float, names: ByName) -> int:
    """Request instances; with `wait`, follow them to their end and return 1 if one fails."""
    from berth.kit.request_sense import sense_of

    if wait:
        request = msgspec.structs.replace(request, reply_to=f"boot-{request.request[:8]}")
    request = checked(request)
    async with cli.bus("boot") as bus:
        printer = _BootPrinter(bus, len(request.instances), sense_of(request), cli)
        request = checked(await resolved_request(bus, request, names))
        if wait:
            active = await follow_boot(bus, request, timeout, printer)
            return 0 if active >= (request.at_least or len(request.instances)) else 1
        await publish(bus, request, patience=min(timeout, PUBLISH_SECONDS))
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
    cli: ActCli,
    builds: Annotated[
        list[str],
        positional(
            "Uuids of builds, or of requests while they wait; at least 8 characters of each.",
            metavar="BUILD...",
        ),
    ],
    cell: str = option("", "Its cell, if known: other cells are not queried then."),
    wait: bool = option(False, "Wait until it is down; exit 1 unless it was there, and is."),
    fence: bool = option(
        False, "Also if no build has this id yet: a later request with it gets no host. The id is used up."
    ),
    timeout: float = option(600.0, "Seconds to wait.", min=0),
) -> int:
    """Delete builds and release their resources, or cancel waiting requests.

    A build can be deleted at any moment: while it waits, is placed or built, and after its end. The command
    queries all cells for the build. If no cell has it, the scheduler cancels it, or forwards the deletion to
    the cell in which it was placed. An unknown id is an error (exit 1). With --wait the command returns when
    placement has no more allocations for the build.
    """
    options = DeleteOptions(cell=cell, wait=wait, fence=fence, timeout=timeout)
    async with cli.bus("delete") as bus:

        async def delete_one(build: str) -> None:
            if cli.dry_run:
                would = await suppose_deletion(bus, cli.settings, build, options)
                cli.tell(printable(f"{build} {would.says}"), **vars(would))
            else:
                _print_deleted(cli, await delete_build(bus, cli.settings, build, options, note), wait)

        ids = await whole_ids(bus, cli.settings, builds, "a build", cell)
        return await cli.each(ids, delete_one)


def _print_deleted(cli: Cli, results: Iterable[Deleted], waited: bool) -> None:
    for deleted in results:
        becomes = "deleted" if waited else "will be deleted"
        if deleted.why:
            sentence, becomes = f"{deleted.build}: {printable(deleted.why)}", "not placed"
        else:
            by = f" by cell {deleted.cell}" if deleted.by_scheduler else ""
            sentence = f"{deleted.build} {becomes}{by}"
        facts = {"build": deleted.build, "becomes": becomes, "cell": deleted.cell, "why": deleted.why}
        cli.tell(sentence, **facts)
