"""Compares the instances of what-if answers with the quota of their project."""

from dataclasses import replace

from bus.worker import WorkerRows
from features.quotas.messages import QUOTAS, FindQuotas
from features.what_if.questions import Supposed, WhatIfs
from features.what_if.with_quotas.quota_growth import within_quota
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    async def in_quota(supposed: Supposed) -> Supposed:
        """Add to an answer how many more instances the project's quota permits; refuse the request if the
        answer's instances exceed the quota.
        """
        if not supposed.answer.fits or supposed.question.is_external:
            return supposed
        query = FindQuotas(project=supposed.order.request.project)
        [quota] = (await needs.scheduler.placement.ask(QUOTAS)(query)).quotas
        return replace(supposed, answer=within_quota(supposed.answer, supposed.order, quota))

    needs.of(WhatIfs).steps.append(in_quota)
    return SchedulerPart(rows=WorkerRows(asks=(QUOTAS,)))


PART = ForScheduler(part)
