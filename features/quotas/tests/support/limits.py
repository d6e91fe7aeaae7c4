"""Limits of projects at a placement: set, and read with their usage."""

from features.quotas.messages import (
    FindQuotas,
    Quota,
    QuotaEdit,
    QuotaEdited,
    QuotaEditRequested,
    QuotaResult,
    SetQuota,
)
from features.quotas.operations import QuotaOperations
from placement_worker.testing import Placement


async def edit(placement: Placement, edit: QuotaEdit) -> QuotaResult:
    return (await placement.of(QuotaOperations).edit(QuotaEditRequested(edit=edit))).result


async def limit(placement: Placement, project: str = "p1", /, **limits: int) -> None:
    assert isinstance(await edit(placement, SetQuota(project=project, limits=limits)), QuotaEdited)


async def quota(placement: Placement, project: str = "p1") -> Quota:
    [found] = (await placement.of(QuotaOperations).find(FindQuotas(project=project))).quotas
    return found
