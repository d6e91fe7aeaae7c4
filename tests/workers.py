"""The workers that every small cloud of the tests has."""

from collections.abc import Callable
from typing import Any

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.sql.database import Database
from bus.worker import Worker
from cell_conductor import cell_conductor
from placement_worker import Placement, placement_worker
from scheduler_worker import scheduler_worker

Make = Callable[[Bus], Worker]


def of_one_cell(
    placement: Database, cell: str, builds: Database, clock: Clock, **conductor: Any
) -> dict[str, Make]:
    """Placement, the scheduler and the conductor of this cell; what is given more is the conductor's."""
    return {
        "placement": lambda bus: placement_worker(Placement(placement, clock), bus.publish),
        "scheduler": lambda bus: scheduler_worker(
            bus.asker(topics.FIND_CANDIDATES),
            bus.asker_of_many(topics.CLAIM),
            bus.asker(topics.RELEASE),
            bus.asker(topics.PROVIDERS),
            clock=clock,
        ),
        "conductor": lambda bus: cell_conductor(
            cell,
            builds,
            bus.asker_of_many(topics.CLAIM),
            bus.asker_of_many(topics.RELEASE),
            clock=clock,
            **conductor,
        ),
    }
