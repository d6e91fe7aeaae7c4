"""Operations on quotas: set and unset limits, and read limits with usage and waiting requests."""

from collections.abc import Sequence

from berth.operations.publishing import checked
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.queries import FindWaiting
from bus.quotas import (
    FindQuotas,
    Quota,
    QuotaEdit,
    QuotaEdited,
    QuotaEditRequested,
    QuotaSourceIsKeystone,
    SetQuota,
    UnsetQuota,
)
from bus.vocabulary import Missing, Value


class ProjectShare(Value, frozen=True, kw_only=True):
    """A limited or used resource of a project. Without `limit` it is not limited."""

    project: str
    resource: str
    used: int
    limit: int | None = None
    is_default: bool = False  # the limit is the default

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.used > self.limit


def shares_of(quota: Quota) -> list[ProjectShare]:
    """Return the resources of a project that are limited or used, sorted by name."""
    return [
        ProjectShare(
            project=quota.project,
            resource=name,
            used=quota.used.get(name, 0),
            limit=None if (limit := quota.effective.get(name, -1)) < 0 else limit,
            is_default=name in quota.effective and name not in quota.limits,
        )
        for name in sorted(quota.effective.keys() | quota.used.keys())
    ]


async def set_quota(bus: Bus, project: str, limits: dict[str, int]) -> Quota:
    """Set limits of a project, or of the default; raise OperationRefused if placement refuses."""
    return await _edit(bus, SetQuota(project=project, limits=limits))


async def unset_quota(bus: Bus, project: str, resources: Sequence[str]) -> Quota:
    """Delete limits of a project (all, if no resources are given), so that the default applies again."""
    return await _edit(bus, UnsetQuota(project=project, resources=tuple(resources)))


async def _edit(bus: Bus, edit: QuotaEdit) -> Quota:
    match (await bus.asker(topics.EDIT_QUOTA)(checked(QuotaEditRequested(edit=edit)))).result:
        case QuotaEdited(quota=Quota() as quota):
            return quota
        case Missing(names=names):
            raise OperationRefused(
                f"{', '.join(names)}: neither a resource class (`berth class list`) nor instances or"
                " server_group_members"
            )
        case QuotaSourceIsKeystone():
            raise OperationRefused("this region's quotas come from Keystone: `openstack limit set`")
    raise OperationRefused("other processes are changing it: try again")


async def quotas_of(bus: Bus, project: str | None, *, used: bool = True) -> list[Quota]:
    """Return the quota of a project or, with None, the default's and those of all projects with a limit or
    with instances.
    """
    ask, found, after = bus.asker(topics.QUOTAS), list[Quota](), ""
    while True:
        page = await ask(checked(FindQuotas(project=project, used=used, after=after)))
        found += page.quotas
        if not page.more:
            return found
        after = page.more


async def waiting_in(bus: Bus, project: str) -> int:
    """Return how many requests of a project wait for capacity or quota."""
    return (await bus.asker(topics.WAITING)(FindWaiting(project=project, limit=1))).count
