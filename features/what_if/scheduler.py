"""The part of what-if questions in a scheduler."""

from bus import topics
from bus.worker import WorkerRows, answers
from features.preemption.victim_search import VictimSearch
from features.waiting.owner import WaitingOwner
from features.waiting.store import WaitingStore
from features.what_if.preempting import WhatIfsPreempting
from features.what_if.questions import WhatIfs
from features.what_if.waits import WhatIfWaits
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    what_ifs = WhatIfs(needs.scheduler)
    waits = WhatIfWaits(needs.scheduler, needs.of(WaitingStore), needs.of(WaitingOwner).held)
    preempting = WhatIfsPreempting(what_ifs, needs.of(VictimSearch), waits)
    return SchedulerPart(
        client_queries={"what_if": what_ifs.answer},
        offers=(what_ifs,),
        rows=WorkerRows(answers=[answers(topics.WHAT_IF, preempting.answer)]),
    )
