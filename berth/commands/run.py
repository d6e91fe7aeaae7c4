"""`berth up`, `berth run` and `berth migrate`: all workers, one worker, and the databases."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from berth import logs, wiring, worker_roles
from berth.commands import options
from berth.commands.options import (
    BuildTime,
    Cells,
    Driver,
    Fail,
    Hosts,
    Json,
    Seed,
    StateDir,
    cells_named,
    drivers_named,
)
from berth.commands.terminal import effective, run, say, write_json
from berth.configuration import SUPERVISED_ENV
from berth.control_room_place import saying_where, where_the_room_is, with_a_room
from berth.embedded import embedded
from berth.operations.boot_options import BootOptions, boot_request
from berth.services import (
    Supervisor,
    metrics_ports,
    metrics_url,
    run_worker,
    serving_metrics,
    settle_in,
    stop_on_signals,
)
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.queries import FindBuilds, FindCandidates, WhatIf
from bus.requests import ResourceGroup

R = TypeVar("R")

_READY_SECONDS = 60.0
_HOSTS_A_SECOND = 100  # hosts per second that placement is expected to store, on a busy machine

commands = typer.Typer()


@commands.command("up")
def up_command(
    cells: Cells = None,
    hosts: Hosts = None,
    driver: Driver = None,
    baremetal: Annotated[int | None, typer.Option(min=0, help="Simulated bare-metal nodes.")] = None,
    fail: Fail = None,
    build_time: BuildTime = None,
    move_fail: options.MoveFail = None,
    move_time: options.MoveTime = None,
    state_dir: StateDir = None,
    seed: Seed = None,
    http: options.Http = None,
    control_room: options.Room = None,
) -> None:
    """Run everything until Ctrl-C: in this process or, with URLs of services, each worker as a process.

    Without BERTH_AMQP_URL everything is in this process, with its state in --state-dir. With it and
    BERTH_DATABASE_URL each worker is a process, restarted when it ends.
    """
    found = effective(
        cells=cells_named(cells), hosts=hosts, baremetal=baremetal, fail=fail, build_time=build_time,
        move_fail=move_fail, move_time=move_time, state_dir=state_dir, seed=seed,
        placement_http=http, compute_drivers=drivers_named(driver), control_room_http=control_room,
    )  # fmt: skip
    run(up(with_a_room(found.settings), say))


@commands.command("run")
def run_command(
    worker: Annotated[
        str,
        typer.Argument(
            help="placement, scheduler, conductor, compute, ironic, metal, ferry or control-room."
        ),
    ],
    cell: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Whose conductor, agents or ferry; conductors and agents of several cells share a process.",
        ),
    ] = "",
    agent: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which of the cell's agents this is (default: CELL-metal; of compute, all of them in one).",
        ),
    ] = "",
    hosts: Hosts = None,
    driver: Driver = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics there.")] = None,
    bus: options.Bus = None,
    database: options.Database = None,
    http: options.Http = None,
    auth: options.Auth = None,
    tokens: options.Tokens = None,
    policy: options.Policy = None,
    control_room: options.Room = None,
) -> None:
    """Run one worker as this process, in service mode: any number of each, compute once per cell (or, with
    --agent, once per agent).

    Each metal agent needs a different name (--agent): they share the nodes. A second process with the same
    name waits.
    """
    alone = bus == "local"
    found = effective(
        hosts=hosts, metrics_port=metrics_port, amqp_url="" if alone else bus, database_url=database,
        placement_http=http, placement_auth=auth, placement_tokens=tokens, placement_policy=policy,
        compute_drivers=drivers_named(driver), control_room_http=control_room,
    )  # fmt: skip
    settings = found.settings
    if worker == "control-room" and not os.environ.get(SUPERVISED_ENV):
        settings = with_a_room(settings)
        work = run_one(settings, worker, cell, alone, agent)
        run(saying_where(settings, lambda where: say.print(where, markup=False), work))
        return
    run(run_one(settings, worker, cell, alone, agent))


@commands.command("migrate")
def migrate_command(as_json: Json = False, cells: Cells = None, state_dir: StateDir = None) -> None:
    """Bring every worker's database up to date, which each also does by itself when it starts."""
    settings = effective(cells=cells_named(cells), state_dir=state_dir).settings
    run(migrate_and_say(settings, say, as_json=as_json))


async def up(settings: Settings, say: Console) -> int:
    stopping = asyncio.Event()
    if settings.embedded:
        port, host = settings.process.metrics_port, settings.process.metrics_host
        async with embedded(settings, open_socket=True) as house, serving_metrics(port, host):
            stop_on_signals(stopping)
            await ready(house.bus, settings)
            settle_in()
            if port:
                say.print(f"metrics at {metrics_url(port, host)}")
            say.print(
                f"berth is up: {settings.compute.hosts} simulated hosts in cells "
                f"{', '.join(settings.cell_names)}; state in {settings.database.state_dir}. Ctrl-C stops it."
            )
            if where := await where_the_room_is(settings, stopping):
                say.print(where, markup=False)
            await stopping.wait()
        return 0
    metrics_ports(settings)  # used ports are reported before anything is done
    await migrate_all(settings, say)
    stop_on_signals(stopping)
    supervisor = Supervisor(settings, say.print)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(stopping))
        async with Bus(wiring.transport(settings, "up")) as bus:
            await _ready_or_stopped(bus, settings, stopping)
            if not stopping.is_set():
                for name, (pid, port) in supervisor.processes().items():
                    url = metrics_url(port, settings.process.metrics_host)
                    metrics = f", metrics at {url}" if port else ""
                    say.print(f"  {name}: process {pid}{metrics}")
                say.print("berth is up. Ctrl-C stops it.")
                if where := await where_the_room_is(settings, stopping):
                    say.print(where, markup=False)
    return 0


async def run_one(settings: Settings, worker: str, cell: str, alone: bool, agent: str = "") -> int:
    together = worker_roles.roles_named(worker, cell, settings, agent)
    role = together[0]
    if alone and not (role.worker == "placement" and settings.placement.http):
        raise OperationRefused("with a bus of its own only placement is of use, and only with --http")
    if settings.embedded and not alone:
        raise OperationRefused(
            "a worker of its own needs a bus other processes reach: set BERTH_AMQP_URL and "
            "BERTH_DATABASE_URL, or use `berth up`, which runs everything in one process"
        )
    way = wiring.alone() if alone else wiring.way_of(together, settings)
    logs.this_is(worker_roles.name_of(together))
    await run_worker(together, settings, way)
    return 0


async def ready(bus: Bus, settings: Settings) -> int:
    """Return the number of hosts in placement, once a build request finds all workers it needs."""
    hosts = await scheduling(bus, settings)
    find = bus.asker(topics.FIND_BUILDS, timeout=2.0)
    for cell in settings.cell_names:  # a conductor that is still starting receives no build
        question = FindBuilds(cell=cell, builds=(bus.clock.uuid(),))
        await _answered(partial(find, question), f"the conductor of cell {cell} does not answer")
    return hosts


async def scheduling(bus: Bus, settings: Settings, share: float = 1.0) -> int:
    """Wait until placement knows this share of the hosts and a scheduler answers; return the number of known
    hosts.
    """
    hosts = await hosts_known(bus, settings, share)
    what_if = bus.asker(topics.WHAT_IF, timeout=2.0)
    question = WhatIf(request=boot_request(BootOptions(vcpus=1, memory_mb=0, disk_gb=0)), best=1)
    await _answered(partial(what_if, question), "no scheduler answers")
    return hosts


async def hosts_known(bus: Bus, settings: Settings, share: float = 1.0) -> int:
    """Wait until placement knows this share of the simulated hosts; return the number of known hosts."""
    find = bus.asker(topics.FIND_CANDIDATES, timeout=2.0)
    question = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),), limit=1)
    found = await _answered(
        partial(find, question),
        f"placement still does not know {settings.compute.hosts} hosts",
        lambda found: found.considered >= settings.compute.hosts * share,
        settings.compute.hosts / _HOSTS_A_SECOND,
    )
    return found.considered


async def _answered(
    ask: Callable[[], Awaitable[R]],
    else_why: str,
    enough: Callable[[R], bool] = lambda _: True,
    more: float = 0.0,
) -> R:
    """Repeat the query until its answer is sufficient, and return the answer."""
    patience = _READY_SECONDS + more
    deadline = monotonic() + patience
    while monotonic() < deadline:
        try:
            answer = await ask()
            if enough(answer):
                return answer
        except (Unavailable, Unroutable):  # it has no queue yet
            pass
        await asyncio.sleep(0.05)
    raise Unavailable(f"after {patience:.0f} s {else_why}")


async def _ready_or_stopped(bus: Bus, settings: Settings, stopping: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stopping.wait())
        getting = group.create_task(ready(bus, settings))
        await asyncio.wait((waiting, getting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if stopping.is_set():
            getting.cancel()


async def migrate_all(settings: Settings, say: Console, told: list[dict[str, str]] | None = None) -> int:
    """Migrate all databases, print each migration, and return their number."""
    from bus.sql.migrations import migrate

    made = 0
    for role, package in wiring.stores(settings).items():
        database = wiring.database(settings, role)
        try:
            applied = await migrate(database, package)
        finally:
            await database.close()
        for name in applied:
            say.print(f"{wiring.store_of(role)}: applied {name}")
            if told is not None:
                told.append({"store": wiring.store_of(role), "applied": name})
        made += len(applied)
    return made


async def migrate_and_say(settings: Settings, say: Console, *, as_json: bool = False) -> int:
    told: list[dict[str, str]] = []
    if as_json:
        await migrate_all(settings, Console(quiet=True), told)
        write_json(told)
    elif not await migrate_all(settings, say):
        say.print("every database is up to date")
    return 0
