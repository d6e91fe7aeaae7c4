"""Adds to what-if answers how long the request would wait."""

from features.waiting.answers import WaitingAnswers
from features.waiting.store import WaitingStore
from features.what_if.questions import WhatIfs
from features.what_if.with_waiting.waits import WhatIfWaits
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    waits = WhatIfWaits(needs.scheduler, needs.of(WaitingStore), needs.of(WaitingAnswers).held)
    needs.of(WhatIfs).steps.append(waits.suppose)
    return SchedulerPart()


PART = ForScheduler(part)
