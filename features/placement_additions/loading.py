"""The operation that creates or changes thousands of providers in few transactions."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from bus.sql.failures import Conflict
from bus.vocabulary import portions_by_size
from features.placement_additions.core import bulk_load as loading
from features.placement_additions.messages import LoadProviders, LoadResult, ProvidersLoaded
from placement_worker.extension import (
    PlacementOperations,
    WorkingTrees,
    again,
    changing,
    find_trees,
    homes_of,
    read_locked_trees,
)

PROVIDERS_A_TRANSACTION = 2000
LOADS_AT_ONCE = 2  # number of concurrent transactions: one is computed while another is written


class BulkLoad(PlacementOperations):
    async def load(self, order: LoadProviders) -> ProvidersLoaded:
        """Load providers tree by tree; each tree is loaded completely or not at all."""
        items = list(enumerate(order.providers))
        wrong = loading.wrong(items, self.book.known)
        named = {provider.id for provider in order.providers} | {
            provider.parent for provider in order.providers if provider.parent
        }
        async with self.database.read_single() as tx:
            homes = await homes_of(tx, named)
        results: dict[str, LoadResult] = {}
        sound = []
        for tree in loading.trees_of(items, homes):
            why = next((wrong[position] for position, _ in tree if position in wrong), "")
            if why:
                results.update((result.provider, result) for result in loading.refused(tree, why))
            else:
                sound.append(tree)
        parts = portions_by_size(sound, len, PROVIDERS_A_TRANSACTION)

        async def work() -> None:
            for part in parts:
                results.update((result.provider, result) for result in await self._load(part))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(LOADS_AT_ONCE):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return ProvidersLoaded(results=tuple(results[provider.id] for provider in order.providers))

    @again()
    async def _load(self, grown: Sequence[Sequence[loading.Item]]) -> list[LoadResult]:
        now = self.clock.now()
        items = [load for tree in grown for _, load in tree]
        await self.book.know_contents(self.database, [item.contents for item in items], now)
        named = {item.id: None for item in items} | {item.parent: None for item in items if item.parent}
        async with self.numbers.taken(len(items)) as numbers, changing(self.database, self.book) as tx:
            found = await find_trees(tx, self.book, list(named), [item.name for item in items])
            read = await read_locked_trees(
                tx, self.book, [provider_id for provider_id in named if provider_id in found.ids]
            )
            working = WorkingTrees(found.owned | read, found.names, found.ids, found.number)
            if len(found.ids) != sum(provider_id in working.homes for provider_id in named):
                raise Conflict("a provider was deleted while it was being read")
            results = list(chain.from_iterable(loading.load(tree, working) for tree in grown))
            pairs = working.changed()
            if pairs:
                await self.log.write_trees(tx, pairs, now, numbers)
        return results
