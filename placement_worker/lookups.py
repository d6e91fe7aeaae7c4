"""Answers queries from placement's database; each answer shows one consistent state of the database."""

from dataclasses import dataclass

from bus.replication import ChangesFound, FindChanges, FindTrees, TreesFound
from bus.requests import ResourceGroup
from bus.resources import (
    AllocationsFound,
    Consumer,
    FindAllocations,
    FindProviders,
    FindUsages,
    Provider,
    ProvidersFound,
    UsagesFound,
)
from bus.sql.statement import Transaction
from bus.vocabulary import MAX_INT
from placement_worker.core.trees import ROOM, Packing
from placement_worker.store import changes, lookups, stored_trees
from placement_worker.store.hosts import limits, with_labels
from placement_worker.transactions import PlacementOperations

UNKNOWN = "unknown"  # the reported type of consumers without one


@dataclass(eq=False)
class Lookups(PlacementOperations):
    protecting: tuple[str, ...]  # columns of consumers whose values protect from preemption
    objects: tuple[tuple[str, str], ...]  # tables of objects of features, with the SQL of their projects

    async def providers(self, query: FindProviders, *, cell: str = "") -> ProvidersFound:
        """Return the providers that a query selects; if `cell` is not empty, only providers of hosts of this
        cell.
        """
        if query.like is not None:
            await self._learn_names(query.like)
        simple = query.like is None and (query.in_tree is None or not (query.ids or query.name))
        simple = simple and "labels" not in query.parts
        # A query that needs only one statement runs outside a transaction; unknown names are read afterwards.
        async with self.database.read_single() if simple else self.database.read() as tx:
            return ProvidersFound(providers=tuple(await self._providers(tx, query, cell)))

    async def _providers(self, tx: Transaction, query: FindProviders, cell: str) -> list[Provider]:
        like = query.like or ResourceGroup()
        in_trees = {tree for tree in (query.in_tree, like.in_tree) if tree is not None}
        roots: set[str] = set()
        if len(in_trees) > 1 or (in_trees and (query.ids or query.name)):
            homes = await stored_trees.homes(tx, in_trees)
            roots = set(homes.values())
            if len(homes) < len(in_trees) or len(roots) > 1:
                return []
        numbers = await lookups.matching(tx, self.book, like)
        if numbers is not None and not numbers:
            return []
        leave = await lookups.shunned(tx, self.book, like)
        found = await self._first(tx, query, in_trees, None if numbers is None else numbers - leave, cell)
        met = [
            provider
            for number, provider in found
            if (numbers is None or number in numbers)
            and number not in leave
            and (not query.name or provider.name == query.name)
            and (not roots or provider.root in roots)
            and (not query.agents or provider.agent in query.agents)
            and (not cell or provider.cell == cell)
        ]
        if not query.limit:
            return met
        behind = (provider for provider in met if provider.id > query.after)
        return sorted(behind, key=lambda provider: provider.id)[: query.limit]

    async def _first(
        self, tx: Transaction, query: FindProviders, in_trees: set[str], numbers: set[int] | None, cell: str
    ) -> list[tuple[int, Provider]]:
        parts = {*query.parts, "owner"} if query.agents or cell else query.parts
        selection, values = lookups.ALL, list[tuple[str | int]]()
        given: dict[str, str | int] = {}
        if query.ids:
            selection, values = lookups.BY_ID, [(uuid,) for uuid in dict.fromkeys(query.ids)]
        elif query.name:
            selection, given = lookups.BY_NAME, {"name": query.name}
        elif in_trees:
            selection, given = lookups.BY_TREE, {"tree": min(in_trees)}
        elif numbers is not None:
            selection, values = lookups.BY_NUMBER, [(number,) for number in numbers]
        elif query.agents:
            selection, values = lookups.BY_AGENT, [(agent,) for agent in dict.fromkeys(query.agents)]
            given = {"cell": cell, "after": "", "most": MAX_INT}
            if query.limit and not query.like:  # `like` removes rows, so then the limit is applied later
                given |= {"after": query.after, "most": query.limit}
        elif cell:
            selection, given = lookups.BY_CELL, {"cell": cell}
        found = await lookups.providers(tx, self.book, selection, parts, values, **given)
        return await with_labels(tx, found) if "labels" in parts else found

    async def _learn_names(self, like: ResourceGroup) -> None:
        book, database = self.book, self.database
        traits = {*like.required, *like.forbidden, *(name for names in like.required_any for name in names)}
        aggregates = {*like.not_member_of, *(name for names in like.member_of for name in names)}
        await book.classes.look_up(database, like.resources)
        await book.traits.look_up(database, traits)
        await book.aggregates.look_up(database, aggregates)

    async def trees(self, query: FindTrees) -> TreesFound:
        """Return whole provider trees, as many as fit into one message: of the roots in the query or, if it
        has none, the next page of all trees.
        """
        packing = Packing(ROOM)
        page = [(0, root) for root in query.roots]
        async with self.database.read() as tx:
            page = page or await stored_trees.roots_after(tx, query.after, query.limit)
            found = await stored_trees.load(tx, self.book, [root for _, root in page])
            history = tx.history
        after: int | None = query.after
        for mark, root in page:
            if not packing.add(found[root], query.skip):
                break
            after = mark
        else:
            after = after if len(page) == query.limit else None
        return packing.answer(more=None if query.roots else after, history=history)

    async def changes(self, query: FindChanges) -> ChangesFound:
        async with self.database.read_single() as tx:
            return await changes.since(tx, query.after, query.limit)

    async def allocations(self, query: FindAllocations, *, cell: str = "") -> AllocationsFound:
        """Return allocations of given consumers or providers. If `cell` is not empty, consumers without
        allocations on hosts of this cell are left out.
        """
        if not query.consumers and not query.providers:
            return AllocationsFound(consumers=(), generations={})
        if cell:
            return await self._allocations_within(query, cell)
        if query.others and query.consumers:
            return await self._allocations_and_others(query)
        async with self.database.read_single() as tx:
            found, generations = await self._allocations(tx, query)
        return AllocationsFound(consumers=tuple(found), generations=generations)

    async def _allocations(
        self, tx: Transaction, query: FindAllocations
    ) -> tuple[list[Consumer], dict[str, int]]:
        consumers, providers = query.consumers, query.providers
        return await lookups.allocations_of(tx, self.book, consumers, providers, self.protecting)

    async def _allocations_and_others(self, query: FindAllocations) -> AllocationsFound:
        async with self.database.read() as tx:
            found, generations = await self._allocations(tx, query)
            objects, retired = await lookups.others(tx, query.consumers, self.objects)
        return AllocationsFound(
            consumers=tuple(found), generations=generations, objects=objects, retired=retired
        )

    async def _allocations_within(self, query: FindAllocations, cell: str) -> AllocationsFound:
        async with self.database.read() as tx:
            found, generations = await self._allocations(tx, query)
            homes = await stored_trees.homes(tx, generations)
            cell_limits = await limits(tx, cell, homes)
        in_cell = [
            consumer
            for consumer in found
            if not cell_limits.bars_holder(consumer.id, [(id_, homes[id_]) for id_ in consumer.allocations])
        ]
        seen = {provider for consumer in in_cell for provider in consumer.allocations}
        return AllocationsFound(
            consumers=tuple(in_cell),
            generations={provider: number for provider, number in generations.items() if provider in seen},
        )

    async def usages(self, query: FindUsages) -> UsagesFound:
        async with self.database.read_single() as tx:
            used, consumers = await lookups.usages(tx, self.book, query.project, query.user)
        return UsagesFound(
            used={kind or UNKNOWN: amounts for kind, amounts in used.items()},
            consumers={kind or UNKNOWN: amount for kind, amount in consumers.items()},
        )
