"""The part of what-if questions in a scheduler."""

from msgspec import structs

from bus.acts import owners_query, permitted
from bus.projects import ClientQuery, FindOwners, ProjectMember, ProjectsFound
from bus.worker import WorkerRows, answers
from features.preemption.messages import PREEMPTIONS
from features.preemption.victim_search import VictimSearch
from features.quotas.messages import QUOTAS
from features.waiting.owner import WaitingOwner
from features.waiting.store import WaitingStore
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered
from features.what_if.preempting import WhatIfsPreempting
from features.what_if.questions import WhatIfs
from features.what_if.waits import WhatIfWaits
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart


def of_clients(what_ifs: WhatIfs) -> ClientQuery:
    async def answer(question: WhatIf, client: ProjectMember, find_owners: FindOwners) -> WhatIfAnswered:
        ids = owners_query([question.request], places=False)
        owners = await find_owners(ids) if ids is not None else ProjectsFound()
        request = permitted(client, question.request, owners)
        return await what_ifs.answer(structs.replace(question, request=request))

    return ClientQuery(WhatIf, answer)


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    what_ifs = WhatIfs(needs.scheduler)
    waits = WhatIfWaits(needs.scheduler, needs.of(WaitingStore), needs.of(WaitingOwner).held)
    preempting = WhatIfsPreempting(what_ifs, needs.of(VictimSearch), waits)
    return SchedulerPart(
        client_queries={"what_if": of_clients(what_ifs)},
        offers=(what_ifs,),
        rows=WorkerRows(asks=(QUOTAS, PREEMPTIONS), answers=[answers(WHAT_IF, preempting.answer)]),
    )
