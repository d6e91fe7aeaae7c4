"""The acts on server groups."""

from collections.abc import Mapping
from dataclasses import replace

from bus.acts import Act, Requested, Target, completed, sent
from bus.clients import ProjectsFound
from bus.vocabulary import Message
from features.groups.messages import (
    EDIT_GROUP,
    GROUPS,
    FindGroups,
    GroupEdited,
    GroupEditRequested,
    GroupsFound,
    MakeGroup,
)


def _new_group(message: GroupEditRequested) -> tuple[set[str], set[str]]:
    return ({message.edit.group} if isinstance(message.edit, MakeGroup) else set()), set()


def _of_group(
    message: GroupEditRequested, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    is_new = isinstance(message.edit, MakeGroup) and isinstance(state, GroupsFound) and not state.groups
    unproven = replace(target, cell="", project="")
    return target if is_new else unproven if state is None else completed(unproven, state)


ACTS = (Act("server group", "operator", "server groups", sent(EDIT_GROUP), limited_by=("projects",)),)
REQUESTED: Mapping[type[Message], Requested] = {
    GroupEditRequested: Requested(
        state=lambda message: (GROUPS, FindGroups(ids=(message.edit.group,))),
        ids=_new_group,
        real=_of_group,
        targets=("group",),
    )
}
DONE = (GroupEdited,)
