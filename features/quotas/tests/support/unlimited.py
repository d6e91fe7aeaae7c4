"""A placement for tests of schedulers, in which projects have no limits."""

from typing import Any

from bus.topics import Query
from features.quotas.messages import QUOTAS, FindQuotas, Quota, QuotasFound
from tests.support.scheduler_builders import FakePlacement


class UnlimitedPlacement(FakePlacement):
    async def quotas(self, question: FindQuotas) -> QuotasFound:
        return QuotasFound(quotas=(Quota(project=question.project or ""),))

    def asker(self, query: Query[Any, Any], /) -> Any:
        return self.quotas if query is QUOTAS else super().asker(query)
