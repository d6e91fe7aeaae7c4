"""Server groups of Nova that the bridge creates in placement."""

from features.groups.messages import GroupEdit, GroupEditAnswered, GroupEdited, GroupEditRequested, GroupPart
from features.nova.core.translation import GroupOfRequest
from features.nova.messages import HostsAsked
from features.nova.with_groups.nova_bridge import GroupsOfNova
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

GROUP = GroupOfRequest(
    id=uid(9), policy="anti-affinity", max_per_host=3, project="p1", members=(uid(7), uid(1))
)


async def test_a_group_is_created_once_and_joined_by_each_request() -> None:
    edits: list[GroupEdit] = []

    async def edit(asked: GroupEditRequested) -> GroupEditAnswered:
        edits.append(asked.edit)
        return GroupEditAnswered(result=GroupEdited(changed=True))

    groups, question = GroupsOfNova(edit), HostsAsked(request=a_request())
    for _ in range(2):
        joined = await groups.join(question, GROUP)
        part = joined.request.parts.get(GroupPart)
        assert part == GroupPart(group=uid(9), members=(uid(7), uid(1)))
    [made] = edits
    assert (made.group, made.policy, made.max_per_host) == (uid(9), "anti-affinity", 3)  # type: ignore[union-attr]
