"""Makes the workers of a cell's conductor process: the conductor and, if the cell's agents share queues, the
gateway, which forwards orders to the agents and merges their heartbeats.
"""

from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.relays import ANSWER_SECONDS
from bus.sql.database import Database
from bus.worker import Worker
from cell_conductor import AttemptLimits, RemovedAgents, agent_gateway, cell_conductor


def of_cell(cell: str, settings: Settings, bus: Bus, store: Database) -> list[Worker]:
    """Return the workers of one conductor process of this cell."""
    claim, release = bus.asker_of_many(topics.CELL_CLAIM), bus.asker_of_many(topics.CELL_RELEASE)
    limits = AttemptLimits(
        max_attempts=settings.conductor.max_attempts,
        build_timeout=settings.conductor.build_timeout,
        keep=settings.keep.ended,
    )
    removed = RemovedAgents(store, bus.clock)
    conductor = cell_conductor(cell, store, claim, release, limits=limits, clock=bus.clock, removed=removed)
    if settings.cells.agent_queues == "own":
        return [conductor]
    relay = bus.asker(topics.AGENT_ORDER, timeout=ANSWER_SECONDS)
    return [conductor, agent_gateway(cell, relay, bus.clock, removed)]
