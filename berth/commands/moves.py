"""`berth move`, `resize`, `shelve`, `unshelve`, `rebuild`: ask for moves of instances, and follow them."""

from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import structs

from berth.commands.boot_options import WaitingCommand, pairs, waiting_time
from berth.commands.builds import image_named
from berth.commands.options import Json, StateDir
from berth.commands.requesting_moves import ANY, Making, request_moves, spec_of
from berth.commands.terminal import effective, run, say
from berth.settings import BadSetting
from bus.moves import MoveKind, MoveRequested
from bus.queries import BuildStands
from bus.requests import Flavor

_WHERE, _HOW = "Where", "How"
_LONGEST_NAME = 200

commands = typer.Typer()

Builds = Annotated[list[str], typer.Argument(metavar="BUILD...", help="Uuids of instances.")]
OneBuild = Annotated[str, typer.Argument(metavar="BUILD", help="The uuid of the instance.")]
Cell = Annotated[str, typer.Option(help="The cell it is in, if you know: then nobody else is asked.")]
Follow = Annotated[
    bool, typer.Option("--wait", help="Follow it to its end; exit 1 unless it is done.", rich_help_panel=_HOW)
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="[TIME]",
        help="Follow it to its end; exit 1 unless it is done. With a time (90s, 30m, 12h, 7d) it may wait so"
        " long for room.",
        rich_help_panel=_HOW,
    ),
]
Priority = Annotated[
    int,
    typer.Option(min=0, max=9, help="Among those that wait for room, 9 goes first.", rich_help_panel=_HOW),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say where it would go now, or why it would not, and do nothing; exit 1 if it would not.",
        rich_help_panel=_HOW,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to follow it, on top of those it may wait for room.", rich_help_panel=_HOW
    ),
]
To = Annotated[
    str, typer.Option("--to", metavar="NAME|UUID", help="This host or none.", rich_help_panel=_WHERE)
]
ForceTo = Annotated[
    str,
    typer.Option(
        metavar="NAME|UUID",
        help="This host, whatever rules say; placement still must have room there.",
        rich_help_panel=_WHERE,
    ),
]
ToCell = Annotated[
    str,
    typer.Option(
        "--to-cell", metavar="CELL", help="To a host of this cell, if it is another: stopped.",
        rich_help_panel=_WHERE,
    ),
]  # fmt: skip
Not = Annotated[
    list[str] | None,
    typer.Option(
        "--not", metavar="NAME|UUID", help="Not this host; may be repeated.", rich_help_panel=_WHERE
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="It waits on its new host until you `berth confirm` or `berth revert` it.",
        rich_help_panel=_HOW,
    ),
]
VerifyFor = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="After so long it is confirmed without you: 90s, 30m, 12h.", rich_help_panel=_HOW
    ),
]


@commands.command("move", cls=WaitingCommand)
def move_command(
    builds: Builds,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="It runs on while its memory is copied, and stops for a moment only.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    to: To = "",
    force_to: ForceTo = "",
    not_: Not = None,
    to_cell: ToCell = "",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="It waits on its new host until you `berth confirm` or `berth revert` it.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    verify_for: VerifyFor = "",
    wait: Wait = None,
    priority: Priority = 0,
    dry_run: DryRun = False,
    timeout: Timeout = 3600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Move instances to other hosts, chosen by the scheduler or named; to another cell, if you name one.

    Stopped, copied, started again: the source's capacity is held until then, so that the move can return.
    `berth move BUILD --live --wait` interrupts the instance only briefly; `berth move BUILD --verify --wait`
    waits for confirmation. `berth moves list` shows moves in progress, `berth abort BUILD` ends one early.
    If no host fits, `--wait 1h` waits for capacity.
    """
    _check_where(to, force_to, not_ or ())
    if live and (verify or verify_for):
        raise BadSetting("--live and --verify: one that is moved live has no way back once it runs there")
    if live and to_cell:
        raise BadSetting("--live and --to-cell: only what is stopped leaves its cell")
    asked = MoveRequested(
        move=ANY,
        build=ANY,
        kind="live" if live else "migrate",
        to_cell=to_cell,
        wanted_host=to,
        forced_host=force_to,
        ignore_hosts=tuple(not_ or ()),
        verify=verify or bool(verify_for),
        verify_for=_time("--verify-for", verify_for),
        wait=waiting_time(wait),
        priority=priority,
    )
    settings = effective(state_dir=state_dir).settings
    run(
        request_moves(settings, builds, cell, _alike(asked), wait is not None, timeout, as_json, say, dry_run)
    )


@commands.command("resize", cls=WaitingCommand)
def resize_command(
    build: OneBuild,
    vcpus: Annotated[int | None, typer.Option(min=0, help="So many VCPU.")] = None,
    memory_mb: Annotated[int | None, typer.Option(min=0, help="So much memory.")] = None,
    disk_gb: Annotated[int | None, typer.Option(min=0, help="So much disk.")] = None,
    flavor: Annotated[str, typer.Option(help="What the flavor is called that it has then.")] = "",
    extra_spec: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-spec",
            "--spec",
            metavar="KEY=VALUE",
            help="Of the flavor; KEY= takes one away; may be repeated (docs/requests.md).",
        ),
    ] = None,
    to: To = "",
    force_to: ForceTo = "",
    not_: Not = None,
    to_cell: ToCell = "",
    same_host: Annotated[
        bool,
        typer.Option(
            "--same-host",
            help="It may stay where it is, if old and new fit there together.",
            rich_help_panel=_WHERE,
        ),
    ] = False,
    verify: Verify = True,
    verify_for: VerifyFor = "",
    wait: Wait = None,
    priority: Priority = 0,
    dry_run: DryRun = False,
    timeout: Timeout = 3600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Give an instance another size; only the named values change.

    It moves to a host with enough capacity, and waits there for `berth confirm BUILD`; until then its old
    capacity is held, and `berth revert BUILD` restores it. Four processors without confirmation: `berth
    resize BUILD --vcpus 4 --no-verify --wait`.
    """
    _check_where(to, force_to, not_ or ())
    if same_host and to_cell:
        raise BadSetting("--same-host and --to-cell: its host is of the cell it is in")
    if verify_for and not verify:
        raise BadSetting("--verify-for and --no-verify: it cannot wait for so long, and not at all")
    specs = pairs("--extra-spec", extra_spec or [])

    def asked(stands: BuildStands) -> MoveRequested:
        spec = spec_of(stands)
        changed = flavor_changed(spec.flavor, flavor, vcpus, memory_mb, disk_gb, specs)
        if changed == spec.flavor:
            raise BadSetting(
                f"{stands.build} is that already: say what is to change, --vcpus, --memory-mb, --disk-gb,"
                " --flavor or --extra-spec"
            )
        return MoveRequested(
            move=ANY,
            build=stands.build,
            kind="resize",
            to_cell=to_cell,
            flavor=changed,
            wanted_host=to,
            forced_host=force_to,
            ignore_hosts=tuple(not_ or ()),
            same_host=same_host,
            verify=verify,
            verify_for=_time("--verify-for", verify_for),
            wait=waiting_time(wait),
            priority=priority,
        )

    settings = effective(state_dir=state_dir).settings
    run(request_moves(settings, [build], cell, asked, wait is not None, timeout, as_json, say, dry_run))


@commands.command("shelve")
def shelve_command(
    builds: Builds,
    wait: Follow = False,
    timeout: Timeout = 3600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Stop instances, keep what they are, and give all their room back.

    `berth unshelve BUILD` builds one again, wherever there is room then.
    """
    settings = effective(state_dir=state_dir).settings
    run(request_moves(settings, builds, cell, _alike(_simple("shelve")), wait, timeout, as_json, say))


@commands.command("unshelve", cls=WaitingCommand)
def unshelve_command(
    builds: Builds,
    to: To = "",
    force_to: ForceTo = "",
    not_: Not = None,
    to_cell: ToCell = "",
    wait: Wait = None,
    priority: Priority = 0,
    dry_run: DryRun = False,
    timeout: Timeout = 3600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Build shelved instances again, as what they were, wherever there is room."""
    _check_where(to, force_to, not_ or ())
    asked = structs.replace(
        _simple("unshelve"),
        to_cell=to_cell,
        wanted_host=to,
        forced_host=force_to,
        ignore_hosts=tuple(not_ or ()),
        wait=waiting_time(wait),
        priority=priority,
    )
    settings = effective(state_dir=state_dir).settings
    run(
        request_moves(settings, builds, cell, _alike(asked), wait is not None, timeout, as_json, say, dry_run)
    )


@commands.command("rebuild")
def rebuild_command(
    build: OneBuild,
    image: Annotated[
        str, typer.Option(metavar="NAME", help="What is to run there (default: the image it has).")
    ] = "",
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Of that image: trait:NAME=required, hw_...; may be repeated."
        ),
    ] = None,
    wait: Follow = False,
    timeout: Timeout = 3600.0,
    cell: Cell = "",
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Build an instance anew, of an image, on the host and in the room it has.

    Should that come to nothing it runs on as it was. `berth rebuild BUILD --image debian-13 --wait`.
    """
    chosen = image_named(image, image_property or [])

    def asked(stands: BuildStands) -> MoveRequested:
        of = chosen or spec_of(stands).image
        if of is None:
            raise BadSetting(f"{stands.build} was built of no image: name one with --image")
        return structs.replace(_simple("rebuild"), image=of)

    settings = effective(state_dir=state_dir).settings
    run(request_moves(settings, [build], cell, asked, wait, timeout, as_json, say))


# What is asked for


def _simple(kind: MoveKind) -> MoveRequested:
    return MoveRequested(move=ANY, build=ANY, kind=kind)


def _alike(asked: MoveRequested) -> Making:
    return lambda stands: asked


def _check_where(to: str, force_to: str, not_: Sequence[str]) -> None:
    if to and force_to:
        raise BadSetting("--to and --force-to both name the host it is to go to: one of them")
    for host in not_:
        if host in (to, force_to):
            raise BadSetting(f"--not {host}: that is where it is to go")


def _time(option: str, given: str) -> str:
    if given:
        try:
            waiting_time(given)
        except BadSetting:
            raise BadSetting(f"{option} {given}: takes a time: 90s, 30m, 12h, 7d") from None
    return given


def flavor_changed(
    flavor: Flavor,
    name: str,
    vcpus: int | None,
    memory_mb: int | None,
    disk_gb: int | None,
    specs: dict[str, str],
) -> Flavor:
    """Return the flavor with the changed values, under another name."""
    figures = {"vcpus": vcpus, "memory_mb": memory_mb, "disk_gb": disk_gb}
    said = {key: value for key, value in figures.items() if value is not None}
    for key, value in specs.items():
        if not value and key not in flavor.extra_specs:
            raise BadSetting(f"--extra-spec {key}=: the flavor has no such extra spec to take away")
    extra = {key: value for key, value in {**flavor.extra_specs, **specs}.items() if value}
    changed = structs.replace(flavor, extra_specs=extra, **said)
    if name or changed == flavor:
        return structs.replace(changed, name=name or flavor.name)
    differs = [f"{key}={value}" for key, value in said.items() if getattr(flavor, key) != value]
    differs += [f"{key}={value}" for key, value in specs.items() if flavor.extra_specs.get(key, "") != value]
    base = flavor.name.partition(" with ")[0]
    return structs.replace(changed, name=f"{base} with {','.join(differs)}"[:_LONGEST_NAME])
