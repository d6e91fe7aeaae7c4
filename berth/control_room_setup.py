"""Assembles the control room from the settings: its queries, queues, access rules and address.

HTTP server and pages are imported when the control room starts, not when only its topics are listed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from berth import dead_letters
from berth.features import added, features, folder_of, messages
from berth.kit.boot_options import BootOptionsPart
from berth.problems.reading import ProblemList, asks
from berth.settings import Settings
from berth.worker_roles import Role
from bus import topics
from bus.delivery.recording import RecordingBus
from bus.protocol import QueueSpec
from bus.worker import Worker
from control_room.access import Sessions, sweep
from control_room.bus_load import QueueLoad
from control_room.kit.queries import Queries
from control_room.kit.shared_data import background_tasks
from control_room.queries import BusOperations, Operations, StatusReader
from control_room.worker import Events, control_room

if TYPE_CHECKING:
    from control_room.kit.frame import FeaturePages, PageContext

QueuesOf = Callable[[Settings], Mapping[Role, Sequence[QueueSpec]]]
AgentQueues = Callable[[str, str], Sequence[QueueSpec]]  # (cell, agent) → the agent's queues


def bus_operations(
    settings: Settings, bus: RecordingBus, queues_of: QueuesOf, agent_queues: AgentQueues
) -> BusOperations:
    """Return what pages of the control room read and change at the broker."""
    elsewhere = tuple(cell.name for cell in settings.every_cell if cell.ferry)
    made: dict[tuple[str, ...], list[QueueLoad]] = {}

    @cache
    def of_agent(cell: str, agent: str) -> list[QueueLoad]:
        return [QueueLoad(spec.name, f"agent {agent}") for spec in agent_queues(cell, agent)]

    async def queues(cells: Collection[str], agents: Collection[tuple[str, str]]) -> Sequence[QueueLoad]:
        cell_names = tuple(dict.fromkeys((*settings.cell_names, *sorted(cells))))
        if cell_names not in made:
            made.clear()
            # in a thread, because it imports the tables of all workers, unless this process runs them
            made[cell_names] = await asyncio.to_thread(_queues, settings, cell_names, elsewhere, queues_of)
        reported = [
            queue for cell, agent in agents if cell not in elsewhere for queue in of_agent(cell, agent)
        ]
        return list({queue.name: queue for queue in (*reported, *made[cell_names])}.values())

    async def replay(ids: Collection[str]) -> tuple[int, Sequence[str]]:
        stay = list[str]()
        async with bus.act("dead letters", "central", f"replay {' '.join(ids)}"):
            count = await dead_letters.replay(bus.transport, bus.clock, ids, stay.append)
        return count, stay

    async def drop(ids: Collection[str]) -> int:
        async with bus.act("dead letters", "central", f"drop {' '.join(ids)}"):
            return await bus.transport.remove_dead_letters(ids)

    return BusOperations(
        queues=queues, elsewhere=elsewhere, transport=bus.transport, replay=replay, drop=drop
    )


def _queues(
    settings: Settings, cells: tuple[str, ...], elsewhere: Collection[str], queues_of: QueuesOf
) -> list[QueueLoad]:
    simulator = settings.simulator
    most = len(cells) * simulator.agents_per_cell
    few = {"hosts": min(simulator.hosts, most), "baremetal": min(simulator.baremetal, most)}
    return [
        QueueLoad(spec.name, str(role))
        for role, specs in queues_of(settings.having(cells=cells, simulator=few)).items()
        if role.cell not in elsewhere
        for spec in specs
    ]


def control_room_worker(
    settings: Settings, bus: RecordingBus, queues_of: QueuesOf, agent_queues: AgentQueues
) -> Worker:
    """Return the control room's worker.

    For the page about queues, `queues_of` lists the queues of workers, `agent_queues` the queues of an agent.
    """
    events = Events(bus.clock, [topic for part in messages() for topic in part.page_events])

    async def serve() -> None:
        from berth.placement_http import tls_of
        from bus.http import HttpLimits, announce, listen, serve
        from control_room.pages.app import pages_app

        tables = queues_of, agent_queues
        async with opened_pages(settings, bus, Queries(bus), events, tables) as context:
            listener = listen(settings.control_room.http)
            announce("the control room is", listener, "/", tls_of(settings))
            await serve(
                pages_app(context),
                listener,
                limits=HttpLimits(connections=500),
                closing=context.sessions.close,
                tls=tls_of(settings),
            )

    of_features = messages()
    return control_room(
        events,
        [serve],
        [query for part in of_features for query in part.page_asks] + [*asks()],
        [message for part in of_features for message in part.page_publishes],
        [topic for part in of_features for topic in part.heartbeats],
    )


def pages_of_features() -> "list[FeaturePages]":
    """Return the pages of all features that have some."""
    from control_room.kit.frame import FeaturePages, PagePart

    return [
        FeaturePages(navigation=feature.pages, make=part.make, templates=folder_of(feature) / "templates")
        for feature in features()
        for part in added(PagePart, "pages", of=feature)
    ]


@asynccontextmanager
async def opened_pages(
    settings: Settings,
    bus: RecordingBus,
    queries: Queries,
    events: Events,
    tables: tuple[QueuesOf, AgentQueues],
) -> AsyncIterator["PageContext"]:
    """Yield the objects that all pages share; stop background tasks at the end.

    `tables`: functions that list the queues of workers and of an agent.
    """
    from berth.control_room_access import opened_access
    from control_room.kit.frame import PageContext

    clock = events.clock
    async with background_tasks(clock) as tasks, opened_access(settings, clock, tasks) as access:
        sessions = Sessions()
        tasks.start(sweep(sessions, clock))
        yield PageContext(
            queries=queries,
            events=events,
            status=StatusReader(queries, tasks, settings.cell_names),
            access=access,
            sessions=sessions,
            clock=clock,
            operations=operations(bus, settings, *tables),
            tasks=tasks,
            features=pages_of_features(),
            request_fields=[
                field for part in added(BootOptionsPart, "boot_options") for field in part.form_fields
            ],
        )


def operations(
    bus: RecordingBus, settings: Settings, queues_of: QueuesOf, agent_queues: AgentQueues
) -> Operations:
    """Return the operations on hosts, nodes and queues that the pages call."""
    from berth.control_room_metal import metal
    from berth.control_room_operations import mark_host
    from scheduler_worker import replay, scores_of

    return Operations(
        mark_host=partial(mark_host, bus),
        metal=partial(metal, settings, bus),
        placement_changes=partial(bus.listen, topics.PLACEMENT_CHANGED.at()),
        scores=scores_of,
        replay=lambda build, record: replay(build, record).host,
        bus=bus_operations(settings, bus, queues_of, agent_queues),
        problems=ProblemList(bus, settings, queues_of).read,
        note=bus.note,
    )
