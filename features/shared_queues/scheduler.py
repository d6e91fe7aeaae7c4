"""The part of shared queues in a scheduler: it reads heartbeats that gateways have merged."""

from bus.worker import WorkerRows, on
from features.shared_queues.messages import HEARTBEATS_MERGED, HeartbeatsMerged
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    async def handle(merged: HeartbeatsMerged) -> None:
        for report in merged.reports:
            await needs.scheduler.handle(report)

    return SchedulerPart(rows=WorkerRows(consumes=(on(HEARTBEATS_MERGED, handle, private=True),)))


PART = ForScheduler(part)
