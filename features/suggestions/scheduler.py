"""The part of suggestions in a scheduler: changes of requests without a host."""

from features.suggestions.core.changes import helps
from scheduler_worker.extension import ForScheduler, Narrowing, Remedies, SchedulerNeeds, SchedulerPart


class Suggestions(Narrowing):
    async def remedies(self) -> Remedies:
        return helps


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    return SchedulerPart(narrowings=(Suggestions(),))


PART = ForScheduler(part)
