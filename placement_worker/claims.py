"""Claims and releases of allocations, judged in batches: one transaction for many orders."""

from collections.abc import Sequence

from msgspec import structs

from bus.chunks import portions, portions_by_size
from bus.claims import (
    CLEANUP,
    ClaimAnswered,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    ReleaseResult,
)
from bus.sql.transaction import Transaction
from bus.vocabulary import Contended
from placement_worker.core import capacity
from placement_worker.core.claim_world import ClaimWorld
from placement_worker.store import claims
from placement_worker.transactions import PlacementOperations, again, changing, contended_each

CLAIMS_A_TRANSACTION = 500


class ClaimOperations(PlacementOperations):
    """Claims and releases, judged by the stored data, never by the index, and retried after a lost race."""

    async def claim_many(
        self, orders: Sequence[ClaimRequested], *, cell: str = ""
    ) -> Sequence[ClaimAnswered]:
        """Judge claims of several orders; the claims of one order succeed together or not at all."""
        results: list[tuple[ClaimResult, ...]] = []
        for part in portions_by_size(orders, lambda order: len(order.claims), CLAIMS_A_TRANSACTION):
            # First choices nearly always fit, so only their providers are locked; a second time all are.
            first = await self._claim(part, cell, all_choices=False)
            waiting = [order for order, result in zip(part, first, strict=True) if result is None]
            second = iter(await self._claim(waiting, cell, all_choices=True) if waiting else ())
            for order, result in zip(part, first, strict=True):
                judged = result if result is not None else next(second)
                results.append(judged if judged is not None else _contended(order))
        return [ClaimAnswered(results=result) for result in results]

    @again(lambda _, orders, *__, **___: [_contended(order) for order in orders])
    async def _claim(
        self, orders: Sequence[ClaimRequested], cell: str, *, all_choices: bool
    ) -> list[tuple[ClaimResult, ...] | None]:
        every = [claim for order in orders for claim in order.claims]
        now = self.clock.now()
        await self.book.know_owners(self.database, every, now)
        providers = capacity.providers_of(orders, all_choices=all_choices)
        if all_choices:
            async with self.database.read() as tx:
                providers.update(*(await claims.siblings(tx, providers)).values())
        scope = claims.claim_scope(every, providers)
        scope.groups, scope.cell = {claim.group for claim in every if claim.group is not None}, cell
        async with changing(self.database, self.book) as tx:
            world = await claims.open_world(tx, self.book, scope, now)
            results = [capacity.claim(order, world) for order in orders]
            number = await self._save(tx, world, now)
        return [result and _numbered(result, number) for result in results]

    async def release_many(
        self, orders: Sequence[ReleaseRequested], *, cell: str = ""
    ) -> Sequence[ReleaseAnswered]:
        results: list[ReleaseResult] = []
        for some in portions(orders, CLAIMS_A_TRANSACTION):
            results += await self._release(some, cell)
        return [ReleaseAnswered(result=result) for result in results]

    @again(contended_each)
    async def _release(self, orders: Sequence[ReleaseRequested], cell: str) -> list[ReleaseResult]:
        # A consumer without allocations that is to be retired cannot claim before its tombstone is written.
        newcomers: dict[str, ConsumerClaim | None] = {
            release.consumer: None for release in orders if release.retire
        }
        holder_consumers = {release.keep for release in orders if release.keep}
        newcomers |= dict.fromkeys(holder_consumers)
        scope = claims.ClaimScope(newcomers, {release.consumer for release in orders}, cell=cell)
        now = self.clock.now()
        if holder_consumers:
            await self.book.types.ensure(self.database, (CLEANUP,), now)
        async with changing(self.database, self.book) as tx:
            world = await claims.open_world(tx, self.book, scope, now)
            results = [capacity.release(order, world) for order in orders]
            number = await self._save(tx, world, now)
        return [
            Released(number=number) if isinstance(one, Released) and order.consumer in world.stirred else one
            for order, one in zip(orders, results, strict=True)
        ]

    async def _save(self, tx: Transaction, world: ClaimWorld, now: float) -> int:
        altered, writes = await claims.save_world(tx, self.book, world, now)
        return await self._log.write(tx, altered, {}, writes)

    async def prune(self, before: float) -> None:
        """Delete retired consumers that ended before this time."""
        async with self.database.write() as tx:
            await claims.PRUNE_RETIRED(tx, before=before)


def _numbered(results: tuple[ClaimResult, ...], number: int) -> tuple[ClaimResult, ...]:
    return tuple(
        structs.replace(result, number=number) if isinstance(result, Claimed) else result
        for result in results
    )


def _contended(order: ClaimRequested) -> tuple[ClaimResult, ...]:
    return tuple(Contended() for _ in order.claims)
