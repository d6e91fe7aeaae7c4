"""A placement in memory that grants each claim its first candidate: for benchmarks of decisions."""

from collections.abc import Sequence
from typing import Any

from bus.candidates import OnChange, OnWakes
from bus.claims import ClaimAnswered, Claimed, ClaimRequested, ReleaseAnswered, Released, ReleaseRequested
from bus.replication import ProviderChange
from bus.resources import FindProviders, ProvidersFound
from bus.vocabulary import Allocations
from placement_worker.core.index import Index
from scheduler_worker.queries import PlacementQueries


class InstantPlacement:
    """Grants claims in an index. A claim of more than is free is an error of the scheduler."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.granted = 0

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    def watch(self, heard: OnChange) -> None: ...

    async def fresh(self) -> None: ...

    def change(self, allocations: Allocations, sign: int) -> int:
        """Claim allocations if `sign` is 1, release them if it is -1; return the change number."""
        number, changes = self.index.seen + 1, []
        for provider, amounts in allocations.items():
            row = self.index.rows[provider]
            used = {name: amount + sign * amounts.get(name, 0) for name, amount in row.used.items()}
            assert all(0 <= used[name] <= row.capacity[name] for name in amounts), (allocations, used)
            changes.append(ProviderChange(provider, row.root, row.generation + 1, used))
        self.index.accept(number, changes)
        return number

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return [ClaimAnswered(results=tuple(self._grant(order))) for order in orders]

    def _grant(self, order: ClaimRequested) -> list[Claimed]:
        number = max(self.change(claim.choices[0].allocations, 1) for claim in order.claims)
        self.granted += len(order.claims)
        return [Claimed(choice=0, generation=1, number=number) for _ in order.claims]

    async def release(self, question: ReleaseRequested) -> ReleaseAnswered:
        return ReleaseAnswered(result=Released())

    async def providers(self, question: FindProviders) -> ProvidersFound:
        return ProvidersFound(providers=())

    async def unused(self, question: object) -> Any:
        raise NotImplementedError

    def queries(self) -> PlacementQueries:
        return PlacementQueries(
            claim_many=self.claim_many,
            release=self.release,
            providers=self.providers,
            allocations=self.unused,
            usages=self.unused,
            edit=self.unused,
            edit_name=self.unused,
            ask=lambda query: self.unused,
        )
