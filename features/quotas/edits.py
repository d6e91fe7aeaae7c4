"""Operations on quotas: set and unset limits, and read limits with usage and waiting requests."""

import re
from collections.abc import Collection, Sequence

from msgspec import structs

from berth.kit import BadSetting, checked
from bus import topics
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.names import FindNames
from bus.queries import FindWaiting
from bus.vocabulary import Missing
from features.quotas.messages import (
    COUNTS,
    DEFAULT,
    EDIT_QUOTA,
    NAME_OF_DEFAULT,
    QUOTAS,
    UNLIMITED,
    FindQuotas,
    Quota,
    QuotaEdit,
    QuotaEdited,
    QuotaEditRequested,
    QuotaSourceIsKeystone,
    SetQuota,
    UnsetQuota,
    project_named,
)

_LIMIT = re.compile(r"([A-Za-z0-9_]{1,255})=(-1|[0-9]{1,15}|unlimited)")
_NO_RESOURCE = "neither a resource class (`berth resource class list`) nor instances or server_group_members"
_MOST_PROJECTS = 1000  # in one query


def parsed_limits(texts: Sequence[str]) -> dict[str, int]:
    """Return limits by resource from texts such as `VCPU=40`; raise BadSetting if a text is invalid."""
    return dict(_limit(text) for text in texts)


def _limit(text: str) -> tuple[str, int]:
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadSetting(f"{text}: it is RESOURCE=LIMIT, such as VCPU=40, instances=10 or DISK_GB=unlimited")
    name, limit = found.groups()
    return name, UNLIMITED if limit == "unlimited" else int(limit)


def project_to_edit(name: str) -> str:
    """Return the project id for an edit of quotas: "" for `default`. Raise BadSetting for an empty name: it
    must not change the limits of all projects.
    """
    if not name:
        raise BadSetting(
            f"no project is named; `--default` or the name {NAME_OF_DEFAULT!r} means all projects without"
            " limits of their own"
        )
    return project_named(name)


async def set_quota(bus: Bus, project: str, limits: dict[str, int]) -> Quota:
    """Set limits of a project ("": of the default quota) and return its quota; raise OperationRefused if
    placement refuses.
    """
    return await _edit(bus, SetQuota(project=project, limits=limits))


async def unset_quota(bus: Bus, project: str, resources: Sequence[str]) -> Quota:
    """Delete limits of a project (all, if no resources are given), so that the default applies again."""
    return await _edit(bus, UnsetQuota(project=project, resources=tuple(resources)))


async def suppose_quota(
    bus: RecordingBus, project: str, limits: dict[str, int], deleted: Sequence[str], every: bool
) -> Quota:
    """Return the quota that a project would have if these limits were set and `deleted`, or all, deleted."""
    if limits:
        await bus.rehearse(checked(QuotaEditRequested(edit=SetQuota(project=project, limits=limits))))
        await check_resources(bus, limits)
    if deleted or every:
        edit = UnsetQuota(project=project, resources=tuple(deleted))
        await bus.rehearse(checked(QuotaEditRequested(edit=edit)))
    default = await quotas_of(bus, DEFAULT)
    quotas = await quotas_of(bus, project)
    quota = next((each for each in quotas if each.project == project), Quota(project=project))
    kept = {} if every else {name: limit for name, limit in quota.limits.items() if name not in deleted}
    own = kept | limits
    effective = own if project == DEFAULT else {**(default[0].limits if default else {}), **own}
    return structs.replace(quota, limits=own, effective=effective)


async def _edit(bus: Bus, edit: QuotaEdit) -> Quota:
    match (await bus.asker(EDIT_QUOTA)(checked(QuotaEditRequested(edit=edit)))).result:
        case QuotaEdited(quota=Quota() as quota):
            return quota
        case Missing(names=names):
            raise OperationRefused(f"{', '.join(names)}: {_NO_RESOURCE}")
        case QuotaSourceIsKeystone():
            raise OperationRefused("this region's quotas come from Keystone: `openstack limit set`")
    raise OperationRefused("other processes are changing it: try again")


async def check_resources(bus: Bus, names: Collection[str]) -> None:
    """Raise BadSetting if a name is neither a resource class nor a counted resource such as `instances`."""
    classes = sorted({*names}.difference(COUNTS))
    question = checked(FindNames(kind="resource class", names=tuple(classes)))
    found = {each.name for each in (await bus.asker(topics.NAMES)(question)).names} if classes else set()
    if unknown := [name for name in classes if name not in found]:
        raise BadSetting(f"{', '.join(unknown)}: {_NO_RESOURCE}")


async def quotas_of(bus: Bus, project: str | None, *, used: bool = True) -> list[Quota]:
    """Return the quota of a project or, if `project` is None, the default quota and the quotas of all
    projects with a limit or with instances. With `used`, each has the project's usage.
    """
    ask, found, after = bus.asker(QUOTAS), list[Quota](), ""
    while True:
        page = await ask(checked(FindQuotas(project=project, used=used, after=after)))
        found += page.quotas
        if not page.more:
            return found
        after = page.more


async def waiting_by_project(bus: Bus, projects: Sequence[str]) -> dict[str, int]:
    """Return how many requests of each of these projects wait; projects without any are missing."""
    ask, found = bus.asker(topics.WAITING), dict[str, int]()
    for at in range(0, len(projects), _MOST_PROJECTS):
        question = FindWaiting(projects=tuple(projects[at : at + _MOST_PROJECTS]), limit=1)
        found |= (await ask(checked(question))).by_project
    return found
