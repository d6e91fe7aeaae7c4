"""Creates workers that cannot run, to read from their tables which topics and queues they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from berth import wiring, worker_roles
from berth.settings import Settings
from bus import topics
from bus.delivery.recording import RecordingBus
from bus.protocol import QueueSpec
from bus.relayed_orders import with_shared_queues
from bus.worker import Worker, suspects_queue

if TYPE_CHECKING:
    from bus.ferry.crossings import Crossing


def crossings_of(cell: str) -> tuple[Crossing, ...]:
    """Return what this cell's ferry forwards (topics, queries, answers), from the tables of all workers."""
    from bus.ferry.crossings import crossings

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
    bus = RecordingBus(wiring.alone())
    if metal:
        made = wiring.create_workers(
            worker_roles.Role("metal", cell, agent), _settings_of_every_worker(cell), bus
        )
    else:
        from compute_sim.machines import SimAgent
        from compute_sim.worker import compute_sim

        providers, allocations = bus.asker(topics.CELL_PROVIDERS), bus.asker(topics.CELL_ALLOCATIONS)
        made = [compute_sim(SimAgent(agent, cell, ()), providers=providers, allocations=allocations)]
    return [*made, *(with_shared_queues(worker, bus.publish, bus.clock) for worker in made)]


def queues(settings: Settings) -> dict[worker_roles.Role, list[QueueSpec]]:
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
    shared = _tables(settings.having(agent_queues="shared"))
    found = [worker for made in _tables(settings).values() for worker in made]
    return found + [
        worker
        for made in shared.values()
        for worker in made
        if worker.name.startswith(("gateway.", "agent."))
    ]


def _tables(settings: Settings) -> dict[worker_roles.Role, list[Worker]]:
    """Return workers by role, to read their topics only; ferries have no handlers and are left out."""
    from bus.sql.database import Database

    bus, nowhere = RecordingBus(wiring.alone()), Database("sqlite+aiosqlite://")
    roles = [role for role in worker_roles.roles(settings) if role.worker != "ferry"]
    return {role: wiring.create_workers(role, settings, bus, nowhere) for role in roles}


def _settings_of_every_worker(cell: str) -> Settings:
    return Settings().having(
        cells=(cell,),
        simulator={"hosts": 1},
        ironic_amqp_url="amqp://127.0.0.1/",
        ironic_api="http://127.0.0.1:6385",
        control_room_http="127.0.0.1:0",
        rest_http="127.0.0.1:0",
        nova_amqp_url="amqp://127.0.0.1/nova",
        nova_notification_amqp_url="amqp://127.0.0.1/nova",
        nova_database_url="postgresql://127.0.0.1/nova_api",
    )
