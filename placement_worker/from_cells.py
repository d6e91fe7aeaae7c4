"""What comes from within one cell: the row it came by says which, whatever a message says of itself."""

from collections.abc import Sequence

from bus.errors import Poison
from bus.messages import InventoryReported
from bus.queries import (
    ClaimAnswered,
    ClaimRequested,
    FindProviders,
    ProvidersFound,
    ReleaseAnswered,
    ReleaseRequested,
)
from placement_worker.placement import Placement


class FromCell:
    """Placement as it is met from one cell."""

    def __init__(self, placement: Placement, cell: str) -> None:
        self._placement = placement
        self._cell = cell

    async def report_many(self, reports: Sequence[InventoryReported]) -> Sequence[Poison | None]:
        return await self._placement.reports.report_many(reports, cell=self._cell)

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return await self._placement.claims.claim_many(orders, cell=self._cell)

    async def release_many(self, orders: Sequence[ReleaseRequested]) -> Sequence[ReleaseAnswered]:
        return await self._placement.claims.release_many(orders, cell=self._cell)

    async def providers(self, query: FindProviders) -> ProvidersFound:
        return await self._placement.lookups.providers(query, cell=self._cell)
