"""The part of what-if questions in a scheduler."""

from msgspec import structs

from bus.acts import owners_query, permitted
from bus.projects import ClientQuery, FindOwners, ProjectMember, ProjectsFound
from bus.worker import WorkerRows, answers
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def of_clients(what_ifs: WhatIfs) -> ClientQuery:
    """Return the query by which members of projects ask where their requests would be placed."""

    async def answer(question: WhatIf, client: ProjectMember, find_owners: FindOwners) -> WhatIfAnswered:
        ids = owners_query([question.request], places=False)
        owners = await find_owners(ids) if ids is not None else ProjectsFound()
        request = permitted(client, question.request, owners)
        return await what_ifs.answer(structs.replace(question, request=request), names_others=False)

    return ClientQuery(WhatIf, answer)


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    what_ifs = WhatIfs(needs.scheduler)
    return SchedulerPart(
        client_queries={"what_if": of_clients(what_ifs)},
        offers=(what_ifs,),
        rows=WorkerRows(answers=[answers(WHAT_IF, what_ifs.answer)]),
    )


PART = ForScheduler(part)
