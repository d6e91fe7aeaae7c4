"""The part of the capacity history in a scheduler: it takes the samples, and answers queries about them."""

from bus.worker import WorkerRows, answers, every
from features.capacity_history.messages import CAPACITY
from features.capacity_history.samples import CapacitySampler
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

CHECK_SECONDS = 60.0  # between two checks whether the sample of the present interval is stored


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    sampler = CapacitySampler(needs.scheduler, needs.database)
    return SchedulerPart(
        offers=(sampler,),
        rows=WorkerRows(
            answers=[answers(CAPACITY, sampler.find)], timers=[every(CHECK_SECONDS, sampler.store)]
        ),
    )


PART = ForScheduler(part)
