"""Reads which capacity requests wait for, for the samples of the capacity."""

from collections.abc import Sequence

from bus import parts
from bus.messages import BuildRequested
from bus.sql.statement import Transaction, sql
from features.capacity_history.samples import CapacitySampler
from features.waiting.tables.queued import WAITS
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

_WAITING = sql(f"""
    SELECT p.message, k.instances FROM (SELECT kind, min(request) AS request, sum(instances) AS instances
    FROM queued WHERE {WAITS} AND move = '' GROUP BY kind) k
    JOIN queued p ON p.request = k.request AND p.digest = 0
""")

_request = parts.stored_decoder(BuildRequested).decode


async def waiting(tx: Transaction) -> Sequence[tuple[BuildRequested, int]]:
    """Return one request of each equivalence class that waits for capacity, and how many instances of the
    class wait.
    """
    return [(_request(row["message"]), int(row["instances"])) for row in await _WAITING(tx)]


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    needs.of(CapacitySampler).waiting.append(waiting)
    return SchedulerPart()


PART = ForScheduler(part)
