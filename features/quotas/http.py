"""The quotas' part of the HTTP API: `/berth/quotas`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from berth.kit import DescribedOperation, HttpApiPart, HttpDescription
from bus.vocabulary import Missing, Text
from features.quotas.messages import (
    FindQuotas,
    Limit,
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
from features.quotas.operations import QuotaOperations
from placement_worker.http.extension import (
    ApiAnswer,
    ApiCall,
    HttpPart,
    delete,
    empty_answer,
    errors,
    get,
    json_answer,
    put,
)


class QuotaLimitsGiven(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Limits to set, by resource class, `instances` or `server_group_members`; -1 means unlimited."""

    limits: Annotated[dict[Text, Limit], Meta(min_length=1, max_length=500)]


class QuotaShown(msgspec.Struct, kw_only=True):
    """The limits of a project, the limits that apply with the default, and what its instances hold."""

    project: str
    limits: dict[str, int]
    effective: dict[str, int]
    used: dict[str, int]


class QuotasListed(msgspec.Struct, kw_only=True):
    """A page of quotas; `after` is the parameter for the next page, or empty."""

    quotas: list[QuotaShown]
    after: str


async def list_quotas(call: ApiCall) -> ApiAnswer:
    """Answer GET of all quotas, in pages; `used` adds the usage."""
    asked = dict(call.pairs)
    if strange := asked.keys() - {"after", "used"}:
        raise errors.bad_request(f"{min(strange)[:40]!r} is not a parameter here; there are: after, used")
    used = asked.get("used", "false").lower() in ("true", "1", "")
    query = FindQuotas(after=asked.get("after", "")[:255], used=used)
    found = await call.placement.of(QuotaOperations).find(query)
    return json_answer(QuotasListed(quotas=[_shown(quota) for quota in found.quotas], after=found.more))


async def show_quota(call: ApiCall) -> ApiAnswer:
    [quota] = (await call.placement.of(QuotaOperations).find(FindQuotas(project=_project(call)))).quotas
    return json_answer(_shown(quota))


async def set_quota(call: ApiCall) -> ApiAnswer:
    limits = (await call.decoded(QuotaLimitsGiven)).limits
    edit = SetQuota(project=_project(call), limits=limits)
    return json_answer(_shown(await _edit(call, edit)))


async def unset_quota(call: ApiCall) -> ApiAnswer:
    """Remove the limits of a project, for which the defaults then count."""
    await _edit(call, UnsetQuota(project=_project(call)))
    return empty_answer()


async def _edit(call: ApiCall, edit: QuotaEdit) -> Quota:
    match (await call.placement.of(QuotaOperations).edit(QuotaEditRequested(edit=edit))).result:
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


HTTP = HttpPart(
    routes={
        "/berth/quotas": (get("berth:quotas:list", list_quotas),),
        "/berth/quotas/{project}": (
            get("berth:quotas:show", show_quota),
            put("berth:quotas:update", set_quota),
            delete("berth:quotas:delete", unset_quota),
        ),
    },
    rules={
        "berth:quotas:list": "rule:berth:reader",
        "berth:quotas:show": "rule:berth:reader",
        "berth:quotas:update": "rule:admin_or_service_api",
        "berth:quotas:delete": "rule:admin_or_service_api",
    },
)


# The description of these operations in the OpenAPI document.


DESCRIPTION = HttpDescription(
    operations={
        ("/berth/quotas", "GET"): DescribedOperation(
            "List the default limits and the projects with limits of their own, by id.",
            QuotasListed,
            query={
                "after": "`after` of the previous page",
                "used": "true: also projects with instances and without limits of their own",
            },
            refusals=(400,),
        ),
        ("/berth/quotas/{project}", "GET"): DescribedOperation(
            "Show the limits and the usage of a project.", QuotaShown
        ),
        ("/berth/quotas/{project}", "PUT"): DescribedOperation(
            "Set limits of a project; its other limits stay.",
            QuotaShown,
            body=QuotaLimitsGiven,
            refusals=(400, 409, 415),
        ),
        ("/berth/quotas/{project}", "DELETE"): DescribedOperation(
            "Delete all limits of a project.", status=204, refusals=(409,)
        ),
    },
    in_path={"project": "id of the project; `default`: the limits of projects without limits of their own"},
)


PART = HttpApiPart(HTTP, DESCRIPTION)
