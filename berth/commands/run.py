"""`berth up` runs all workers, `berth run` runs a process of workers, `berth system migrate` migrates
databases.
"""

import asyncio
import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from berth import composition, logs, worker_roles
from berth.commands.settings_options import (
    BuildTime,
    Cells,
    Database,
    Driver,
    Fail,
    Hosts,
    Http,
    Rest,
    Room,
    Seed,
    settings_given,
)
from berth.configuration import SUPERVISED_ENV
from berth.control_room_place import with_room_address
from berth.features import authentication_methods
from berth.kit.command_groups import Commands, Json, StateDir
from berth.kit.options import one_of, option, positional
from berth.kit.running import effective, run
from berth.kit.terminal import say, write_json
from berth.process_watch import STUCK_SECONDS, WatchLimits, watched
from berth.readiness import Startup
from berth.services import (
    Supervisor,
    embedded,
    metrics_addresses,
    metrics_url,
    run_worker,
    serving_metrics,
    settle_in,
    stop_on_signals,
)
from berth.settings import Settings, usable_cores
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.queries import CandidatesFound, FindBuilds, FindCandidates, FindDecision
from bus.requests import ResourceGroup

STARTUP = Startup()
_METHODS = ", ".join(("noauth2", "tokens", *authentication_methods()))

commands = Commands()


@dataclass(frozen=True)
class UpOptions:
    cells: Cells = None
    hosts: Hosts = None
    driver: Driver = None
    baremetal: int | None = option(None, "Simulated bare-metal nodes.", min=0)
    fail: Fail = None
    build_time: BuildTime = None
    move_fail: float | None = option(None, "Share of each phase of moves that fails.", min=0, max=1)
    move_time: str | None = option(
        None, "How long a phase of a move takes, as --build-time (default: the same)."
    )
    state_dir: StateDir = None
    seed: Seed = None
    http: Http = None
    rest: Rest = None
    control_room: Room = None
    layout: str | None = option(None, "Processes on RabbitMQ.", metavar="separate|compact|auto")


@commands.command("up")
async def up_command(options: UpOptions) -> int:
    """Run all workers until Ctrl-C: in this process or, with a broker and a database, each as a process.

    Without BERTH_AMQP_URL all workers run in this process, with their state in --state-dir. With
    BERTH_AMQP_URL and BERTH_DATABASE_URL each worker is a process, which is restarted if it ends. On machines
    with at most two processor cores there are two processes, placement with scheduler and conductors with
    agents, which need less processor time; `--layout separate` or `--layout compact` chooses by hand.
    """
    settings = effective(**settings_given(options)).settings
    return await up(with_room_address(settings), say)


@dataclass(frozen=True)
class RunOptions:
    cell: str = option(
        "",
        "The cell of the conductor, agents or ferry (default: the only cell of the settings); conductors and "
        "agents of several cells share a process.",
        metavar="NAME,…",
    )
    agent: str = option(
        "",
        "The name of the agent (default: CELL-metal; for compute, all agents of the cell in one process).",
        metavar="NAME",
    )
    hosts: Hosts = None
    driver: Driver = None
    metrics: str | None = option(None, "Serve Prometheus metrics there.", metavar="HOST:PORT")
    bus: str | None = option(None, "RabbitMQ; `local`: placement alone, with --http.", metavar="URL|local")
    database: Database = None
    http: Http = None
    rest: Rest = None
    auth: str | None = option(None, f"Authentication of the Placement API: {_METHODS}.")
    tokens: str | None = option(None, "The tokens it believes.", metavar="FILE")
    policy: str | None = option(None, "A policy file that replaces default rules.", metavar="FILE")
    control_room: Room = None


@commands.command("run")
def run_command(
    workers: Annotated[
        list[str],
        positional(
            f"{', '.join(worker_roles.WORKERS[:-1])} or {worker_roles.WORKERS[-1]}.",
            autocompletion=one_of(worker_roles.WORKERS),
        ),
    ],
    options: RunOptions,
) -> None:
    """Run a worker in this process, or several: placement, scheduler, conductor and compute may share one,
    and exchange most of their messages without the broker. Several processes may run the same worker; of
    `compute` only one for each cell (or, with --agent, for each agent).

    Each process of `metal` is an agent of a cell's bare-metal nodes with a name of its own (--agent).
    """
    alone = options.bus == "local"
    given = settings_given(options) | ({"amqp_url": ""} if alone else {})
    settings = effective(**given).settings
    if workers == ["control-room"] and not os.environ.get(SUPERVISED_ENV):
        settings = with_room_address(settings)
    try:
        run(_run_here(settings, workers, options, alone))
    except typer.Exit as end:
        _end_process(end.exit_code)


async def _run_here(settings: Settings, workers: Sequence[str], options: RunOptions, alone: bool) -> int:
    together = worker_roles.roles_named(workers, options.cell, settings, options.agent)
    if alone and not ([role.worker for role in together] == ["placement"] and settings.placement.http):
        raise OperationRefused("without a shared broker only placement is useful, and only with --http")
    if settings.embedded and not alone:
        raise OperationRefused(
            "a separate worker needs a bus that other processes reach: set BERTH_AMQP_URL and "
            "BERTH_DATABASE_URL, or use `berth up`, which runs everything in one process"
        )
    way = composition.alone() if alone else composition.way_of(together, settings)
    logs.set_process_name(worker_roles.name_of(together))
    await run_worker(together, settings, way)
    return 0


def _end_process(code: int) -> NoReturn:
    """Flush all output and end this process immediately. Freeing its memory object by object would delay the
    worker's restart by 0.3 s to 2 s.
    """
    atexit._run_exitfuncs()  # flushes logs and traces
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed by the reader
            stream.flush()
    os._exit(code)


@commands.command("migrate")
async def migrate_command(as_json: Json = False, cells: Cells = None, state_dir: StateDir = None) -> None:
    """Migrate the databases of all workers to this version. Workers also do this when they start."""
    settings = effective(cells=cells, state_dir=state_dir).settings
    applied = await migrate_all(settings, Console(quiet=True) if as_json else say)
    if as_json:
        write_json([{"store": store, "applied": name} for store, name in applied])
    elif not applied:
        say.print("every database is up to date")


async def up(settings: Settings, console: Console) -> int:
    """Run all of berth: in this process if it is embedded, else as one process for each worker."""
    limits = WatchLimits(stuck=STUCK_SECONDS)  # no limit for a blocked event loop
    with watched(limits, "up", Path(settings.database.state_dir)):
        return await (_up_here if settings.embedded else _up_as_processes)(settings, console)


async def _up_here(settings: Settings, console: Console) -> int:
    """Run all workers in this process until a signal stops it."""
    await check_databases(settings)
    stopping = asyncio.Event()
    metrics = settings.process.metrics_http
    async with embedded(settings, open_socket=True) as house, serving_metrics(metrics):
        stop_on_signals(stopping)
        await ready(house.bus, settings, Startup(partial(console.print, soft_wrap=True)))
        settle_in()
        if metrics:
            console.print(f"metrics at {metrics_url(metrics)}")
        console.print(
            f"berth is up: {settings.simulator.hosts} simulated hosts in cells "
            f"{', '.join(settings.cell_names)}; state in {settings.database.state_dir}. Ctrl-C stops it."
        )
        await stopping.wait()
    return 0


async def _up_as_processes(settings: Settings, console: Console) -> int:
    """Run the workers in supervised processes, until a signal stops them all."""
    stopping = asyncio.Event()
    metrics_addresses(settings)  # too few ports are reported before anything is done
    console.print(layout_chosen(settings), soft_wrap=True)
    await migrate_all(settings, console)
    stop_on_signals(stopping)
    supervisor = Supervisor(settings, console.print)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(stopping))
        async with Bus(composition.transport(settings, "up")) as bus:
            startup = Startup(partial(console.print, soft_wrap=True), supervisor.failed)
            await _ready_or_stopped(bus, settings, stopping, startup)
            if not stopping.is_set():
                for name, (pid, address) in supervisor.processes().items():
                    metrics = f", metrics at {metrics_url(address)}" if address else ""
                    console.print(f"  {name}: process {pid}{metrics}")
                console.print("berth is up. Ctrl-C stops it.")
    return 0


def layout_chosen(settings: Settings) -> str:
    """Return a line with the layout and, if no setting names the layout, with the number of cores."""
    layout = "compact" if settings.compact else "separate"
    if settings.process.layout != "auto":
        return f"layout {layout}"
    cores, other = usable_cores(), "separate" if settings.compact else "compact"
    return f"layout {layout}, for {cores} processor core{'s' * (cores > 1)} (instead: --layout {other})"


async def ready(bus: Bus, settings: Settings, startup: Startup = STARTUP) -> int:
    """Wait until all workers that carry out builds answer queries; return how many hosts placement knows."""
    hosts = await scheduling(bus, settings, startup=startup)
    find = bus.asker(topics.FIND_BUILDS, timeout=2.0)
    for cell in settings.cell_names:  # wait for each: builds do not reach a conductor that is still starting
        question = FindBuilds(cell=cell, builds=(bus.clock.uuid(),))
        await startup.wait(partial(find, question), _silent(f"the conductor of cell {cell} does not answer"))
    return hosts


def _silent(why: str) -> Callable[[object], str]:
    return lambda _: why


async def scheduling(bus: Bus, settings: Settings, share: float = 1.0, startup: Startup = STARTUP) -> int:
    """Wait until a scheduler answers and placement knows this share (0 to 1) of the simulated hosts; return
    how many hosts placement knows.
    """
    hosts = await hosts_known(bus, settings, share, startup)
    decision = bus.asker(topics.DECISION, timeout=2.0)
    # A scheduler answers queries when it has loaded its copy of placement's index.
    await startup.wait(partial(decision, FindDecision(id=bus.clock.uuid())), _silent("no scheduler answers"))
    return hosts


async def hosts_known(bus: Bus, settings: Settings, share: float = 1.0, startup: Startup = STARTUP) -> int:
    """Wait until placement knows this share (0 to 1) of the simulated hosts; return how many it knows."""
    find = bus.asker(topics.FIND_CANDIDATES, timeout=2.0)
    question = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),), limit=1)
    hosts = settings.simulator.hosts

    def describe(found: CandidatesFound | None) -> str:
        if found is None:
            return "placement does not answer"
        return f"placement knows {found.considered} of {hosts} hosts"

    found = await startup.wait(
        partial(find, question), describe, lambda found: found.considered >= hosts * share
    )
    return found.considered


async def _ready_or_stopped(bus: Bus, settings: Settings, stopping: asyncio.Event, startup: Startup) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stopping.wait())
        getting = group.create_task(ready(bus, settings, startup))
        await asyncio.wait((waiting, getting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if stopping.is_set():
            getting.cancel()


async def check_databases(settings: Settings) -> None:
    """Raise MigrationsBroken if a database has tables that no migration made; create nothing in any."""
    from bus.sql.migrations import check_tables

    for role in composition.stores(settings):
        if await composition.foreign_tables(settings, role):
            database = composition.database_of(settings, role)
            try:
                await check_tables(database)
            finally:
                await database.close()


async def migrate_all(settings: Settings, console: Console) -> list[tuple[str, str]]:
    """Migrate all databases, and print and return the migrations as pairs (database, migration)."""
    from bus.sql.migrations import migrate

    await check_databases(settings)
    made = []
    for role, packages in composition.stores(settings).items():
        database = composition.database_of(settings, role)
        try:
            applied = await migrate(database, *packages)
        finally:
            await database.close()
        for package, name in applied:
            console.print(f"{composition.store_of(role)}: applied {name} of {package}")
            made.append((composition.store_of(role), name))
    return made
