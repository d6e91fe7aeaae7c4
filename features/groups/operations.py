"""Operations on server groups."""

from dataclasses import dataclass

from msgspec import structs

from bus.sql.statement import Transaction
from bus.vocabulary import Contended, InUse, LimitReached, Taken
from features.groups import messages
from features.groups import store as server_groups
from features.groups.settings import GroupSettings
from placement_worker.extension import PlacementOperations, again


@dataclass(eq=False)
class ServerGroups(PlacementOperations):
    """Operations on server groups. The groups' policies are checked by claims."""

    limits: GroupSettings

    async def prune(self, before: float) -> None:
        """Delete the groups of requests with a topology that have no members any more."""
        async with self.database.write() as tx:
            await server_groups.PRUNE_OF_REQUESTS(tx, before=before)

    async def find(self, query: messages.FindGroups) -> messages.GroupsFound:
        async with self.database.read() as tx:
            return messages.GroupsFound(groups=tuple(await server_groups.find(tx, query)))

    @again(lambda *_: messages.GroupEditAnswered(result=Contended()))
    async def edit(self, order: messages.GroupEditRequested) -> messages.GroupEditAnswered:
        match order.edit:
            case messages.MakeGroup() as make:
                result = await self._make(make)
            case messages.DropGroup(group=group, force=force):
                async with self.database.write() as tx:
                    members = await server_groups.drop(tx, group, force=force)
                result = messages.GroupEdited(changed=members is not None)
                if members:
                    result = InUse(what=group, members=tuple(members))
        return messages.GroupEditAnswered(result=result)

    async def _make(self, make: messages.MakeGroup) -> messages.GroupResult:
        fields = structs.asdict(make)
        group = messages.ServerGroup(id=fields.pop("group"), **fields)
        async with self.database.write() as tx:
            if (full := await self._limit_reached(tx, group)) is not None:
                return full
            if await server_groups.make(tx, group, self.clock.now()):
                return messages.GroupEdited(group=group, changed=True)
        [existing] = (await self.find(messages.FindGroups(ids=(make.group,)))).groups or [None]
        if existing is None:
            return Taken(what="name", value=make.name)
        if structs.replace(existing, members={}, left={}) == group:
            return messages.GroupEdited(group=existing)
        return Taken(what="id", value=make.group)

    async def _limit_reached(self, tx: Transaction, group: messages.ServerGroup) -> LimitReached | None:
        limits = self.limits
        total, of_project, is_stored = await server_groups.count(tx, group)
        if is_stored:
            return None
        if total >= limits.groups:
            return LimitReached(setting="max_groups", limit=limits.groups, what="server groups")
        if of_project >= limits.groups_project:
            what = f"server groups of project {group.project}"
            return LimitReached(setting="max_groups_project", limit=limits.groups_project, what=what)
        return None
