"""Routes for the quotas of projects: `/berth/quotas`."""

from typing import Any

import msgspec

from bus.quotas import (
    FindQuotas,
    Quota,
    QuotaEdit,
    QuotaEdited,
    QuotaEditRequested,
    QuotaSourceIsKeystone,
    SetQuota,
    UnsetQuota,
    name_of_project,
    project_named,
)
from bus.vocabulary import Missing
from placement_worker.http import errors
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer
from placement_worker.http.bodies import QuotaLimitsGiven, QuotaShown, QuotasListed

_limits = msgspec.json.Decoder(QuotaLimitsGiven)


async def list_quotas(call: ApiCall) -> ApiAnswer:
    asked = dict(call.pairs)
    if strange := asked.keys() - {"after", "used"}:
        raise errors.bad_request(f"{min(strange)[:40]!r} is not a parameter here; there are: after, used")
    used = asked.get("used", "false").lower() in ("true", "1", "")
    query = FindQuotas(after=asked.get("after", "")[:255], used=used)
    found = await call.placement.quotas.find(query)
    return json_answer(QuotasListed(quotas=[_shown(quota) for quota in found.quotas], after=found.more))


async def show_quota(call: ApiCall) -> ApiAnswer:
    [quota] = (await call.placement.quotas.find(FindQuotas(project=_project(call)))).quotas
    return json_answer(_shown(quota))


async def set_quota(call: ApiCall) -> ApiAnswer:
    limits = (await call.decoded(_limits)).limits
    try:
        edit = SetQuota(project=_project(call), limits=limits)
    except ValueError as problem:
        raise errors.bad_request(f"limits: {problem}") from None
    return json_answer(_shown(await _edit(call, edit)))


async def unset_quota(call: ApiCall) -> ApiAnswer:
    await _edit(call, UnsetQuota(project=_project(call)))
    return empty_answer()


async def _edit(call: ApiCall, edit: QuotaEdit) -> Quota:
    match (await call.placement.quotas.edit(QuotaEditRequested(edit=edit))).result:
        case QuotaEdited(quota=Quota() as quota):
            return quota
        case Missing(names=names):
            raise errors.bad_request(f"limits: there is no resource {', '.join(names)}")
        case QuotaSourceIsKeystone():
            raise errors.conflict("The quotas come from Keystone's unified limits.")
        case _:
            raise errors.conflict("The quota was changed meanwhile.", errors.CONCURRENT_UPDATE)


def _project(call: ApiCall) -> str:
    name: str = call.path["project"]
    return project_named(name[:255])


def _shown(quota: Quota) -> QuotaShown:
    fields: dict[str, Any] = msgspec.structs.asdict(quota)
    return QuotaShown(**fields | {"project": name_of_project(quota.project)})
