"""The part of topology in a scheduler: the hosts of all instances of a request are chosen together."""

from bus.worker import WorkerRows
from features.groups.messages import GROUPS
from features.topology.gangs import Gangs
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    gangs = Gangs(needs.scheduler.placement.ask(GROUPS))
    return SchedulerPart(narrowings=(gangs,), rows=WorkerRows(asks=(GROUPS,)))


PART = ForScheduler(part)
