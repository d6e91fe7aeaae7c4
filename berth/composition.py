"""Makes workers from the settings, with their connections and databases, and runs them.

No other module imports all workers. A worker's code is imported only to create the worker: commands without
workers start in half the time.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from berth import worker_roles
from berth.features import OWN, add_messages, added, features, packages, parts_of
from berth.kit.feature_parts import AgentQueuesPart, worker_of
from berth.settings import Settings, names_a_file
from berth.worker_roles import Role
from bus import topics
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.direct import DirectTransport
from bus.errors import BrokerRefused, Unavailable, Unroutable
from bus.local import LocalBroker, LocalTransport
from bus.local.transport import SocketTransport
from bus.messages import NO_CELL, ProcessRestarted
from bus.protocol import QueueSpec, Transport
from bus.worker import Worker, asks_as, central_queues, suspects_queue

if TYPE_CHECKING:
    from berth.ferry.crossings import Crossing
    from bus.candidates import CandidateSource
    from bus.clock import Clock
    from bus.rabbit import RabbitTransport
    from bus.sql.database import Database
    from placement_worker import Memory, Placement
    from scheduler_worker.composition import PartsOf
    from scheduler_worker.queries import CellQueries, PlacementQueries

log = logging.getLogger(__name__)

add_messages()
SOCKET = "bus.sock"
POLL_SECONDS = 2.0  # between a connection's checks of the exchanges
AGENT_POLL_SECONDS = 20.0  # the same for agents: a thousand would send 2,000 checks a second
CELL_SECONDS = 5.0  # for a cell's answer to a scheduler; the wait also delays moves in other cells


# Connections, databases, and the running of roles


def alone() -> Transport:
    """Return an in-process bus, for a process that needs no connection to a broker."""
    return LocalTransport(LocalBroker())


def transport(settings: Settings, name: str, cell: str = "") -> Transport:
    """Return a connection with this name to the RabbitMQ of the settings (of `cell`, if given) or, if there
    is no RabbitMQ, to the socket of a `berth up`.
    """
    if settings.embedded:
        return SocketTransport(Path(settings.database.state_dir) / SOCKET)
    url = settings.cell(cell).broker if cell else settings.bus.amqp_url
    one_of_many = settings.cells.agent_queues == "shared" and name.startswith(("compute.", "metal."))
    poll_seconds = AGENT_POLL_SECONDS if one_of_many else POLL_SECONDS
    return _rabbit(settings, url, name, declares_shared=name == "placement", poll_seconds=poll_seconds)


def way_of(together: Sequence[Role], settings: Settings) -> Transport:
    """Return a broker connection for a process that runs the roles `together`, which use the same broker."""
    first = together[0]
    return transport(settings, worker_roles.name_of(together), "" if first.worker == "ferry" else first.cell)


def _rabbit(
    settings: Settings, url: str, name: str, *, declares_shared: bool, poll_seconds: float = POLL_SECONDS
) -> RabbitTransport:
    from bus.rabbit import RabbitTransport

    return RabbitTransport(
        url,
        exchange=settings.bus.exchange,
        name=f"berth {name}",
        poll_seconds=poll_seconds,
        declares_shared=declares_shared,
        central=central_queues() if url == settings.bus.amqp_url else (),
    )


def store_of(role: Role) -> str:
    """Return the name of the store of a worker; each cell has one."""
    return f"cell_{role.cell}" if role.cell else role.worker


def database_of(settings: Settings, role: Role) -> Database:
    """Return the database of a worker."""
    from bus.sql.database import Database

    url, namespace = settings.database_for(store_of(role)), store_of(role)
    return Database(url, namespace="" if names_a_file(url) else namespace, pool_size=settings.database.pool)


def _lacks_file(settings: Settings, role: Role) -> bool:
    """Return whether a worker's database is a SQLite file that does not exist: reading would create it."""
    url = settings.database_for(store_of(role))
    scheme, _, path = url.partition(":///")
    file = Path(path) if names_a_file(url) else Path(path) / f"{store_of(role)}.db"
    return scheme == "sqlite+aiosqlite" and not file.exists()


async def ever_made(settings: Settings, role: Role) -> bool:
    """Return True if the tables of a worker's database were ever created; create no missing SQLite file."""
    from bus.sql.migrations import current

    if _lacks_file(settings, role):
        return False
    store = database_of(settings, role)
    try:
        return bool(await current(store))
    finally:
        await store.close()


async def foreign_tables(settings: Settings, role: Role) -> tuple[str, ...]:
    """Return the tables in a worker's database that no migration made; create no missing SQLite file."""
    from bus.sql.migrations import foreign_tables

    if _lacks_file(settings, role):
        return ()
    store = database_of(settings, role)
    try:
        return await foreign_tables(store)
    finally:
        await store.close()


def stores(settings: Settings) -> dict[Role, tuple[str, ...]]:
    """Return each role that has a database, with the packages whose tables are there."""
    return {role: packages(role.worker) for role in worker_roles.roles_of(settings) if role.worker in OWN}


@asynccontextmanager
async def workers(
    role: Role, settings: Settings, bus: RecordingBus, shared: Memory | None = None
) -> AsyncIterator[Sequence[Worker]]:
    """Migrate the role's database, if it has one, and yield the role's workers. `shared` has placement's
    index, for a scheduler in the same process.
    """
    if role.worker == "ferry":
        from berth.ferry.passage import ferry
        from bus.rabbit import RabbitTransport

        assert isinstance(bus.transport, RabbitTransport)  # embedded cells have no separate broker
        cell_transport = _rabbit(settings, settings.cell(role.cell).ferry, str(role), declares_shared=True)
        try:
            yield [ferry(crossings_of(role.cell), bus.transport, cell_transport, bus.clock)]
        finally:
            await cell_transport.close()
    elif role.worker in OWN:
        from bus.sql.migrations import migrate

        store = database_of(settings, role)
        try:
            await migrate(store, *packages(role.worker))
            made = create_workers(role, settings, bus, store, shared)
            if store.watches:
                made = [replace(made[0], runs=[*made[0].runs, store.watch]), *made[1:]]
            yield made
        finally:
            await store.close()
    else:
        with ExitStack() as disks:
            yield create_workers(role, settings, bus, disks=disks)


async def serve(
    together: Sequence[Role],
    settings: Settings,
    way: Transport,
    stopping: asyncio.Event,
    shared: Memory | None = None,
    turns: asyncio.Lock | None = None,
    *,
    is_restart: bool = False,
) -> None:
    """Run the workers of the roles `together` over the connection `way` until `stopping` is set, then stop
    them.

    `shared` has placement's index. `turns` is a lock, shared by all buses of a process, for suspect messages.
    `is_restart`: this process ran before and was not stopped, which it reports.
    """
    kinds = {role.worker for role in together}
    if len(kinds) > 1:
        way = DirectTransport(way)
    if shared is None and {"placement", "scheduler"} <= kinds:
        from placement_worker import Memory

        shared = Memory()
    async with AsyncExitStack() as stack:
        connection = RecordingBus(way, asks_as=_reply_queue_prefix(together, settings), turns=turns)
        bus = await stack.enter_async_context(connection)
        served = {
            role: await stack.enter_async_context(workers(role, settings, bus, shared)) for role in together
        }
        stages = worker_roles.stages_of(together)
        stops = [stopping, *(asyncio.Event() for _ in stages[1:])]
        async with asyncio.TaskGroup() as group:
            if is_restart:
                group.create_task(_report_restart(bus, together))
            tasks = [
                [group.create_task(bus.serve(worker, stop)) for role in stage for worker in served[role]]
                for stage, stop in zip(stages, stops, strict=True)
            ]
            for ended, stop in zip(tasks, stops[1:], strict=False):
                await asyncio.wait(ended)
                stop.set()


async def _report_restart(bus: Bus, together: Sequence[Role]) -> None:
    cell = next((role.cell for role in together if role.cell), NO_CELL)
    name, now = worker_roles.name_of(together), bus.clock.now()
    restart = ProcessRestarted(process=name, machine=platform.node()[:255], cell=cell, at=now)
    try:
        await bus.publish(restart)
    except (BrokerRefused, Unavailable, Unroutable) as problem:
        log.warning("the restart of %s is not recorded: %s", name, problem)


def _reply_queue_prefix(together: Sequence[Role], settings: Settings) -> str:
    """Return the prefix that the RabbitMQ permissions of a cell's workers require in the names of their reply
    queues; "" for other workers, or if the process runs workers of several types.
    """
    role = together[0]
    if any(other.worker != role.worker for other in together):
        return ""
    if role.worker == "conductor":
        return asks_as(str(role))
    if role.worker not in ("compute", "metal"):
        return ""
    agent = role.agent
    if not agent and role.worker == "compute":
        agent = worker_roles.agents_of(role.cell, settings)[0]
    return asks_as(f"agent.{role.cell}.{agent or worker_roles.metal_agent(settings, role.cell)}")


def create_workers(
    role: Role,
    settings: Settings,
    bus: RecordingBus,
    store: Database | None = None,
    shared: Memory | None = None,
    disks: ExitStack | None = None,
) -> list[Worker]:
    """Return the role's workers. `store` is the database of the role, and `disks` closes the disks of its
    simulated machines. `workers` creates ferries.
    """
    return _reporting_restarts(_created(role, settings, bus, store, shared, disks))


def _reporting_restarts(made: Sequence[Worker]) -> list[Worker]:
    """Return workers that may publish that their process was started again."""
    return [replace(worker, announces=worker.announces | {ProcessRestarted}) for worker in made]


def _created(
    role: Role,
    settings: Settings,
    bus: RecordingBus,
    store: Database | None,
    shared: Memory | None,
    disks: ExitStack | None,
) -> list[Worker]:
    if (feature := worker_roles.OF_FEATURES.get(role.worker)) is not None:
        return [worker_of(feature, role.worker, settings, bus, store)]
    if role.worker in OWN:
        assert store is not None
        return _with_store(role, settings, bus, store, shared)
    if role.worker in ("ironic", "metal"):
        from berth import ironic

        if role.worker == "ironic":
            return [ironic.sync(settings, bus)]
        return _as_agents([ironic.metal(settings, role, bus)], settings, bus)
    if role.worker == "control-room":
        from berth.control_room_setup import control_room_worker

        return [control_room_worker(settings, bus, queues, agent_queues_of(settings))]
    assert role.worker == "compute", role
    from berth import simulated_agents

    return _as_agents(simulated_agents.at_work(role, settings, bus, disks), settings, bus)


def _with_store(
    role: Role, settings: Settings, bus: RecordingBus, store: Database, shared: Memory | None
) -> list[Worker]:
    if role.worker == "rest":
        from berth.rest.worker import rest_worker

        return [rest_worker(settings, bus, store, queues)]
    if role.worker == "placement":
        return [placement_of(settings, bus, store, shared)]
    if role.worker == "scheduler":
        return scheduler_of(settings, bus, store, shared)
    return conductors_of(role.cell, settings, bus, store)


def _as_agents(made: list[Worker], settings: Settings, bus: RecordingBus) -> list[Worker]:
    """Return agents changed to use shared queues, or as given if the setting `agent_queues` is `own`."""
    if settings.cells.agent_queues == "own":
        return made
    return [part.sharing(worker, bus) for part in added(AgentQueuesPart, "agent_queues") for worker in made]


# Placement, scheduler and conductor


def open_placement(
    settings: Settings, store: Database, clock: Clock, shared: Memory | None = None
) -> Placement:
    """Return placement with the parts of all features, over a migrated database. `shared` holds its index."""
    from placement_worker import Memory, Placement
    from placement_worker.extension import ForPlacement, PlacementNeeds

    needs = PlacementNeeds.over(store, clock, shared or Memory(), keep_changes=settings.keep.changes)
    parts = parts_of(ForPlacement, "placement", needs, settings)
    return Placement(needs, parts, keep=settings.keep.ended, most_aggregates=settings.limits.aggregates)


def placement_of(settings: Settings, bus: Bus, store: Database, shared: Memory | None) -> Worker:
    """Return the placement worker; if enabled in the settings, with its HTTP API."""
    from placement_worker import placement_worker

    placement = open_placement(settings, store, bus.clock, shared)
    worker = placement_worker(placement, bus.publish, settings.cell_names)
    if settings.placement.http:
        from berth.placement_http import placement_http

        # placement alone: no scheduler stores an audit trail
        publish = None if settings.embedded and shared is None else bus.publish
        worker = replace(worker, runs=[*worker.runs, placement_http(placement, settings, publish)])
    return worker


def scheduler_of(
    settings: Settings, bus: RecordingBus, store: Database, shared: Memory | None
) -> list[Worker]:
    """Return the scheduler and, unless `shared` has placement's index, the worker that copies this index."""
    from berth.kit.choice_policies import choice_policy, request_options
    from scheduler_worker.dependencies import SchedulerOptions
    from scheduler_worker.worker import SchedulerConnections, scheduler_worker

    place = candidate_source(bus, shared)
    connections = SchedulerConnections(
        source=place.source,
        placement=placement_queries(bus),
        cells=cell_queries(bus),
        database=store,
        bus=bus,
        clock=bus.clock,
        options=SchedulerOptions(
            policy=choice_policy(settings),
            requests=request_options(settings),
            keep=settings.keep.ended,
            keep_acts=settings.keep.acts,
        ),
        loaded=place.loaded,
    )
    return [*place.workers, scheduler_worker(connections, parts_of_scheduler(settings))]


def parts_of_scheduler(settings: Settings) -> PartsOf:
    """Return the function that makes the parts of all features for a scheduler."""
    from scheduler_worker.extension import ForScheduler

    return lambda needs: parts_of(ForScheduler, "scheduler", needs, settings)


class SearchPlace(NamedTuple):
    """A scheduler's source of candidates, and the workers that keep it current."""

    source: CandidateSource
    loaded: Callable[[], Awaitable[None]]
    workers: Sequence[Worker]


def candidate_source(bus: Bus, shared: Memory | None) -> SearchPlace:
    """Return a scheduler's source of candidates: placement's index in this process, or else a replica."""
    from placement_worker import BusReader, IndexedSource, replica

    if shared is not None:
        return SearchPlace(IndexedSource(shared), shared.loaded, ())
    ask = bus.asker
    reader = BusReader(ask(topics.TREES), ask(topics.CHANGES), ask(topics.AGGREGATES), ask(topics.CELLS))
    index, worker = replica(reader, bus.clock)
    return SearchPlace(IndexedSource(index), index.loaded, (worker,))


def placement_queries(bus: Bus) -> PlacementQueries:
    """Return the queries to placement, sent over this bus."""
    from scheduler_worker.queries import PlacementQueries

    return PlacementQueries(
        claim_many=bus.asker_of_many(topics.CLAIM),
        release=bus.asker(topics.RELEASE),
        providers=bus.asker(topics.PROVIDERS),
        allocations=bus.asker(topics.ALLOCATIONS),
        usages=bus.asker(topics.USAGES),
        edit=bus.asker(topics.EDIT),
        edit_name=bus.asker(topics.EDIT_NAME),
        ask=bus.asker,
    )


def cell_queries(bus: Bus) -> CellQueries:
    """Return the queries to cells, sent over this bus."""
    from scheduler_worker.queries import CellQueries

    return CellQueries(
        builds=bus.asker(topics.FIND_BUILDS, timeout=CELL_SECONDS),
        instances=bus.asker(topics.FIND_INSTANCES, timeout=CELL_SECONDS),
    )


def conductors_of(cell: str, settings: Settings, bus: Bus, store: Database) -> list[Worker]:
    """Return the workers of one conductor process of this cell: the conductor and, if the cell's agents share
    queues, the gateway, which forwards orders to the agents and merges their heartbeats.
    """
    from cell_conductor import AttemptLimits, RemovedAgents, cell_conductor
    from cell_conductor.extension import ConductorNeeds, ForConductor

    claim, release = bus.asker_of_many(topics.CELL_CLAIM), bus.asker_of_many(topics.CELL_RELEASE)
    limits = AttemptLimits(
        max_attempts=settings.conductor.max_attempts,
        build_timeout=settings.conductor.build_timeout,
        keep=settings.keep.ended,
    )
    parts = parts_of(ForConductor, "conductor", ConductorNeeds(cell=cell), settings)
    removed = RemovedAgents(store, bus.clock, [each for part in parts for each in part.ended_orders])
    conductor = cell_conductor(
        cell, store, claim, release, limits=limits, clock=bus.clock, removed=removed, parts=parts
    )
    if settings.cells.agent_queues == "own":
        return [conductor]
    return [conductor, *(part.gateway(cell, bus, removed) for part in added(AgentQueuesPart, "agent_queues"))]


# Tables: workers that cannot run, to read which topics and queues they use


def crossings_of(cell: str) -> tuple[Crossing, ...]:
    """Return what this cell's ferry forwards (topics, queries, answers), from the tables of all workers."""
    from berth.ferry.crossings import crossings

    return crossings(cell, all_workers_without_a_bus(cell))


def tables_of_cell(cell: str) -> list[Worker]:
    """Return one worker of each type that runs in a cell; callers read only the workers' tables of topics."""
    return [worker for worker in all_workers_without_a_bus(cell) if worker.name.split(".")[1:2] == [cell]]


def tables_of_conductor(cell: str) -> list[Worker]:
    """Return a cell's conductor and gateway to agents; callers read only the workers' tables of topics."""
    return [worker for worker in tables_of_cell(cell) if worker.name.startswith(("conductor.", "gateway."))]


def tables_of_agent(cell: str, agent: str, *, metal: bool = False) -> list[Worker]:
    """Return this agent as a worker with separate queues, and as a worker with shared queues; callers read
    only their tables. `metal`: a bare-metal agent, not a simulated one.
    """
    bus = RecordingBus(alone())
    if metal:
        made = create_workers(Role("metal", cell, agent), _settings_of_every_worker(cell), bus)
    else:
        from compute_sim.core.faults import SimOptions
        from compute_sim.extension import AgentNeeds, ForAgent
        from compute_sim.machines import SimAgent
        from compute_sim.worker import compute_sim

        providers, allocations = bus.asker(topics.CELL_PROVIDERS), bus.asker(topics.CELL_ALLOCATIONS)
        parts = parts_of(ForAgent, "agent", AgentNeeds(options=SimOptions()), Settings())
        simulated = SimAgent(agent, cell, ())
        made = _reporting_restarts(
            [compute_sim(simulated, providers=providers, allocations=allocations, parts=parts)]
        )
    shared = added(AgentQueuesPart, "agent_queues")
    return [*made, *(part.sharing(worker, bus) for part in shared for worker in made)]


def queues(settings: Settings) -> dict[Role, list[QueueSpec]]:
    """Return, by role, the durable queues from which the role's workers receive messages."""
    return {role: specs for role, made in _tables(settings).items() if (specs := _durable(made))}


def agent_queues(cell: str, agent: str) -> list[QueueSpec]:
    """Return the agent's durable queues under the setting `agent_queues = own`, without shared queues."""
    return _durable(tables_of_agent(cell, agent))


def agent_queues_of(settings: Settings) -> Callable[[str, str], Sequence[QueueSpec]]:
    """Return a function that returns the separate queues of an agent; none if agents share queues."""
    return agent_queues if settings.cells.agent_queues == "own" else lambda cell, agent: ()


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
    """Return one worker of each type, agents twice: with separate queues, and with shared queues. The workers
    cannot run; callers read only their tables.
    """
    settings = _settings_of_every_worker(cell)
    found = [worker for made in _tables(settings).values() for worker in made]
    shared = _tables(settings.having(agent_queues="shared")) if added(AgentQueuesPart, "agent_queues") else {}
    return found + [
        worker
        for made in shared.values()
        for worker in made
        if worker.name.startswith(("gateway.", "agent."))
    ]


def _tables(settings: Settings) -> dict[Role, list[Worker]]:
    """Return workers by role, to read their topics only; ferries have no handlers and are left out."""
    from bus.sql.database import Database

    bus, nowhere = RecordingBus(alone()), Database("sqlite+aiosqlite://")
    roles = [role for role in worker_roles.roles_of(settings) if role.worker != "ferry"]
    return {role: create_workers(role, settings, bus, nowhere) for role in roles}


def _settings_of_every_worker(cell: str) -> Settings:
    return Settings().having(
        cells=(cell,),
        simulator={"hosts": 1},
        ironic_amqp_url="amqp://127.0.0.1/",
        ironic_api="http://127.0.0.1:6385",
        control_room_http="127.0.0.1:0",
        rest_http="127.0.0.1:0",
        **{name: value for feature in features() for name, value in feature.examples},
    )
