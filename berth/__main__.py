"""The command line. Each command reads its settings, does one thing, and says in words what went wrong."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from berth import __version__, commands, dead, loading, options
from berth.configuration import Effective, read
from berth.importing.command import commands as import_commands
from berth.ironic_commands import commands as ironic_commands
from berth.options import BuildTime, Cells, DiskGb, Fail, Hosts, Json, MemoryMb, Seed, StateDir, Vcpus
from berth.settings import GROUP_OF, BadSetting, by_name, shown
from bus.errors import AnswerRefused, BrokerRefused, Unavailable, Unroutable
from bus.sql.migrations import MigrationsBroken

_PIPED_WIDTH = 200  # columns of a table nobody looks at in a terminal


def console(file: IO[str]) -> Console:
    """Sentences are never broken: that is for the terminal to do, and nobody wants it in a pipe."""
    width = None if file.isatty() or os.environ.get("COLUMNS") else _PIPED_WIDTH
    return Console(file=file, highlight=False, soft_wrap=True, width=width)


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="berth finds a berth for every machine: event-driven placement and scheduling.",
    epilog="Settings: BERTH_... variables, berth.toml and flags, in rising order; see `berth settings`.",
)
say = console(sys.stdout)
complain = console(sys.stderr)

# What is the world's or the user's doing is told in a sentence; anything else is a bug and shows where.
_CONDITIONS = (
    Unavailable, Unroutable, BrokerRefused, AnswerRefused, MigrationsBroken, BadSetting, commands.Refusal,
    OSError,
)  # fmt: skip


class _Globals:
    config: Path | None
    sets: dict[str, str]


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"berth {__version__}\n")
        raise typer.Exit


@app.callback()
def _globals(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings (default: berth.toml).")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be repeated.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which berth this is.")
    ] = False,
) -> None:
    _Globals.config, _Globals.sets = config, {}
    for pair in set_ or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes NAME=VALUE, not {pair!r}")
        _Globals.sets[name.replace("-", "_")] = value


def settings(**flags: Any) -> Effective:
    """The effective settings, with this command's flags on top."""
    effective = read(flags, sets=_Globals.sets, file=_Globals.config)
    logging.basicConfig(
        level=effective.settings.process.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    return effective


def run(work: Coroutine[Any, Any, int | None]) -> None:
    """Run a command to its exit code, on the fast event loop where there is one."""
    try:
        try:
            import uvloop

            code = uvloop.run(work)
        except ImportError:
            code = asyncio.run(work)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code or 0)


def _cells(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if given.isdigit():
        return tuple(f"c{number}" for number in range(1, int(given) + 1))
    return tuple(part.strip() for part in given.split(",") if part.strip())


@app.command()
def demo(
    boots: Annotated[int, typer.Option(min=1, help="How many instances to boot.")] = 1000,
    cells: Cells = "4",
    hosts: Hosts = 200,
    fail: Fail = 0.1,
    build_time: BuildTime = "exponential:0.1",
    seed: Seed = 1,
) -> None:
    """Everything in one process: boots on simulated hosts, free bare-metal nodes, and the audit."""
    effective = settings(
        cells=_cells(cells), hosts=hosts, fail=fail, build_time=build_time, seed=seed, amqp_url="",
        database_url="", cell_database_urls={}, cell_amqp_urls={}, ironic_amqp_url="", ironic_api_url="",
        ironic_auth="none",
    )  # fmt: skip
    run(loading.demo(effective.settings, boots, say))


@app.command()
def up(
    cells: Cells = None,
    hosts: Hosts = None,
    baremetal: Annotated[int | None, typer.Option(min=0, help="Simulated bare-metal nodes.")] = None,
    fail: Fail = None,
    build_time: BuildTime = None,
    state_dir: StateDir = None,
    seed: Seed = None,
    http: options.Http = None,
) -> None:
    """Run everything until Ctrl-C: in this process, or given service URLs, each worker as its own."""
    effective = settings(
        cells=_cells(cells), hosts=hosts, baremetal=baremetal, fail=fail, build_time=build_time,
        state_dir=state_dir, seed=seed, placement_http=http,
    )  # fmt: skip
    run(commands.up(effective.settings, say))


@app.command("run")
def run_worker(
    worker: Annotated[str, typer.Argument(help="placement, scheduler, conductor, compute, ironic or metal.")],
    cell: Annotated[str, typer.Option(help="Whose conductor or agents.")] = "",
    hosts: Hosts = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on loopback.")] = None,
    bus: options.Bus = None,
    database: options.Database = None,
    http: options.Http = None,
    auth: options.Auth = None,
    tokens: options.Tokens = None,
    policy: options.Policy = None,
) -> None:
    """Run one worker as this process, in service mode: as many of each as you like, compute once a cell."""
    alone = bus == "local"
    effective = settings(
        hosts=hosts, metrics_port=metrics_port, amqp_url="" if alone else bus, database_url=database,
        placement_http=http, placement_auth=auth, placement_tokens=tokens, placement_policy=policy,
    )  # fmt: skip
    run(commands.run(effective.settings, worker, cell, alone))


@app.command()
def boot(
    vcpus: Vcpus = 1,
    memory_mb: MemoryMb = 512,
    disk_gb: DiskGb = 1,
    flavor: Annotated[
        str, typer.Option(help="The flavor's name; `metal` is one CUSTOM_BAREMETAL and nothing else.")
    ] = "",
    extra_spec: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="resources:CLASS=n, trait:NAME=required, ...; may be repeated."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Instances, all or none.")] = 1,
    zone: Annotated[str, typer.Option(help="Only hosts of this zone.")] = "",
    cell: Annotated[str, typer.Option(help="Only hosts of this cell.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit 1 unless all are active.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is said as JSON lines.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Publish a build request; with --wait, see it through."""
    effective = settings(state_dir=state_dir)
    request = commands.boot_request(vcpus, memory_mb, disk_gb, flavor, extra_spec or [], count, zone, cell)
    run(commands.boot(effective.settings, request, wait, timeout, as_json, say))


@app.command()
def delete(
    build: Annotated[str, typer.Argument(help="The build's uuid.")],
    cell: Annotated[str, typer.Option(help="The cell it is in (build.ended names it).")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is down.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 600.0,
    state_dir: StateDir = None,
) -> None:
    """Take a build down and give its resources back."""
    effective = settings(state_dir=state_dir)
    run(commands.delete(effective.settings, build, cell, wait, timeout, say))


node_app = typer.Typer(no_args_is_help=True, help="Speak for a bare-metal node, as Ironic would.")
app.add_typer(node_app, name="node")


@node_app.command("set")
def node_set(
    name: Annotated[str, typer.Argument(help="A name; its uuid is derived from it unless it is one.")],
    event: Annotated[
        str, typer.Option(help="The event's name: maintenance_set, provision_set, ...")
    ] = "update",
    provision_state: Annotated[str, typer.Option(help="available, cleaning, active, ...")] = "available",
    power_state: Annotated[str, typer.Option(help="power off, power on, error.")] = "power off",
    maintenance: Annotated[bool, typer.Option("--maintenance", help="Put it in maintenance.")] = False,
    resource_class: Annotated[
        str, typer.Option(help="Its one resource: baremetal is CUSTOM_BAREMETAL.")
    ] = "baremetal",
    cell: Annotated[str, typer.Option(help="The cell whose first agent builds on it.")] = "c1",
    trait: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="CUSTOM_...; may be repeated.")
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The node is gone from Ironic.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Publish an Ironic-style node event on ironic.node.EVENT."""
    effective = settings(state_dir=state_dir)
    node = commands.node_event(
        effective.settings, name, event, provision_state, power_state, maintenance, resource_class, cell,
        trait or [], deleted,
    )  # fmt: skip
    run(commands.publish(effective.settings, node, say))


@app.command("load")
def load_command(
    boots: Annotated[int, typer.Option(min=1, help="How many instances to boot.")] = 1000,
    rate: Annotated[
        float, typer.Option(min=0, help="Boots a second; 0: as fast as the window allows.")
    ] = 0.0,
    window: Annotated[int, typer.Option(min=1, help="Boots in flight at most.")] = 2000,
    cells: Cells = None,
    hosts: Hosts = None,
    fail: Fail = None,
    build_time: BuildTime = None,
    vcpus: Vcpus = 1,
    memory_mb: MemoryMb = 512,
    disk_gb: DiskGb = 1,
    seed: Seed = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Load the berth that runs already; start none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write latency over time to this SVG file.")] = None,
    state_dir: StateDir = None,
) -> None:
    """Many concurrent boots, followed to their ends: throughput, latency, audit. Loopback only."""
    effective = settings(
        cells=_cells(cells), hosts=hosts, fail=fail, build_time=build_time, seed=seed, state_dir=state_dir
    )
    plan = loading.load_plan(boots, rate, window, vcpus, memory_mb, disk_gb)
    run(loading.load(effective.settings, plan, attach, as_json, picture, complain if as_json else say))


dead_app = typer.Typer(no_args_is_help=True, help="Messages nobody could handle, each with its reason.")
app.add_typer(dead_app, name="dead")
app.add_typer(import_commands(settings, run, say, complain), name="import")
app.add_typer(ironic_commands(settings, run, say), name="ironic")
Id = Annotated[str, typer.Argument(metavar="ID", help="An id of `berth dead list`, or its beginning.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or their beginnings; or `all`.")]


@dead_app.command("list")
def dead_list(
    as_json: Annotated[bool, typer.Option("--json", help="Whole, as JSON lines.")] = False,
    state_dir: StateDir = None,
) -> None:
    """One line each, oldest first."""
    run(dead.list_letters(settings(state_dir=state_dir).settings, as_json, say))


@dead_app.command("show")
def dead_show(id_: Id, state_dir: StateDir = None) -> None:
    """One dead letter whole: its reason, its story, its traceback, its body."""
    run(dead.show_letter(settings(state_dir=state_dir).settings, id_, say))


@dead_app.command("replay")
def dead_replay(ids: Ids, state_dir: StateDir = None) -> None:
    """Send them to the queue they died in once more, and take them out of here."""
    run(dead.replay(settings(state_dir=state_dir).settings, ids, say))


@dead_app.command("drop")
def dead_drop(ids: Ids, state_dir: StateDir = None) -> None:
    """Throw them away for good."""
    run(dead.drop(settings(state_dir=state_dir).settings, ids, say))


@app.command()
def audit(
    as_json: Json = False,
    settled: Annotated[
        bool, typer.Option("--settled", help="No boot is under way: everything must add up now.")
    ] = False,
    cells: Cells = None,
    state_dir: StateDir = None,
) -> None:
    """Check from the databases that nothing is over-allocated, doubled or without an owner; else exit 1."""
    effective = settings(cells=_cells(cells), state_dir=state_dir)
    run(commands.audit(effective.settings, settled, as_json, say))


@app.command()
def migrate(cells: Cells = None, state_dir: StateDir = None) -> None:
    """Bring every worker's database up to date."""
    run(commands.migrate_and_say(settings(cells=_cells(cells), state_dir=state_dir).settings, say))


@app.command()
def topology(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Who emits and who hears what."""
    commands.show_topology(markdown, say)


@app.command()
def asyncapi() -> None:
    """Print an AsyncAPI 3 document of every topic and query, as JSON."""
    sys.stdout.write(json.dumps(commands.asyncapi_document(), indent=2, ensure_ascii=False) + "\n")


@app.command("settings")
def show_settings(as_json: Json = False) -> None:
    """The settings in force and where each comes from, passwords masked."""
    effective = settings()
    values = by_name(effective.settings)
    told = {
        name: {
            "value": shown(name, values[name]),
            "from": effective.origins.get(name, "default"),
            "group": group,
        }
        for name, group in GROUP_OF.items()
    }
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        group = ""
        for name, this in told.items():
            if group != (group := this["group"]):
                say.print(f"# {group}", markup=False)
            say.print(f"{name} = {this['value']!r}  # {this['from']}", markup=False)
    for variable in effective.ignored:
        complain.print(f"{variable} is ignored: there is no such setting", style="yellow", markup=False)


def main() -> None:
    try:
        app()
    except BaseExceptionGroup as group:
        conditions, bugs = group.split(_CONDITIONS)
        if bugs is not None or conditions is None:
            raise
        sys.exit(_explain(commands.leaves(conditions)))
    except _CONDITIONS as problem:
        sys.exit(_explain([problem]))


def _explain(problems: Iterable[BaseException]) -> int:
    """Each in a sentence, once; 2 when it is what the user gave that cannot be used."""
    told = {_sentence(problem): problem for problem in problems}
    for sentence in told:
        complain.print(sentence, style="red", markup=False)
    return 2 if all(isinstance(problem, BadSetting) for problem in told.values()) else 1


def _sentence(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem) or type(problem).__name__


if __name__ == "__main__":
    main()
