"""The part of Nova in a scheduler: hosts for instances that Nova builds."""

from bus.worker import WorkerRows, answers_many, every
from features.nova.messages import SELECT_HOSTS
from features.nova.selecting import HostSelection
from features.nova.settings import NovaSettings
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

RECORD_SECONDS = 1.0  # between two transactions that store refused selections


def part(needs: SchedulerNeeds, settings: NovaSettings) -> SchedulerPart:
    selection = HostSelection(needs.scheduler, needs.database)
    return SchedulerPart(
        rows=WorkerRows(
            answers=[answers_many(SELECT_HOSTS, selection.answer_many, concurrency=4)],
            timers=[every(RECORD_SECONDS, selection.store)],
        )
    )


PART = ForScheduler(part)
