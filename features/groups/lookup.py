"""Finds server groups by name or uuid."""

import uuid

from berth.kit import checked
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from features.groups.messages import GROUPS, FindGroups, ServerGroup


async def group_named(bus: Bus, name_or_id: str, project: str = "") -> ServerGroup:
    """Return the server group with this name or uuid; raise OperationRefused unless exactly one exists."""
    try:
        question = FindGroups(ids=(str(uuid.UUID(name_or_id)),), project=project)
    except ValueError:
        question = checked(FindGroups(name=name_or_id, project=project))
    groups = (await bus.asker(GROUPS)(question)).groups
    if not groups:
        where = f" in project {project}" if project else ""
        raise OperationRefused(
            f"there is no server group {name_or_id}{where}: `berth instance group list` lists them"
        )
    if len(groups) > 1:
        projects = ", ".join(sorted(group.project for group in groups))
        raise OperationRefused(f"{name_or_id} is a group of projects {projects}: give --project, or its uuid")
    return groups[0]
