"""The part of server groups in a scheduler: their policies restrict the hosts of requests."""

from msgspec import structs

from bus.projects import ClientQuery, FindOwners, ProjectMember, project_of
from bus.protocol import Ask
from bus.worker import WorkerRows
from features.groups.messages import GROUPS, FindGroups, GroupsFound
from features.groups.server_groups import JoinedGroups
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def of_clients(groups: Ask[FindGroups, GroupsFound]) -> ClientQuery:
    """Return the query by which members of projects read their server groups."""

    async def find(question: FindGroups, client: ProjectMember, find_owners: FindOwners) -> GroupsFound:
        project = project_of(client, question.project)
        found = await groups(structs.replace(question, project=project))
        return GroupsFound(groups=tuple([group for group in found.groups if group.project == project]))

    return ClientQuery(FindGroups, find)


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler = needs.scheduler
    return SchedulerPart(
        narrowings=(JoinedGroups(scheduler.placement.ask(GROUPS), scheduler.ending),),
        client_queries={"groups": of_clients(scheduler.placement.ask(GROUPS))},
        rows=WorkerRows(asks=(GROUPS,)),
    )


PART = ForScheduler(part)
