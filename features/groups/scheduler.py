"""The part of server groups in a scheduler: their policies restrict the hosts of requests."""

from scheduler_worker.extension import SchedulerNeeds, SchedulerPart
from scheduler_worker.server_groups import JoinedGroups


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler = needs.scheduler
    return SchedulerPart(narrowings=(JoinedGroups(scheduler.placement.groups, scheduler.ending),))
