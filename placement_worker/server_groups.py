"""Server groups: found, made, dropped. Their policies are judged where hosts are claimed (claims.py)."""

from bus.groups import (
    DropGroup,
    FindGroups,
    GroupEditAnswered,
    GroupEdited,
    GroupEditRequested,
    GroupResult,
    GroupsFound,
    MakeGroup,
    ServerGroup,
)
from bus.vocabulary import InUse, Taken
from placement_worker.store import server_groups
from placement_worker.transactions import Parts, PlacementOperations, again, contended


class ServerGroups(PlacementOperations):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._edit = again(parts.clock, self._edit_once, contended)

    async def find(self, query: FindGroups) -> GroupsFound:
        async with self.database.read() as tx:
            return GroupsFound(groups=tuple(await server_groups.find(tx, query)))

    async def edit(self, order: GroupEditRequested) -> GroupEditAnswered:
        return GroupEditAnswered(result=await self._edit(order))

    async def _edit_once(self, order: GroupEditRequested) -> GroupResult:
        match order.edit:
            case MakeGroup() as make:
                return await self._make(make)
            case DropGroup(group=group, force=force):
                async with self.database.write() as tx:
                    members = await server_groups.drop(tx, group, force=force)
                if members:
                    return InUse(what=group, members=tuple(members))
                return GroupEdited(changed=members is not None)

    async def _make(self, make: MakeGroup) -> GroupResult:
        group = ServerGroup(
            id=make.group,
            name=make.name,
            policy=make.policy,
            max_per_host=make.max_per_host,
            project=make.project,
        )
        async with self.database.write() as tx:
            if await server_groups.make(tx, group, self.clock.now()):
                return GroupEdited(group=group, changed=True)
        [there] = (await self.find(FindGroups(ids=(make.group,)))).groups or [None]
        if there is None:
            return Taken(what="name", value=make.name)
        same = (there.name, there.policy, there.max_per_host, there.project)
        if same == (make.name, make.policy, make.max_per_host, make.project):
            return GroupEdited(group=there)
        return Taken(what="id", value=make.group)
