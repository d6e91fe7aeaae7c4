"""Creates the workers that the settings name. No other module imports all workers.

A worker's code is imported only to create the worker: commands without workers start in half the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from berth import worker_roles
from berth.settings import Settings, names_a_file
from bus.delivery.recording import RecordingBus
from bus.direct import DirectTransport
from bus.local import LocalBroker, LocalTransport
from bus.local.socket_transport import SocketTransport
from bus.protocol import Transport
from bus.relayed_orders import with_shared_queues
from bus.worker import Worker, asks_as, central_queues

if TYPE_CHECKING:
    from bus.rabbit import RabbitTransport
    from bus.sql.database import Database
    from placement_worker import SharedMemory

SOCKET = "bus.sock"
POLL_SECONDS = 2.0  # between a connection's checks of the exchanges
AGENT_POLL_SECONDS = 20.0  # the same for agents: a thousand would send 2,000 checks a second
_PACKAGES = {  # roles with a store
    "placement": "placement_worker",
    "scheduler": "scheduler_worker",
    "conductor": "cell_conductor",
    "nova-shadow": "nova_bridge",
    "rest": "berth.rest",
}


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


def way_of(together: Sequence[worker_roles.Role], settings: Settings) -> Transport:
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


def store_of(role: worker_roles.Role) -> str:
    return f"cell_{role.cell}" if role.cell else role.worker


def database(settings: Settings, role: worker_roles.Role) -> Database:
    from bus.sql.database import Database

    url, namespace = settings.database_for(store_of(role)), store_of(role)
    return Database(url, namespace="" if names_a_file(url) else namespace, pool_size=settings.database.pool)


async def ever_made(settings: Settings, role: worker_roles.Role) -> bool:
    """Return True if the tables of a worker's database were ever created; create no missing SQLite file."""
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


def stores(settings: Settings) -> dict[worker_roles.Role, str]:
    """Return each role that has a database, with the package of its migrations."""
    return {role: _PACKAGES[role.worker] for role in worker_roles.roles(settings) if role.worker in _PACKAGES}


@asynccontextmanager
async def workers(
    role: worker_roles.Role, settings: Settings, bus: RecordingBus, shared: SharedMemory | None = None
) -> AsyncIterator[Sequence[Worker]]:
    """Migrate the role's database, if it has one, and yield the role's workers. `shared` has placement's
    index, for a scheduler in the same process.
    """
    if role.worker == "ferry":
        from berth.worker_tables import crossings_of
        from bus.ferry.passage import ferry
        from bus.rabbit import RabbitTransport

        assert isinstance(bus.transport, RabbitTransport)  # embedded cells have no separate broker
        cell_transport = _rabbit(settings, settings.cell(role.cell).ferry, str(role), declares_shared=True)
        try:
            yield [ferry(crossings_of(role.cell), bus.transport, cell_transport, bus.clock)]
        finally:
            await cell_transport.close()
    elif role.worker in _PACKAGES:
        from bus.sql.migrations import migrate

        store = database(settings, role)
        try:
            await migrate(store, _PACKAGES[role.worker])
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
    together: Sequence[worker_roles.Role],
    settings: Settings,
    way: Transport,
    stopping: asyncio.Event,
    shared: SharedMemory | None = None,
    turns: asyncio.Lock | None = None,
) -> None:
    """Run the workers of the roles `together` over the connection `way` until `stopping` is set, then stop
    them.

    `shared` has placement's index. `turns` is a lock, shared by all buses of a process, for suspect messages.
    """
    kinds = {role.worker for role in together}
    if len(kinds) > 1:
        way = DirectTransport(way)
    if shared is None and {"placement", "scheduler"} <= kinds:
        from placement_worker import SharedMemory

        shared = SharedMemory()
    async with AsyncExitStack() as stack:
        connection = RecordingBus(way, asks_as=_reply_queue_prefix(together, settings), turns=turns)
        bus = await stack.enter_async_context(connection)
        served = {
            role: await stack.enter_async_context(workers(role, settings, bus, shared)) for role in together
        }
        stages = worker_roles.stages(together)
        stops = [stopping, *(asyncio.Event() for _ in stages[1:])]
        async with asyncio.TaskGroup() as group:
            tasks = [
                [group.create_task(bus.serve(worker, stop)) for role in stage for worker in served[role]]
                for stage, stop in zip(stages, stops, strict=True)
            ]
            for ended, stop in zip(tasks, stops[1:], strict=False):
                await asyncio.wait(ended)
                stop.set()


def _reply_queue_prefix(together: Sequence[worker_roles.Role], settings: Settings) -> str:
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
    role: worker_roles.Role,
    settings: Settings,
    bus: RecordingBus,
    store: Database | None = None,
    shared: SharedMemory | None = None,
    disks: ExitStack | None = None,
) -> list[Worker]:
    """Return the role's workers. `store` is the database of the role, and `disks` closes the disks of its
    simulated machines. `workers` creates ferries.
    """
    if role.worker in _PACKAGES:
        assert store is not None
        return _with_store(role, settings, bus, store, shared)
    if role.worker in ("ironic", "metal"):
        from berth import ironic

        if role.worker == "ironic":
            return [ironic.sync(settings, bus)]
        return _as_agents([ironic.metal(settings, role, bus)], settings, bus)
    if role.worker == "nova":
        from berth import nova

        return [nova.bridge(settings, bus)]
    if role.worker == "control-room":
        from berth import worker_tables
        from berth.control_room_setup import control_room_worker

        return [
            control_room_worker(settings, bus, worker_tables.queues, worker_tables.agent_queues_of(settings))
        ]
    assert role.worker == "compute", role
    from berth import simulated_agents

    return _as_agents(simulated_agents.at_work(role, settings, bus, disks), settings, bus)


def _with_store(
    role: worker_roles.Role,
    settings: Settings,
    bus: RecordingBus,
    store: Database,
    shared: SharedMemory | None,
) -> list[Worker]:
    if role.worker == "nova-shadow":
        from berth import nova

        return [nova.shadow(settings, bus, store)]
    if role.worker == "rest":
        from berth.rest.worker import rest_worker

        return [rest_worker(settings, bus, store)]
    if role.worker == "placement":
        from berth.placement_wiring import placement_of

        return [placement_of(settings, bus, store, shared)]
    if role.worker == "scheduler":
        from berth.scheduler_wiring import scheduler_of

        return scheduler_of(settings, bus, store, shared)
    from berth import conductors

    return conductors.of_cell(role.cell, settings, bus, store)


def _as_agents(made: list[Worker], settings: Settings, bus: RecordingBus) -> list[Worker]:
    """Return agents changed to use shared queues, or as given if the setting `agent_queues` is `own`."""
    if settings.cells.agent_queues == "own":
        return made
    return [with_shared_queues(worker, bus.publish, bus.clock) for worker in made]
