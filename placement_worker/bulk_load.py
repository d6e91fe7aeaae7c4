"""Loads many providers together, tree by tree."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from bus.chunks import portions_by_size
from bus.clock import Clock
from bus.resources import LoadProviders, LoadResult, ProviderLoad, ProvidersLoaded
from bus.sql.database import Database
from bus.sql.failures import Conflict
from placement_worker.change_log import ChangeLog
from placement_worker.core import bulk_load as loading
from placement_worker.core.working_trees import WorkingTrees
from placement_worker.retrying_transactions import again, changing
from placement_worker.store import tree_reads
from placement_worker.store.numbered_names import Book
from placement_worker.store.numbers import ProviderNumbers

PROVIDERS_A_TRANSACTION = 2000
LOADS_AT_ONCE = 2  # one is judged while the database writes another


class BulkLoad:
    def __init__(
        self, database: Database, clock: Clock, book: Book, log: ChangeLog, numbers: ProviderNumbers
    ) -> None:
        self.database = database
        self.clock = clock
        self.book = book
        self._log = log
        self._numbers = numbers
        self._load = again(clock, self._load_together)

    async def load(self, order: LoadProviders) -> ProvidersLoaded:
        """Load the providers tree by tree, each tree completely or not at all; a transaction holds many
        trees.
        """
        items = list(enumerate(order.providers))
        wrong = loading.wrong(items, self.book.known)
        named = {provider.id for provider in order.providers} | {
            provider.parent for provider in order.providers if provider.parent
        }
        async with self.database.read_single() as tx:
            homes = await tree_reads.homes(tx, named)
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

    async def _load_together(self, grown: Sequence[Sequence[loading.Item]]) -> list[LoadResult]:
        now = self.clock.now()
        items: list[ProviderLoad] = [load for tree in grown for _, load in tree]
        await self.book.know_contents(self.database, items, now)
        named = {item.id: None for item in items} | {item.parent: None for item in items if item.parent}
        async with self._numbers.taken(len(items)) as numbers, changing(self.database, self.book) as tx:
            found = await tree_reads.look(tx, self.book, list(named), [item.name for item in items])
            read = await tree_reads.read_locked(tx, self.book, [one for one in named if one in found.ids])
            working = WorkingTrees(found.owned | read, found.names, found.ids, found.number)
            if len(found.ids) != sum(one in working.homes for one in named):
                raise Conflict("a provider went while it was being looked for")
            results = list(chain.from_iterable(loading.load(tree, working) for tree in grown))
            pairs = working.changed()
            if pairs:
                await self._log.write_trees(tx, pairs, now, numbers)
        return results
