"""`berth demo` and `berth load`: boot many instances, show the progress, and audit the databases."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from berth import composition
from berth.commands.audit import show_audit
from berth.commands.nodes import node_event
from berth.commands.run import migrate_all, ready, scheduling
from berth.commands.settings_options import BuildTime, Cells, Driver, Fail, Hosts, Room, Seed, settings_given
from berth.control_room_place import room_url, with_room_address
from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request
from berth.kit.command_groups import Commands, StateDir
from berth.kit.options import described, option
from berth.kit.publishing import publish
from berth.kit.running import effective
from berth.kit.terminal import coloured, complain, say
from berth.kit.urls import is_loopback
from berth.load_limits import limit_given
from berth.load_stages import boots_of, stages_given
from berth.loadtest import MIX, MOST_MIXED, Load, LoadOutcome, LoadPlan, latency_svg, load_report, mixed
from berth.operations.audit import Audit, refuse_missing_databases
from berth.operations.audit import audit as audit_databases
from berth.readiness import Startup
from berth.services import Supervisor, embedded, settle_in, stop_on_signals
from berth.settings import BadSetting, Settings
from bus import topics
from bus.broker_urls import addresses
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable
from bus.queries import FindCandidates
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import UNSAID_ID

BOOTS = 1000
_FLAVOR = Flavor(name="load", vcpus=1, memory_mb=512, disk_gb=1)  # defaults of a single flavor

Mix = Annotated[
    int | None,
    described(
        f"Flavors in the mix, drawn at random (default: {MIX}, or one that you describe).",
        min=1,
        max=MOST_MIXED,
    ),
]

commands = Commands()


@dataclass(frozen=True)
class DemoOptions:
    boots: int = option(1000, "How many instances to boot.", min=1)
    cells: Cells = "4"
    hosts: Hosts = 200
    driver: Driver = None
    fail: Fail = 0.1
    build_time: BuildTime = "exponential:0.1"
    seed: Seed = 1
    mix: Mix = None
    stay: bool = option(False, "Stay up after it, with the control room, until Ctrl-C.")
    control_room: Room = None


@commands.command("demo")
async def demo_command(options: DemoOptions) -> int:
    """Demonstrate berth in one process: boots on simulated hosts, a build on bare metal, and the audit."""
    settings = effective(
        **settings_given(options), amqp_url="", database_url="", cell_database_urls={}, cell_amqp_urls={},
        cell_ferry_urls={}, ironic_amqp_url="", ironic_api="",
    ).settings  # fmt: skip
    plan = LoadPlan(boots=options.boots, flavors=mixed(options.mix or MIX), seed=options.seed or 1)
    return await demo(with_room_address(settings), plan, options.stay, say)


@dataclass(frozen=True)
class LoadOptions:
    boots: int | None = option(None, f"How many instances to boot (default: {BOOTS}).", min=1)
    rate: float = option(0.0, "Boots a second; 0: as fast as the window allows.", min=0)
    window: int = option(2000, "Boots in flight at most.", min=1)
    cells: Cells = None
    hosts: Hosts = None
    fail: Fail = None
    build_time: BuildTime = None
    mix: Mix = None
    vcpus: int | None = option(None, "One flavor only: its VCPUs.", min=0)
    memory_mb: int | None = option(None, "One flavor only: its memory.", min=0)
    disk_gb: int | None = option(None, "One flavor only: its disk.", min=0)
    seed: Seed = None
    stages: str = option(
        "", "Rates in turn, in place of --boots and --rate: 10/s:1m,100/s:1m.", metavar="RATE/s:TIME,..."
    )
    project: str = option(UNSAID_ID, "The project of the instances.")
    fail_if: list[str] | None = option(
        None, "Exit 1 if this holds: p99>2s, failed>1%, speed<100/s; may be repeated.", metavar="LIMIT"
    )
    attach: bool = option(False, "Load the berth that runs already; start no other.")
    picture: Path | None = option(
        None, "Draw the time from request to end of each boot, the build included, in this SVG file."
    )
    report: Path | None = option(None, "Write the results with plots into this HTML file.")
    state_dir: StateDir = None


@commands.command("load")
async def load_command(
    options: LoadOptions,
    as_json: bool = option(False, "Print the result as JSON.", "--json"),
    keep: bool = option(False, "Keep the instances: by default they are deleted after the audit."),
) -> int:
    """Boot many instances; show throughput and latency, and audit the databases.

    Latency is the time from a request to the end of its build; how long a request was published after its
    planned time is shown apart. Simulated agents need --build-time for a build
    (on average 0.1 s by default). The command starts a separate berth for the test; with --attach it boots
    the instances on the berth that already runs. Broker and databases must be on this machine.

    All instances have one name, which is printed (`berth instance list --name NAME`), and are deleted after
    the audit, or at Ctrl-C, unless --keep is given. Exit 1 if a boot did not become active, an instance was
    not deleted, or a limit of --fail-if is broken.
    """
    refuse_unused(options)
    limits = [limit_given(text) for text in options.fail_if or ()]
    settings, console = effective(**settings_given(options)).settings, complain if as_json else say
    plan = plan_of(options, settings)
    refuse_remote_services(settings)
    for file in filter(None, (options.picture, options.report)):
        file.touch()  # an unwritable file is reported before the load, not after it
    async with _berth_to_load(settings, options.attach, console) as (bus, settings):
        hosts = await (scheduling(bus, settings, share=0.0) if options.attach else ready(bus, settings))
        settle_in()
        load = Load(bus, plan)
        console.print(f"the instances are named {load.name}")
        async with deleted_if_interrupted(load, options.attach and not keep, console):
            result = await _with_progress(load, console)
        found = await audit_databases(settings)
        left = 0 if keep else await load.delete()
    mode = "embedded" if settings.embedded else "RabbitMQ + PostgreSQL"
    title = f"{len(result.boots)} boots on {hosts} hosts, {mode}: {result.per_second:.0f} boots/s"
    broken = [limit.sentence(result) for limit in limits if limit.is_broken(result)]
    if options.picture is not None:
        options.picture.write_text(latency_svg(result, title), encoding="utf-8")
        console.print(f"time from request to end, over the run: {options.picture}")
    if options.report is not None:
        options.report.write_text(load_report(result, title, broken), encoding="utf-8")
        console.print(f"report: {options.report}")
    if as_json:
        summary = {
            **result.summary(), "name": load.name, "flavors": len(plan.flavors), "hosts": hosts,
            "audit": found.breaches, "not_deleted": left, "broken_limits": broken,
        }  # fmt: skip
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    else:
        show(result, console)
    for sentence in broken:
        console.print(sentence, style="red", markup=False)
    code = _verdict(result, found, console)
    return 1 if _has_failures(result, left, load.name, console) or broken else code


def plan_of(options: LoadOptions, settings: Settings) -> LoadPlan:
    """Return the boots that the options of `berth load` describe."""
    stages = stages_given(options.stages)
    if stages and (options.rate or options.boots is not None):
        raise BadSetting("--stages names the rates and times of all boots: omit --boots and --rate")
    return LoadPlan(
        boots=boots_of(stages) if stages else options.boots or BOOTS,
        rate=options.rate,
        window=options.window,
        flavors=load_flavors(options),
        seed=settings.simulator.seed,
        project=options.project,
        given=stages,
    )


@asynccontextmanager
async def deleted_if_interrupted(load: Load, wanted: bool, console: Console) -> AsyncIterator[None]:
    """If the `with` block is cancelled by Ctrl-C, delete the instances of the load."""
    try:
        yield
    except asyncio.CancelledError:
        if wanted:
            console.print(f"interrupted: {len(load.boots)} instances are deleted; Ctrl-C again leaves them")
            left = await load.delete()
            console.print(f"{left} instances were not deleted" if left else "all are deleted")
        raise


_OF_OWN_BERTH = ("hosts", "fail", "build_time")  # options of simulated hosts, which --attach does not start


def refuse_unused(options: LoadOptions) -> None:
    """Raise OperationRefused if an option has no effect on a berth that runs already."""
    if not options.attach:
        return
    for name in _OF_OWN_BERTH:
        if getattr(options, name) is not None:
            given = f"--{name.replace('_', '-')}"
            raise OperationRefused(f"--attach and {given}: {given} is of `berth up`, which starts the hosts")


def load_flavors(options: LoadOptions) -> tuple[Flavor, ...]:
    """Return the flavor of --vcpus, --memory-mb and --disk-gb or, without such options, a mix of flavors."""
    amounts = {name: getattr(options, name) for name in ("vcpus", "memory_mb", "disk_gb")}
    described = {name: amount for name, amount in amounts.items() if amount is not None}
    mix = options.mix
    if not described:
        return mixed(MIX if mix is None else mix)
    if mix is not None:
        option = "--" + next(iter(described)).replace("_", "-")
        raise OperationRefused(f"--mix and {option}: a mix defines its flavors; use one of the two options")
    return (msgspec.structs.replace(_FLAVOR, **described),)


async def demo(settings: Settings, plan: LoadPlan, stay: bool, console: Console) -> int:
    """Run `berth demo`, and return its exit code; with `stay`, the demo runs on until a signal stops it. The
    last printed line has the address of the control room.
    """
    with tempfile.TemporaryDirectory(prefix="berth-demo-") as directory:
        settings = settings.having(state_dir=directory)
        console.print(
            f"[bold]berth demo[/bold]: {plan.boots} boots of {len(plan.flavors)} flavors on"
            f" {settings.simulator.hosts} hosts in {len(settings.cell_names)} cells,"
            f" {settings.simulator.fail:.0%} failing on their first host; one process, in-process bus, SQLite"
        )
        async with embedded(settings) as house:
            await ready(house.bus, settings, Startup(console.print))
            settle_in()
            room_place = f"is at {url}" if (url := room_url(settings)) else "is switched off"
            result = await _with_progress(Load(house.bus, plan), console)
            metal = await _metal_summary(house.bus, settings)
            if stay:
                code = _print_outcome(result, metal, await audit_databases(settings), console)
                stopping = asyncio.Event()
                stop_on_signals(stopping)
                console.print(f"running until Ctrl-C: the control room {room_place}", markup=False)
                await stopping.wait()
                return code
        code = _print_outcome(result, metal, await audit_databases(settings, settled=True), console)
    console.print(
        f"to inspect it: make demo ARGS=--stay keeps it running, and its control room {room_place}",
        markup=False,
    )
    return code


def _print_outcome(result: LoadOutcome, metal: str, found: Audit, console: Console) -> int:
    show(result, console)
    console.print(metal)
    return _verdict(result, found, console)


async def _metal_summary(bus: Bus, settings: Settings) -> str:
    """Publish two bare-metal nodes as free, boot one instance there, and return the result as a sentence."""
    cell = settings.cell_names[0]
    nodes = [node_event(settings, name, cell) for name in ("demo-node-1", "demo-node-2")]
    request = boot_request(BootOptions(vcpus=0, memory_mb=0, disk_gb=0, flavor="metal"))
    find = bus.asker(topics.FIND_CANDIDATES)
    wanted = FindCandidates(groups=(ResourceGroup(resources={"CUSTOM_BAREMETAL": 1}),), limit=1)
    before = (await find(wanted)).fitting
    began = monotonic()
    await publish(bus, *nodes)
    try:
        await Startup(sleep=lambda _: asyncio.sleep(0.001)).wait(
            partial(find, wanted),
            lambda found: f"{found.fitting - before if found else 0} of {len(nodes)} nodes are claimable",
            lambda found: found.fitting >= before + len(nodes),
        )
    except Unavailable as silent:
        return f"bare metal: [red]{escape(str(silent))}[/red]"
    claimable = monotonic() - began
    ended = await bus.listen(topics.BUILD_ENDED.at(reply_to="metal"))
    await publish(bus, msgspec.structs.replace(request, reply_to="metal"))
    build_ended = await ended.get()
    how = (
        f"on {build_ended.host}, attempt {len(build_ended.attempts)}"
        if build_ended.status == "active"
        else build_ended.reason
    )
    return (
        f"bare metal: two nodes cleaned → available, claimable after {claimable * 1000:.0f} ms; "
        f"a build for one ended {coloured(build_ended.status)}: {escape(how)}"
    )


@asynccontextmanager
async def _berth_to_load(
    settings: Settings, attach: bool, console: Console
) -> AsyncIterator[tuple[Bus, Settings]]:
    if attach:
        async with Bus(composition.transport(settings, "load")) as bus:
            await refuse_missing_databases(settings)  # before the load, not in the audit after it
            yield bus, settings
    elif settings.embedded:
        with tempfile.TemporaryDirectory(prefix="berth-load-") as directory:
            private = settings.having(state_dir=directory)
            async with embedded(private) as house:
                yield house.bus, private
    else:
        await migrate_all(settings, console)
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(Supervisor(settings, console.print).run(stopping))
            try:
                async with Bus(composition.transport(settings, "load")) as bus:
                    yield bus, settings
            finally:
                stopping.set()


def refuse_remote_services(settings: Settings) -> None:
    """Raise OperationRefused if a broker or database in the settings is not on this machine (loopback)."""
    places = [("amqp_url", settings.bus.amqp_url), ("database_url", settings.database.url)]
    for cell in settings.every_cell:
        places += [("cell_amqp_urls", cell.broker), ("cell_ferry_urls", cell.ferry)]
        places += [("cell_database_urls", cell.database)]
    for name, url in places:
        for host in _hosts(url):
            if host and not (host.startswith("/") or is_loopback(host)):  # no path of a Unix socket
                raise OperationRefused(f"{name}: load tests aim at loopback only, and {host} is not")


def _hosts(url: str) -> list[str | None]:
    if url.startswith("postgresql"):
        from bus.sql.addresses import parse_url  # takes long to load

        address = parse_url(url)
        named = address.url.query.get("host", ())
        return [
            address.url.host,
            *([named] if isinstance(named, str) else named),
            *(h.name for h in address.hosts),
        ]
    if url.startswith("amqp"):
        return [host for host, _ in addresses(url)]
    return [urlsplit(url).hostname]


async def _with_progress(load: Load, console: Console) -> LoadOutcome:
    counts = TextColumn("boots ended"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *counts, TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), console=console
    ) as progress:
        bar = progress.add_task("boots", total=load.plan.boots, speed="")

        def show_progress(load: Load) -> None:
            speed = f"{load.ended / max(load.now(), 0.001):.0f}/s, {load.open} open"
            progress.update(bar, completed=load.ended, speed=speed)

        result = await load.run(show_progress)
        progress.update(bar, completed=load.ended, speed=f"{result.per_second:.0f}/s")
    return result


def show(result: LoadOutcome, console: Console) -> None:
    """Print the result of a load test."""
    summary = result.summary()
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("ended", ", ".join(f"{count} {status}" for status, count in summary["ended"].items()))
    attempts = ", ".join(f"{count} after {number}" for number, count in summary["attempts"].items())
    table.add_row("attempts", attempts)
    latency = ", ".join(f"{name} {ms:.0f} ms" for name, ms in summary["latency_ms"].items())
    table.add_row("request to end, build included", latency)
    if result.stages:
        table.add_row("requests behind their planned time", f"at most {summary['late_ms']:.0f} ms")
    for stage in summary["stages"]:
        times = ", ".join(f"{name} {ms:.0f} ms" for name, ms in stage["latency_ms"].items())
        table.add_row(stage["stage"], f"{stage['active']} of {stage['boots']} active; {times}")
    table.add_row("speed", f"{result.per_second:.0f} boots/s over {result.seconds:.1f} s")
    for reason, count in result.reasons():
        table.add_row("reason", escape(f"{count} × {reason}"))
    console.print(table, soft_wrap=False)


def _has_failures(result: LoadOutcome, left: int, name: str, console: Console) -> bool:
    if result.failed:
        console.print(f"[red]{result.failed} boots did not become active[/red]")
    if left:
        console.print(f"[red]{left} instances were not deleted: berth instance list --name {name}[/red]")
    return bool(result.failed or left)


def _verdict(result: LoadOutcome, found: Audit, console: Console) -> int:
    show_audit(found, console)
    if result.lost:
        console.print(f"[red]{result.lost} boots never ended[/red]")
    if result.changed:
        console.print(f"[red]{result.changed} boots ended in two ways[/red]")
    return 1 if result.lost or result.changed or not found.clean else 0
