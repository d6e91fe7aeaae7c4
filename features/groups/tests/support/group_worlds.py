"""Lets claims in memory be judged by server groups."""

from features.groups.places import GroupPlaces
from features.groups.rule import GroupRule, GroupWorld
from placement_worker.extension import ClaimWorld


def join(there: ClaimWorld, *groups: GroupPlaces) -> None:
    """Let claims be judged by the policies of server groups."""
    there.rules = (GroupRule(),)
    there.state[GroupRule] = GroupWorld(
        {group.id: group for group in groups}, {each.uuid: each.id for each in groups}
    )
