"""Creates the server groups of Nova in placement, when the first request of a group arrives."""

from msgspec import structs

from bus.delivery.runner import Bus
from bus.protocol import Ask
from features.groups.messages import EDIT_GROUP, GroupEditAnswered, GroupEditRequested, GroupPart, MakeGroup
from features.nova.bridge import BridgeJoin, BridgePart
from features.nova.core.translation import GroupOfRequest
from features.nova.messages import HostsAsked


class GroupsOfNova:
    """Creates the server groups of Nova in berth when a request names them."""

    def __init__(self, edit: Ask[GroupEditRequested, GroupEditAnswered]) -> None:
        self._edit = edit
        self._made: set[str] = set()  # server groups that exist in placement

    async def join(self, question: HostsAsked, group: GroupOfRequest) -> HostsAsked:
        """Return a query whose instances join a server group; create the group if necessary."""
        if group.id not in self._made:
            made = MakeGroup(
                group=group.id,
                name=group.id,  # Nova permits two groups of one name in a project
                policy=group.policy,
                max_per_host=group.max_per_host,
                project=group.project,
            )
            await self._edit(GroupEditRequested(edit=made))
            self._made.add(group.id)
        part = GroupPart(group=group.id, members=group.members)
        request = structs.replace(question.request, parts=question.request.parts.having(part))
        return structs.replace(question, request=request)


def addition(bus: Bus) -> BridgePart:
    return BridgePart(GroupsOfNova(bus.asker(EDIT_GROUP)).join, asks=(EDIT_GROUP,))


PART = BridgeJoin(addition)
