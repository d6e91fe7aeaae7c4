"""Queues and dead letters for the control room's page about the bus."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from berth import dead_letters
from berth.settings import Settings
from berth.worker_roles import Role
from bus.delivery.runner import Bus
from bus.protocol import QueueSpec
from control_room.bus_load import KnownQueue
from control_room.operations import BusOperations

QueuesOf = Callable[[Settings], Mapping[Role, Sequence[QueueSpec]]]
AgentQueues = Callable[[str, str], Sequence[QueueSpec]]  # of an agent of a cell


def bus_operations(
    settings: Settings, bus: Bus, queues_of: QueuesOf, agent_queues: AgentQueues
) -> BusOperations:
    elsewhere = tuple(cell.name for cell in settings.cells if cell.ferry)
    made: dict[tuple[str, ...], list[KnownQueue]] = {}
    of_agents: dict[tuple[str, str], list[KnownQueue]] = {}

    async def queues(cells: Collection[str], agents: Collection[tuple[str, str]]) -> Sequence[KnownQueue]:
        here = tuple(dict.fromkeys((*settings.cell_names, *sorted(cells))))
        if here not in made:
            made.clear()
            # in a thread: where no other worker is in this process, their tables are yet to be imported
            made[here] = await asyncio.to_thread(_queues, settings, here, elsewhere, queues_of)
        known = made[here]
        names = {queue.name for queue in known}
        told = list(known)
        for cell, agent in agents:
            if cell in elsewhere:
                continue
            if (cell, agent) not in of_agents:
                of_agents[cell, agent] = [
                    KnownQueue(spec.name, f"agent {agent}") for spec in agent_queues(cell, agent)
                ]
            told += [queue for queue in of_agents[cell, agent] if queue.name not in names]
        return told

    async def replay(ids: Collection[str]) -> tuple[int, Sequence[str]]:
        stay = list[str]()
        count = await dead_letters.replay(bus.transport, bus.clock, ids, stay.append)
        return count, stay

    async def drop(ids: Collection[str]) -> int:
        return await bus.transport.remove_dead_letters(ids)

    return BusOperations(
        queues=queues,
        elsewhere=elsewhere,
        depths=lambda names: bus.transport.depths(names),
        letters=lambda **which: bus.transport.each_dead_letter(**which),
        replay=replay,
        drop=drop,
    )


def _queues(
    settings: Settings, cells: tuple[str, ...], elsewhere: Collection[str], queues_of: QueuesOf
) -> list[KnownQueue]:
    most, simulated = len(cells) * settings.compute.agents_per_cell, settings.compute
    few = {"hosts": min(simulated.hosts, most), "baremetal": min(simulated.baremetal, most)}
    return [
        KnownQueue(spec.name, str(role))
        for role, specs in queues_of(settings.having(cells=cells, **few)).items()
        if role.cell not in elsewhere
        for spec in specs
    ]
