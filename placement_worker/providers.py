"""Operations that edit providers and reshape provider trees."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from bus import resources
from bus.sql.statement import Transaction
from bus.vocabulary import Missing
from placement_worker.core import edits
from placement_worker.core.edits import EditOfOne, EditOfOneInventory
from placement_worker.core.trees import KnownNames, ProviderState, WorkingTrees
from placement_worker.store import hosts, reshapes, stored_trees
from placement_worker.transactions import PlacementOperations, again, changing, contended, contended_each

EDITS_A_TRANSACTION = 200


class ProviderOperations(PlacementOperations):
    """Edits of single providers by clients and operators, as the Placement API has them."""

    async def edit_many(self, orders: Sequence[resources.EditRequested]) -> Sequence[resources.EditAnswered]:
        """Apply edits of providers in sequence, many in one transaction, and return the result of each; a
        refused edit changes nothing.
        """
        results: list[resources.EditResult] = []
        for part in _apart([order.edit for order in orders]):
            if isinstance(part, resources.Reshape):
                results.append(await self._reshape(part))
            else:
                results += await self._edit(part)
        return [resources.EditAnswered(result=result) for result in results]

    @again(contended_each)
    async def _edit(self, orders: Sequence[EditOfOne]) -> list[resources.EditResult]:
        now = self.clock.now()
        await self._learn_names(orders, now)
        new = sum(isinstance(order, resources.MakeProvider) for order in orders)
        async with self.numbers.taken(new) as numbers, changing(self.database, self.book) as tx:
            working = await self._forest(tx, orders)
            outside = await _outside_their_cell(tx, orders, working)
            judged = [
                (False, Missing(what="provider", names=(order.provider,)))
                if order.provider in outside
                else self._judge(order, working, now)
                for order in orders
            ]
            pairs = working.changed()
            number = await self.log.write_trees(tx, pairs, now, numbers) if pairs else 0
        return [
            structs.replace(result, number=number)
            if changed and isinstance(result, resources.Edited)
            else result
            for changed, result in judged
        ]

    def _judge(
        self, order: EditOfOne, working: WorkingTrees, now: float
    ) -> tuple[bool, resources.EditResult]:
        """Apply an edit to the working trees; return whether it changed something, and the result for the
        client.
        """
        before = working.find(order.provider)
        former = None if before is None else self._view(before, working.homes[before.uuid], 0.0)
        state = edits.apply(order, working, self._known())
        if isinstance(state, ProviderState):
            view = self._view(state, working.homes[state.uuid], now)
            return before is not state, resources.Edited(provider=view, before=former)
        return state is None, resources.Edited(before=former) if state is None else state

    async def _forest(self, tx: Transaction, orders: Sequence[EditOfOne]) -> WorkingTrees:
        """Read and lock the trees that edits of providers concern."""
        placing = [
            each for each in orders if isinstance(each, resources.MakeProvider | resources.ChangeProvider)
        ]
        wanted = [order.provider for order in orders if not isinstance(order, resources.MakeProvider)]
        wanted += [order.parent for order in placing if isinstance(order.parent, str)]
        read = await stored_trees.read_locked(tx, self.book, wanted)
        if not placing:
            return WorkingTrees(read)
        found = await stored_trees.find(
            tx, self.book, [order.provider for order in placing], [order.name for order in placing]
        )
        return WorkingTrees(found.owned | read, found.names, found.ids, found.number)

    async def _learn_names(self, orders: Sequence[EditOfOne], now: float) -> None:
        def named(field: str) -> set[str]:
            return {name for order in orders for name in getattr(order, field, ())}

        classes = {order.resource_class for order in orders if isinstance(order, EditOfOneInventory)}
        await self.book.classes.look_up(self.database, classes | named("inventories"))
        await self.book.traits.look_up(self.database, named("traits"))
        await self.book.aggregates.ensure(self.database, named("aggregates"), now)

    @again(contended)
    async def _reshape(self, order: resources.Reshape) -> resources.EditResult:
        now = self.clock.now()
        await self.book.know_owners(self.database, order.claims, now)
        await self.book.classes.look_up(
            self.database, {name for inventory in order.inventories for name in inventory.inventories}
        )
        try:
            async with changing(self.database, self.book) as tx:
                reshaped = await reshapes.reshape(tx, self.book, self._known(), order, now)
                number = await self.log.write(tx, *reshaped)
        except reshapes.Undone as undone:
            return undone.why
        return resources.Edited(number=number)

    def _known(self) -> KnownNames:
        return KnownNames(self.book.classes.ids, self.book.traits.ids)

    def _view(self, state: ProviderState, root: str, now: float) -> resources.Provider:
        book = self.book
        return resources.Provider(
            id=state.uuid,
            name=state.name,
            parent=state.parent,
            root=root,
            generation=state.generation,
            inventories=state.inventories,
            used=state.used,
            traits=tuple(sorted(state.traits, key=book.traits.ids.__getitem__)),
            aggregates=tuple(sorted(state.aggregates, key=book.aggregates.ids.__getitem__)),
            updated=now,
        )


async def _outside_their_cell(
    tx: Transaction, orders: Sequence[EditOfOne], working: WorkingTrees
) -> set[str]:
    """Return the providers whose edits name another cell than that of their host."""
    limited = {
        order.provider: order.cell
        for order in orders
        if isinstance(order, resources.SetTraits) and order.cell and order.provider in working.homes
    }
    cells = await hosts.cells_of(tx, {working.homes[provider] for provider in limited}) if limited else {}
    return {provider for provider, cell in limited.items() if cells.get(working.homes[provider]) != cell}


def _apart(orders: Sequence[resources.Edit]) -> Iterator[Sequence[EditOfOne] | resources.Reshape]:
    """Divide edits into portions, one for each transaction: a reshape is a portion alone, and no other
    portion has two edits of one provider.
    """
    part: dict[str, EditOfOne] = {}
    for order in orders:
        if part and (
            isinstance(order, resources.Reshape) or order.provider in part or len(part) == EDITS_A_TRANSACTION
        ):
            yield list(part.values())
            part = {}
        if isinstance(order, resources.Reshape):
            yield order
        else:
            part[order.provider] = order
    if part:
        yield list(part.values())
