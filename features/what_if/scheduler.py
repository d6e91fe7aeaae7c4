"""The part of what-if questions in a scheduler."""

from bus import topics
from bus.worker import WorkerRows, answers
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart
from scheduler_worker.victim_search import VictimSearch
from scheduler_worker.waiting.owner import WaitingOwner
from scheduler_worker.waiting.store import WaitingStore
from scheduler_worker.what_if import WhatIfs
from scheduler_worker.what_if_preempting import WhatIfsPreempting
from scheduler_worker.what_if_waiting import WhatIfWaits


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    what_ifs = WhatIfs(needs.scheduler)
    waits = WhatIfWaits(needs.scheduler, needs.of(WaitingStore), needs.of(WaitingOwner).held)
    preempting = WhatIfsPreempting(what_ifs, needs.of(VictimSearch), waits)
    return SchedulerPart(
        client_queries={"what_if": what_ifs.answer},
        offers=(what_ifs,),
        rows=WorkerRows(answers=[answers(topics.WHAT_IF, preempting.answer)]),
    )
