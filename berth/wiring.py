"""Settings → workers: the one place that sees them all.

What only runs in a worker's process is imported where it is made: a client's command starts in half the time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from berth.settings import BadSetting, Settings, names_a_file
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.local.socket_transport import SocketTransport
from bus.masking import masked
from bus.protocol import QueueSpec, Transport
from bus.worker import Worker, asks_as, central_queues, suspects_queue

if TYPE_CHECKING:
    from berth.searching import SharedMemory
    from bus.ferry.crossings import Crossing
    from bus.rabbit import RabbitTransport
    from bus.sql.database import Database

SOCKET = "bus.sock"
WORKERS = {
    "placement": "keeps who has which resources, answers candidates and claims",
    "scheduler": "turns build requests into claimed hosts and alternates",
    "conductor": "sees a cell's builds through (--cell)",
    "compute": "simulated agents of a cell (--cell)",
    "metal": "builds on the nodes of a cell through Ironic's API (--cell)",
    "ironic": "follows Ironic, and turns what befalls its nodes into inventory",
    "control-room": "the page of operators: what runs, what waits, why (control_room_http)",
    "ferry": "carries what goes in and out of a cell that has a RabbitMQ of its own (--cell)",
}
_OF_A_CELL = ("conductor", "compute", "metal", "ferry")
_TOGETHER = ("conductor", "compute")  # roles of several cells that may share a process
_PACKAGES = {  # roles with a store
    "placement": "placement_worker",
    "scheduler": "scheduler_worker",
    "conductor": "cell_conductor",
}


@dataclass(frozen=True)
class Role:
    """A kind of worker, with its cell if it has one."""

    worker: str
    cell: str = ""
    agent: str = ""  # of several that share a cell's bare metal, or its hosts

    def __str__(self) -> str:
        return ".".join(filter(None, (self.worker, self.cell, self.agent)))


def role(worker: str, cell: str, settings: Settings, agent: str = "") -> Role:
    """The role a person named, or a sentence about what they got wrong."""
    if worker not in WORKERS:
        known = ", ".join(WORKERS)
        raise BadSetting(f"there is no worker {worker!r}; there are: {known}")
    if worker in _OF_A_CELL and not cell:
        raise BadSetting(
            f"{worker} belongs to a cell: say which with --cell ({', '.join(settings.cell_names)})"
        )
    if worker not in _OF_A_CELL and cell:
        raise BadSetting(f"{worker} belongs to no cell; leave --cell out")
    if worker == "metal":
        _check_metal(cell, settings)
    if agent and worker not in ("metal", "compute"):
        raise BadSetting(f"--agent is one of those that share a cell's hosts or metal; {worker} takes none")
    if agent and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", agent):
        raise BadSetting(f"--agent {agent!r}: one word of letters, digits, _ and -")
    if agent and worker == "compute" and agent not in (theirs := agents_of(cell, settings)):
        raise BadSetting(f"--agent {agent!r}: those of cell {cell!r} are {', '.join(theirs)}")
    if worker == "ferry" and not settings.cell(cell).ferry:
        known = ", ".join(cell.name for cell in settings.cells if cell.ferry) or "none"
        raise BadSetting(f"cell {cell!r} has no RabbitMQ of its own; with cell_ferry_urls there are: {known}")
    return Role(worker, cell, agent)


def roles_named(worker: str, cells: str, settings: Settings, agent: str = "") -> list[Role]:
    """Return the roles of a worker for several cells, separated by commas, that share a process."""
    several = list(dict.fromkeys(cells.split(",")))
    if len(several) > 1 and (worker not in _TOGETHER or agent):
        raise BadSetting(f"--cell {cells}: of several cells only conductors, or all agents, share a process")
    found = [role(worker, cell, settings, agent) for cell in several]
    if len({settings.cell(role.cell).broker for role in found}) > 1:
        raise BadSetting(f"--cell {cells}: they are on different RabbitMQs, and each needs a process there")
    return found


def _check_metal(cell: str, settings: Settings) -> None:
    if not settings.ironic.is_read:
        raise BadSetting("metal builds through Ironic's API: say with ironic_api_url where it is")
    if cell not in _metal_cells(settings):
        known = ", ".join(_metal_cells(settings)) or "none"
        raise BadSetting(f"no node of Ironic's is built on by berth in cell {cell!r}; there are: {known}")


def _metal_cells(settings: Settings) -> list[str]:
    """The cells in which berth's own agent builds on Ironic's nodes."""
    if not settings.ironic.is_read:
        return []
    return [cell for cell in settings.metal_cells if cell not in settings.ironic.nodes.agents]


def roles(settings: Settings) -> list[Role]:
    """Return all roles of a whole berth, workers that answer queries before those that ask."""
    if names_a_file(settings.database.url):
        raise BadSetting(
            f"database_url = {masked(settings.database.url)!r}: is one file, and every store needs its own:"
            " name a directory, with a / at the end"
        )
    found = [Role("placement"), Role("ironic")]
    found += [Role("ferry", cell.name) for cell in settings.cells if cell.ferry]
    found += [Role("conductor", cell) for cell in settings.cell_names]
    for cell in settings.cell_names:
        several = agents_of(cell, settings) if settings.compute.agents_per_cell > 1 else [""]
        found += [Role("compute", cell, agent) for agent in several]
    for number in range(1, settings.ironic.builds.agents_per_cell + 1):
        found += [
            Role("metal", cell, f"{cell}-metal-{number}" if number > 1 else "")
            for cell in _metal_cells(settings)
        ]
    found.append(Role("scheduler"))
    return [*found, Role("control-room")] if settings.control_room.listens else found


def processes(settings: Settings) -> list[tuple[Role, ...]]:
    """Return which roles share a process under `berth up`: conductors of several cells, and their agents."""
    several = settings.process.cells_a_process
    found: list[list[Role]] = []
    open_: dict[tuple[str, str], list[Role]] = {}
    for role in roles(settings):
        if role.worker not in _TOGETHER or several == 1:
            found.append([role])
            continue
        kind = role.worker, settings.cell(role.cell).broker
        if kind not in open_ or len({role.cell for role in open_[kind]} | {role.cell}) > several:
            open_[kind] = []
            found.append(open_[kind])
        open_[kind].append(role)
    return [tuple(those) for those in found]


def ending(settings: Settings) -> list[list[Role]]:
    """Return the order of stopping: workers that ask before those that answer, so that no query waits."""
    stages = (
        ("control-room",),
        ("scheduler", "compute", "metal", "ironic"),
        ("conductor",),
        ("ferry",),
        ("placement",),
    )
    ended = [[role for role in roles(settings) if role.worker in stage] for stage in stages]
    return [stage for stage in ended if stage]  # not every berth has a ferry


def alone() -> Transport:
    """Return a bus for a process without other workers."""
    return LocalTransport(LocalBroker())


def transport(settings: Settings, name: str, cell: str = "") -> Transport:
    """Return the connection of a process to the bus: RabbitMQ, with a cell's user if it has one, or the
    socket of a local `berth up`.
    """
    if settings.embedded:
        return SocketTransport(Path(settings.database.state_dir) / SOCKET)
    url = settings.cell(cell).broker if cell else settings.bus.amqp_url
    return _rabbit(settings, url, name, keeps=name == "placement")


def way_of(together: Sequence[Role], settings: Settings) -> Transport:
    """The way onto the bus for the process of one worker, or of several cells' workers of one kind."""
    first = together[0]
    return transport(settings, name_of(together), "" if first.worker == "ferry" else first.cell)


def name_of(together: Sequence[Role]) -> str:
    """Return the name of a process: conductor.c1, or conductor.c1+c2."""
    first, *others = together
    return "+".join([str(first), *(role.agent or role.cell for role in others)])


def _rabbit(settings: Settings, url: str, name: str, *, keeps: bool) -> RabbitTransport:
    from bus.rabbit import RabbitTransport

    return RabbitTransport(
        url,
        exchange=settings.bus.exchange,
        quorum=settings.bus.queue_type == "quorum",
        name=f"berth {name}",
        keeps=keeps,
        central=central_queues() if url == settings.bus.amqp_url else (),
    )


def store_of(role: Role) -> str:
    return f"cell_{role.cell}" if role.cell else role.worker


def database(settings: Settings, role: Role) -> Database:
    from bus.sql.database import Database

    url = settings.database_for(store_of(role))
    return Database(url, namespace="" if names_a_file(url) else store_of(role))


async def ever_made(settings: Settings, role: Role) -> bool:
    """Was this role's database ever migrated? Asking does not make a file."""
    from bus.sql.migrations import current

    url = settings.database_for(store_of(role))
    scheme, _, path = url.partition(":///")
    file = Path(path) if names_a_file(url) else Path(path) / f"{store_of(role)}.db"
    if scheme == "sqlite+aiosqlite" and not file.exists():
        return False
    store = database(settings, role)
    try:
        return await current(store, _PACKAGES[role.worker]) is not None
    finally:
        await store.close()


def stores(settings: Settings) -> dict[Role, str]:
    """Return every role with a database, and the package with its migrations."""
    return {role: _PACKAGES[role.worker] for role in roles(settings) if role.worker in _PACKAGES}


@asynccontextmanager
async def workers(
    role: Role, settings: Settings, bus: Bus, shared: SharedMemory | None = None
) -> AsyncIterator[Sequence[Worker]]:
    """The workers of a role, to be served on this bus; their database is made up to date first.

    `shared` is for roles that are served in one process with placement.
    """
    package = _PACKAGES.get(role.worker)
    if role.worker == "compute":
        from berth import simulated_agents

        with ExitStack() as disks:
            yield simulated_agents.at_work(role, settings, bus, disks)
        return
    if role.worker == "ferry":
        from bus.ferry.ferry import ferry
        from bus.rabbit import RabbitTransport

        assert isinstance(bus.transport, RabbitTransport)  # embedded cells have no separate broker
        own = _rabbit(settings, settings.cell(role.cell).ferry, str(role), keeps=True)
        try:
            yield [ferry(crossings_of(role.cell), bus.transport, own, bus.clock)]
        finally:
            await own.close()
        return
    if package is None:
        yield _without_store(role, settings, bus)
        return
    from bus.sql.migrations import migrate

    store = database(settings, role)
    try:
        await migrate(store, package)
        yield _with_store(role, settings, bus, store, shared)
    finally:
        await store.close()


async def serve(
    together: Sequence[Role],
    settings: Settings,
    way: Transport,
    stopping: asyncio.Event,
    shared: SharedMemory | None = None,
    turns: asyncio.Lock | None = None,
) -> None:
    """Run the workers of the roles on a separate bus until stopped."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(way, asks_as=_asks_as(together[0], settings), turns=turns))
        served = [
            worker
            for role in together
            for worker in await stack.enter_async_context(workers(role, settings, bus, shared))
        ]
        async with asyncio.TaskGroup() as group:
            for worker in served:
                group.create_task(bus.serve(worker, stopping, drain=settings.process.drain))


def _asks_as(role: Role, settings: Settings) -> str:
    """Return the name by which the permissions of a cell's user know this process; "" outside of cells."""
    if role.worker == "conductor":
        return asks_as(str(role))
    if role.worker not in ("compute", "metal"):
        return ""
    agent = role.agent
    if not agent and role.worker == "compute":
        agent = agents_of(role.cell, settings)[0]
    return asks_as(f"agent.{role.cell}.{agent or metal_agent(settings, role.cell)}")


def agents_of(cell: str, settings: Settings) -> list[str]:
    """Return the names of a cell's simulated agents; `berth up` runs each as a process."""
    from berth import simulated_agents

    return simulated_agents.names_of(cell, settings)


def metal_agent(settings: Settings, cell: str) -> str:
    """Return the agent for nodes outside of simulated fleets: on Ironic's API, or simulated."""
    if settings.ironic.is_read:
        return settings.ironic.nodes.agents.get(cell) or f"{cell}-metal"
    return f"{cell}-agent1"


def crossings_of(cell: str) -> tuple[Crossing, ...]:
    """Return what crosses the border of this cell, by the tables of all workers."""
    from bus.ferry.crossings import crossings

    return crossings(cell, all_workers_without_a_bus(cell))


def tables_of_cell(cell: str) -> list[Worker]:
    """One of every kind there is in this cell, to read their tables."""
    return [worker for worker in all_workers_without_a_bus(cell) if worker.name.split(".")[1:2] == [cell]]


def tables_of_conductor(cell: str) -> list[Worker]:
    return [worker for worker in tables_of_cell(cell) if worker.name.startswith("conductor.")]


def tables_of_agent(cell: str, agent: str, *, metal: bool = False) -> list[Worker]:
    """Return the table of an agent of this name: a compute agent's, or that of one for Ironic's nodes."""
    bus = Bus(alone())
    if not metal:
        from compute_sim import compute_sim

        providers, allocations = bus.asker(topics.CELL_PROVIDERS), bus.asker(topics.CELL_ALLOCATIONS)
        return [compute_sim(agent, cell, (), providers=providers, allocations=allocations)]
    return _without_store(Role("metal", cell, agent), _settings_of_every_worker(cell), bus)


def queues(settings: Settings) -> dict[Role, list[QueueSpec]]:
    """Return the durable queues of the workers in the settings."""
    from bus.sql.database import Database

    bus, nowhere = Bus(alone()), Database("sqlite+aiosqlite://")
    found: dict[Role, list[QueueSpec]] = {}
    for role in roles(settings):
        if role.worker == "ferry":  # it has no table: it forwards messages of other workers
            continue
        if role.worker in _PACKAGES:
            made = _with_store(role, settings, bus, nowhere)
        else:
            made = _without_store(role, settings, bus)
        if specs := _durable(made):
            found[role] = specs
    return found


def agent_queues(cell: str, agent: str) -> list[QueueSpec]:
    """Return the queues of an agent."""
    from compute_sim import compute_sim

    return _durable([compute_sim(agent, cell, ())])


def _durable(made: Sequence[Worker]) -> list[QueueSpec]:
    specs: dict[str, QueueSpec] = {}
    for worker in made:
        rows = [worker.queue_of(row, "doctor") for row in worker.consumes]
        rows += [worker.queue_of(row, "doctor") for row in worker.answers]
        if durable := {spec.name: spec for spec in rows if spec.durable}:
            suspects = suspects_queue(worker.name)
            specs |= {**durable, suspects.name: suspects}
    return list(specs.values())


def all_workers_without_a_bus(cell: str = "c1") -> list[Worker]:
    """Return one worker of every kind, to read their tables; they cannot run."""
    settings = _settings_of_every_worker(cell)
    from bus.sql.database import Database

    bus = Bus(alone())
    nowhere = Database("sqlite+aiosqlite://")
    return [
        worker
        for role in roles(settings)
        for worker in (
            _with_store(role, settings, bus, nowhere)
            if role.worker in _PACKAGES
            else _without_store(role, settings, bus)
        )
    ]


def _settings_of_every_worker(cell: str) -> Settings:
    return Settings().having(
        cells=(cell,), hosts=1, ironic_amqp_url="amqp://127.0.0.1/", ironic_api_url="http://127.0.0.1:6385",
        control_room_http="127.0.0.1:0",
    )  # fmt: skip


def _with_store(
    role: Role, settings: Settings, bus: Bus, store: Database, shared: SharedMemory | None = None
) -> list[Worker]:
    if role.worker == "placement":
        from placement_worker import Placement, placement_worker

        placement = Placement(store, bus.clock)
        if shared is not None:
            shared.give(placement.memory)
        worker = placement_worker(placement, bus.publish, settings.cell_names)
        if settings.placement.http:
            from berth.placement_http import placement_http

            worker = replace(worker, runs=[*worker.runs, placement_http(placement, settings)])
        return [worker]
    if role.worker == "scheduler":
        from berth.choice import policy
        from berth.request_options import request_options
        from berth.searching import candidate_source, cell_queries, placement_queries
        from scheduler_worker.dependencies import SchedulerOptions
        from scheduler_worker.worker import scheduler_worker

        place = candidate_source(bus, shared)
        return [
            *place.workers,
            scheduler_worker(
                place.source,
                placement_queries(bus),
                cell_queries(bus),
                store,
                bus.publish,
                bus.clock,
                SchedulerOptions(policy=policy(settings), requests=request_options(settings)),
                place.loaded,
            ),
        ]
    from cell_conductor import cell_conductor

    return [
        cell_conductor(
            role.cell,
            store,
            bus.asker_of_many(topics.CELL_CLAIM),
            bus.asker_of_many(topics.CELL_RELEASE),
            max_attempts=settings.conductor.max_attempts,
            build_timeout=settings.conductor.build_timeout,
            delete_timeout=settings.conductor.delete_timeout,
            cleanup_timeout=settings.conductor.cleanup_timeout,
            agent_lease=settings.conductor.agent_lease,
            clock=bus.clock,
        )
    ]


def _without_store(role: Role, settings: Settings, bus: Bus) -> list[Worker]:
    if role.worker in ("ironic", "metal"):
        from berth import ironic

        if role.worker == "ironic":
            return [ironic.sync(settings, bus)]
        return [ironic.metal(settings, role.cell, bus, role.agent)]
    if role.worker == "control-room":
        from berth.control_room_setup import operators_page

        return [operators_page(settings, bus)]
    from berth import simulated_agents

    return simulated_agents.at_work(role, settings, bus, None)
