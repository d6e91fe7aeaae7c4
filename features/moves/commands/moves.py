"""`berth instance move`, `resize`, `shelve`, `unshelve`, `rebuild`: request moves of instances, and follow
them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import structs
from rich.markup import escape

from berth.kit import (
    PUBLISH_SECONDS,
    ActCli,
    BadSetting,
    Cli,
    Commands,
    WaitingCommand,
    cause_after,
    complain,
    described,
    image_named,
    option,
    pairs_given,
    parts_given,
    positional,
    print_funnel,
    publish,
    wait_sentence,
    waiting_time,
    whole_ids,
    write_json,
)
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.parts import MoveParts
from bus.queries import BuildStands, WaitingRequest
from bus.vocabulary import seconds_of
from features.moves.messages import MoveKind, MoveOfPlan, MoveProgress, MoveRequested
from features.moves.moving import (
    ANY,
    REFUSED,
    VERIFYING,
    Making,
    MoveListener,
    MoveOutcome,
    flavor_changed,
    follow_moves,
    prepare_moves,
    spec_of,
    supposed,
)
from features.moves.plan_requests import PlanListener, outcome_of
from features.moves.supposed_moves import SupposedMove, why_not

_WHERE = "Where"
_HOW = "How"

commands = Commands()

Builds = Annotated[
    list[str], positional("Uuids of instances, or at least 8 characters of each.", metavar="BUILD...")
]
VERIFY = "It waits on its new host until you `berth move confirm` or `berth move revert` it."
VerifyFor = Annotated[
    str, described("After so long it is confirmed without you: 90s, 30m, 12h.", metavar="TIME", panel=_HOW)
]


@dataclass(frozen=True)
class Destination:
    """Options that select the destination of a move."""

    to: str = option("", "Only this host.", metavar="NAME|UUID", panel=_WHERE)
    force_to: str = option(
        "",
        "This host, without filters; it still needs enough free capacity.",
        metavar="NAME|UUID",
        panel=_WHERE,
    )
    not_: list[str] | None = option(
        None, "Not this host; may be repeated.", "--not", metavar="NAME|UUID", panel=_WHERE
    )
    to_cell: str = option("", "To a host of this cell; stopped if another.", metavar="CELL", panel=_WHERE)

    def of(self, request: MoveRequested) -> MoveRequested:
        """Return the move request with the selected destination; raise BadSetting if the options conflict."""
        excluded = tuple(self.not_ or ())
        if self.to and self.force_to:
            raise BadSetting("--to and --force-to both name the destination: use one of them")
        for host in excluded:
            if host in (self.to, self.force_to):
                raise BadSetting(f"--not {host}: that is the destination")
        hosts = {"wanted_host": self.to, "forced_host": self.force_to, "ignore_hosts": excluded}
        return structs.replace(request, to_cell=self.to_cell, **hosts)


@dataclass(frozen=True)
class _Followed:
    """Options that determine whether and how long a command follows a move until it has ended."""

    timeout: float = option(
        3600.0, "Seconds to follow it, in addition to its waiting time for capacity.", min=0, panel=_HOW
    )
    cell: str = option("", "Its cell, if known: other cells are not queried then.")

    wait: bool | str | None = None

    @property
    def follows(self) -> bool:
        return self.wait not in (None, False)


@dataclass(frozen=True)
class FollowedMove(_Followed):
    """Options of commands for moves that never wait for capacity."""

    wait: bool = option(False, "Follow it to its end; exit 1 unless it is done.", panel=_HOW)


@dataclass(frozen=True)
class Waiting(_Followed):
    """Options of commands for moves that may wait for capacity."""

    wait: str | None = option(
        None,
        "Follow it; exit 1 unless it is done. With a time (90s, 30m, 12h, 7d) it may wait so long for room.",
        metavar="[TIME]",
        panel=_HOW,
    )
    priority: int = option(0, "Priority in the queue for capacity, at most 9.", min=0, max=9, panel=_HOW)

    def of(self, request: MoveRequested) -> MoveRequested:
        """Return the request with the time to wait for capacity, and the priority, that the options give."""
        parts = parts_given(MoveParts, wait=waiting_time(self.wait), priority=self.priority)
        return structs.replace(request, parts=request.parts.having(*parts))


@dataclass(frozen=True)
class NewSize:
    vcpus: int | None = option(None, "So many VCPU.", min=0)
    memory_mb: int | None = option(None, "So much memory.", min=0)
    disk_gb: int | None = option(None, "So much disk.", min=0)
    flavor: str = option("", "What the flavor is called that it has then.")
    extra_spec: list[str] | None = option(
        None,
        "Extra specs of the flavor; KEY= removes one; may be repeated (docs/requests.md).",
        "--extra-spec",
        "--spec",
        metavar="KEY=VALUE",
    )


@dataclass(frozen=True)
class MoveOptions:
    live: bool = option(False, "It runs while its memory is copied, and stops for a moment only.", panel=_HOW)
    verify: bool = option(False, VERIFY, panel=_HOW)
    verify_for: VerifyFor = ""


@commands.command("move", cls=WaitingCommand)
async def move_command(
    cli: ActCli, builds: Builds, where: Destination, how: Waiting, options: MoveOptions
) -> int:
    """Move instances to other hosts, which the scheduler chooses unless you name a host or a cell.

    An instance is stopped, copied, and started on its new host. Until then its old capacity is held, so that
    the move can be undone. `berth instance move BUILD --live --wait` interrupts the instance only briefly;
    `berth instance move BUILD --verify --wait` waits for confirmation. `berth move list` shows moves in
    progress, `berth move abort BUILD` aborts one. If no host fits, `--wait 1h` waits for capacity.
    """
    asked = how.of(where.of(_request("live" if options.live else "migrate")))
    if options.live and (options.verify or options.verify_for):
        raise BadSetting(
            "--live and --verify: a live migration cannot be reverted once it runs at the destination"
        )
    if options.live and where.to_cell:
        raise BadSetting("--live and --to-cell: only stopped instances leave their cell")
    after = _verify_for(options.verify_for)
    asked = structs.replace(asked, verify=options.verify or bool(after), verify_for=after)
    return await request_moves(cli, builds, lambda stands: asked, how)


@dataclass(frozen=True)
class ResizeOptions:
    same_host: bool = option(False, "It may stay where it is, if both fit there together.", panel=_WHERE)
    verify: bool = option(True, VERIFY, "--verify/--no-verify", panel=_HOW)
    verify_for: VerifyFor = ""


@commands.command("resize", cls=WaitingCommand)
async def resize_command(
    cli: ActCli, builds: Builds, size: NewSize, where: Destination, how: Waiting, options: ResizeOptions
) -> int:
    """Resize instances; only the named values change.

    Each instance moves to a host with enough capacity, and the move waits for `berth move confirm BUILD`.
    Until then the old capacity is held, and `berth move revert BUILD` restores the instance. To get four
    processors without confirmation: `berth instance resize BUILD --vcpus 4 --no-verify --wait`.
    """
    asked = how.of(where.of(_request("resize")))
    if options.same_host and where.to_cell:
        raise BadSetting("--same-host and --to-cell: its host is of the cell it is in")
    if options.verify_for and not options.verify:
        raise BadSetting("--verify-for and --no-verify: it cannot wait for so long, and not at all")
    verify = {"verify": options.verify, "verify_for": _verify_for(options.verify_for)}
    asked = structs.replace(asked, same_host=options.same_host, **verify)
    specs = pairs_given("--extra-spec", size.extra_spec or ())

    def resized(stands: BuildStands) -> MoveRequested:
        flavor = spec_of(stands).flavor
        sizes = {"vcpus": size.vcpus, "memory_mb": size.memory_mb, "disk_gb": size.disk_gb}
        changed = flavor_changed(flavor, size.flavor, sizes, specs)
        if changed == flavor:
            raise BadSetting(
                f"{stands.build} has this flavor already: change it with --vcpus, --memory-mb, --disk-gb, "
                "--flavor or --extra-spec"
            )
        return structs.replace(asked, flavor=changed)

    return await request_moves(cli, builds, resized, how)


@commands.command("shelve")
async def shelve_command(cli: ActCli, builds: Builds, how: FollowedMove) -> int:
    """Shelve instances: stop them, keep their records, and release all their resources.

    `berth instance unshelve BUILD` builds an instance again on any host with enough free capacity.
    """
    return await request_moves(cli, builds, lambda stands: _request("shelve"), how)


@commands.command("unshelve", cls=WaitingCommand)
async def unshelve_command(cli: ActCli, builds: Builds, where: Destination, how: Waiting) -> int:
    """Build shelved instances again, on any host with enough free capacity."""
    asked = how.of(where.of(_request("unshelve")))
    return await request_moves(cli, builds, lambda stands: asked, how)


@commands.command("rebuild")
async def rebuild_command(
    cli: ActCli,
    builds: Builds,
    how: FollowedMove,
    image: str = option("", "The new image (default: the present one).", metavar="NAME"),
    image_property: list[str] | None = option(
        None, "Of that image: trait:NAME=required, hw_...; may be repeated.", metavar="KEY=VALUE"
    ),
) -> int:
    """Rebuild instances from an image, on the same host and with the same allocations.

    If it fails, an instance runs on with its old image. `berth instance rebuild BUILD --image debian-13
    --wait`.
    """
    chosen = image_named(image, image_property or [])

    def rebuilt(stands: BuildStands) -> MoveRequested:
        of = chosen or spec_of(stands).image
        if of is None:
            raise BadSetting(f"{stands.build} was built without an image: name one with --image")
        return structs.replace(_request("rebuild"), image=of)

    return await request_moves(cli, builds, rebuilt, how)


def _request(kind: MoveKind) -> MoveRequested:
    return MoveRequested(move=ANY, build=ANY, kind=kind)


def _verify_for(given: str) -> str:
    if given:
        try:
            waiting_time(given)
        except BadSetting:
            raise BadSetting(f"--verify-for {given}: takes a time: 90s, 30m, 12h, 7d") from None
    return given


async def request_moves(cli: ActCli, builds: Sequence[str], making: Making, how: _Followed) -> int:
    """Request the moves of these builds, and follow them if requested; return the exit code."""
    async with cli.bus("move") as bus:
        ids = await whole_ids(bus, cli.settings, builds, cell=how.cell)
        name = f"move-{Clock().uuid()[:8]}"
        requests, code = await _prepared(cli, bus, ids, making, how, name if how.follows else "")
        if not requests:
            return code
        if cli.dry_run:
            await bus.rehearse(*requests)
            return print_supposed(cli, requests, await supposed(bus, requests)) or code
        if how.follows:
            return await _follow(bus, name, requests, cli, how) or code
        await publish(bus, *requests, patience=PUBLISH_SECONDS)
    for request in requests:
        facts = {"move": request.move, "build": request.build, "kind": request.kind}
        cli.tell(f"asked for: {request.kind} of {request.build} (`berth move show {request.move}`)", **facts)
    return code


async def _prepared(
    cli: ActCli, bus: Bus, ids: Sequence[str], making: Making, how: _Followed, reply_to: str
) -> tuple[list[MoveRequested], int]:
    """Return the requests for these builds, and the exit code: 1 if one of several builds is refused, after
    its refusal was printed.
    """
    try:
        return await prepare_moves(bus, cli.settings, ids, how.cell, making, reply_to), 0
    except OperationRefused:
        if len(ids) == 1:
            raise
    requests: list[MoveRequested] = []

    async def prepare_one(build: str) -> None:
        requests.extend(await prepare_moves(bus, cli.settings, [build], how.cell, making, reply_to))

    return requests, await cli.each(ids, prepare_one)


async def _follow(bus: Bus, name: str, requests: Sequence[MoveRequested], cli: Cli, how: _Followed) -> int:
    printer = RequestedMovesPrinter(cli)
    longest = max((seconds_of(request.parts.waits.longest) for request in requests), default=0.0)
    try:
        return 0 if await follow_moves(bus, name, requests, how.timeout + longest, printer) else 1
    except asyncio.CancelledError:
        if rest := len(requests) - printer.count_over:
            complain.print(
                f"{rest} in progress or waiting for capacity, which continue: `berth move list` and "
                "`berth request list` show them, `berth move abort BUILD` ends one early",
                markup=False,
            )
        raise


# Prints moves: their progress, results and expected destinations.


_DONE = {
    "migrate": "moved to {host}",
    "live": "moved to {host}",
    "evacuate": "moved to {host}",
    "resize": "resized, on {host}",
    "shelve": "shelved",
    "unshelve": "unshelved on {host}",
    "rebuild": "rebuilt on {host}",
}
_ENDS = {
    "reverted": "[yellow]went back[/yellow] to {host}",
    "aborted": "[yellow]aborted[/yellow]: it is on {host}",
    "error": "[red]not done[/red]: it is on {host}",
    "deleted": "[yellow]deleted[/yellow] meanwhile",
    VERIFYING: "[yellow]waits to be confirmed[/yellow], on {host}",
    REFUSED: "[red]refused[/red]",
    "cancelled": "[yellow]does not wait any more[/yellow]: it stays as it is",
}
_BEGINS = {  # descriptions of phases
    "prepare": "gets its place on {host}",
    "send": "leaves for {host}",
    "start": "starts on {host}",
    "resume": "goes on, on {host}",
    "build": "is built on {host}",
    "rebuild": "is rebuilt on {host}",
    "swap": "did not come to {host}: its next host is tried",
    "undo": "returns to its former host",
    "revert": "returns to its former host",
    "abort": "returns to its former host",
}


class MovePrinter(MoveListener):
    """Prints the progress of moves: each phase once; with --json every progress message."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self._phases: dict[str, tuple[str, str]] = {}
        self._waits: dict[str, str] = {}

    def progress(self, progress: MoveProgress) -> None:
        """Print a move's progress, once for each phase and host."""
        if self.cli.as_json:
            write_json(progress)
            return
        if self._phases.get(progress.move) == (progress.phase, progress.host):
            return
        self._phases[progress.move] = (progress.phase, progress.host)
        if progress.phase in _BEGINS:
            text = _BEGINS[progress.phase].format(host=printable(progress.host) or "its host")
            if progress.phase == "send" and not progress.host:
                text = "is stopped, and its image made"
            self.cli.line(f"{progress.build} {text}", "dim")

    def waits(self, waiting: WaitingRequest) -> None:
        """Print that a move waits for capacity, and print it again when the lacking resources change."""
        lacks = wait_sentence(waiting)
        if self._waits.get(waiting.request) != lacks:
            self._waits[waiting.request] = lacks
            self.cli.value(waiting, f"{next(iter(waiting.builds), waiting.request)} waits: {lacks}", "dim")

    def on_outcome(self, outcome: MoveOutcome) -> None:
        """Print the outcome of a move."""
        if self.cli.as_json:
            write_json(vars(outcome))
            return
        self.cli.say.print(sentence(outcome))
        for line in failures(outcome):
            self.cli.line(line)


class PlanPrinter(PlanListener):
    """Prints the result of each move of a plan; all of its moves are of one kind."""

    def __init__(self, cli: Cli, kind: MoveKind) -> None:
        self.cli = cli
        self._moves, self._kind = MovePrinter(cli), kind

    def on_move(self, move: MoveOfPlan) -> None:
        self._moves.on_outcome(outcome_of(move, self._kind))


class RequestedMovesPrinter(MovePrinter):
    """Prints the moves that a command requested, and how to confirm moves that wait for confirmation."""

    count_over = 0

    def on_outcome(self, outcome: MoveOutcome) -> None:
        self.count_over += 1
        super().on_outcome(outcome)
        if outcome.end == VERIFYING and not self.cli.as_json:
            build = outcome.build
            self.cli.line(
                f"  `berth move confirm {build}` keeps it there, `berth move revert {build}` brings it back",
                "dim",
            )


def sentence(outcome: MoveOutcome) -> str:
    """Return the result of a move as a sentence, coloured for a terminal."""
    ended = f"[green]{_DONE.get(outcome.kind, 'done')}[/green]" if outcome.end == "done" else ""
    text = (ended or _ENDS.get(outcome.end, outcome.end)).format(host=escape(printable(outcome.host)) or "?")
    code = rf" \[{outcome.code}]" if outcome.code else ""
    reason = f": {escape(printable(outcome.reason))}" if outcome.reason else ""
    return f"{outcome.build} {text}{code}{reason}"


def failures(outcome: MoveOutcome) -> list[str]:
    """Return a line for each failed phase of a move or, if no phase failed, for each failed attempt."""
    lines = [
        f"  {phase.phase} on {printable(phase.host)}: {phase.outcome}{cause_after(phase.cause)}"
        for phase in outcome.phases
        if phase.outcome != "done"
    ]
    return lines or [
        f"  {number}. {printable(attempt.host)}: {attempt.outcome}{cause_after(attempt.cause)}"
        for number, attempt in enumerate(outcome.attempts, 1)
        if attempt.outcome != "built"
    ]


def print_supposed(cli: Cli, moves: Sequence[MoveRequested], answers: Sequence[SupposedMove]) -> int:
    """Print where each move would go, or why it is impossible; return 1 if one is impossible, else 0."""
    for request, answer in zip(moves, answers, strict=True):
        if answer.fits:
            where = "".join(f" to {printable(placed.host)} in cell {placed.cell}" for placed in answer.placed)
            cli.value(answer, f"{request.build}: {request.kind}{where}", "green")
        else:
            cli.value(answer, f"{request.build}: no {request.kind}: {printable(why_not(answer))}", "red")
        if not cli.as_json:
            print_funnel(answer.decision, cli.say, answer.placed[0].root if answer.placed else "")
    return 0 if all(answer.fits for answer in answers) else 1
