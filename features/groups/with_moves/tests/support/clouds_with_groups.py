"""A small cloud whose instance moves, with server groups."""

from collections.abc import Mapping, Sequence

from features.groups.messages import GROUPS, FindGroups, GroupsFound, ServerGroup
from features.groups.with_moves.scheduler import GroupsOfMoves
from features.moves.tests.support.moving_clouds import MovingCloud, a_cloud, root
from tests.support.ids import uid

GROUP = uid(5, "9")


def grouped(
    policy: str, members: Mapping[str, int], left: Mapping[str, int] | None = None, *, hosts: int = 4
) -> MovingCloud:
    """Return a cloud with a server group, whose members are on the numbered hosts."""
    group = ServerGroup(
        id=GROUP,
        name="web",
        policy=policy,  # type: ignore[arg-type]
        project="p",
        members={one: (root(host),) for one, host in members.items()},
        left={one: (root(host),) for one, host in (left or {}).items()},
    )
    return a_cloud_with([group], hosts)


def a_cloud_with(groups: Sequence[ServerGroup], hosts: int = 4) -> MovingCloud:
    """Return a cloud in which placement knows these server groups."""

    async def find(question: FindGroups) -> GroupsFound:
        found = [one for one in groups if not question.ids or one.id in question.ids]
        if question.members:
            found = [one for one in found if not one.members.keys().isdisjoint(question.members)]
        return GroupsFound(groups=tuple(found))

    cloud = a_cloud(hosts=hosts, answers={GROUPS: find})
    cloud.moves.lookups.parts_of.append(GroupsOfMoves(find).parts_of)
    return cloud
