"""The part of server groups in a scheduler: their policies restrict the hosts of requests."""

from features.groups.server_groups import JoinedGroups
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler = needs.scheduler
    return SchedulerPart(narrowings=(JoinedGroups(scheduler.placement.groups, scheduler.ending),))
