"""Providers and their trees: what owners report, what clients edit, what is loaded in bulk."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from sqlalchemy.exc import IntegrityError

from bus.clock import Clock, monotonic
from bus.errors import Poison
from bus.messages import (
    EditAnswered,
    EditRequested,
    InventoryReported,
    LoadProviders,
    PlacementChanged,
    ProvidersLoaded,
)
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    Edit,
    Edited,
    EditResult,
    LoadResult,
    MakeProvider,
    Provider,
    ProviderLoad,
    Reshape,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
)
from bus.sql.database import Conflict, Database, Transaction, retrying
from bus.sql.statement import BoundStatement
from bus.vocabulary import Contended, ProviderChange
from placement_worker.core import bulk_load, edits
from placement_worker.core.edits import EditOfOne
from placement_worker.core.forest import Forest, KnownNames
from placement_worker.core.trees import ProviderState, Tree, complaint, reported, swept
from placement_worker.store import changes, reshape, tree_writes, trees
from placement_worker.store.numbered_names import Book
from placement_worker.store.numbers import ProviderNumbers
from placement_worker.transactions import again, changing, portions

PROVIDERS_A_TRANSACTION = 2000
EDITS_A_TRANSACTION = 200
LOADS_AT_ONCE = 2  # one is judged while the database writes another
SHORTEST_UNREST, LONGEST_UNREST = 0.1, 10.0  # after an edit was disturbed, before one goes unlocked again


class Announce(Protocol):
    """Do these last writes; tell the world and, once committed, our index. Gives the commit's number."""

    async def __call__(
        self,
        tx: Transaction,
        altered: Sequence[ProviderChange],
        shaped: Mapping[str, Tree],
        writes: Sequence[BoundStatement] = (),
        edition: int | None = None,
    ) -> int: ...


class _Outcome(NamedTuple):
    """Of one edit: is it news; the provider as it is, none when it went, or why not; and how it is shown."""

    news: bool
    state: ProviderState | edits.Refused | None
    view: Provider | None


class ProviderOperations:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        book: Book,
        announce: Announce,
        learn: Callable[[Sequence[PlacementChanged], Mapping[str, Tree]], None],
    ) -> None:
        self.database = database
        self.clock = clock
        self.book = book
        self.numbers = ProviderNumbers(database)
        self._announce = announce
        self._learn = learn
        self._calm_at = 0.0  # when an edit goes unlocked again
        self._unrest = 0.0  # for so long it did not, the last time
        self._report = again(clock, self._report_together)
        self._sweep = again(clock, self._sweep_together)
        self._edit = retrying(clock, otherwise=_contended_edits)(self._edit_together)
        self._reshape = retrying(clock, otherwise=_contended_reshape)(self._reshape_once)
        self._load = again(clock, self._load_together)

    # Reports

    async def report_many(self, reports: Sequence[InventoryReported]) -> Sequence[Poison | None]:
        """Take in whole trees. Of one root the highest sequence counts; what is not news changes nothing."""
        complaints = [complaint(report, self.book.known) for report in reports]
        latest: dict[str, int] = {}
        for position, report in enumerate(reports):
            best = latest.get(report.root)
            if not complaints[position] and (best is None or report.sequence > reports[best].sequence):
                latest[report.root] = position
        chosen = [reports[position] for position in latest.values()]
        for part in portions(chosen, lambda one: len(one.providers), PROVIDERS_A_TRANSACTION):
            for root, why in (await self._report(part)).items():
                complaints[latest[root]] = why
        return [Poison(f"InventoryReported: {why}") if why else None for why in complaints]

    async def _report_together(self, reports: Sequence[InventoryReported]) -> dict[str, str]:
        """Root → why its report cannot be."""
        roots = [report.root for report in reports]
        now = self.clock.now()
        await self.book.know_contents(self.database, [one for each in reports for one in each.providers], now)
        new = sum(len(report.providers) for report in reports)
        async with self.numbers.taken(new) as numbers, changing(self.database, self.book) as tx:
            await trees.enter(tx, roots, now)
            owned = (await trees.look(tx, self.book, roots)).owned
            before = owned | await trees.read(tx, self.book, roots)
            moving = [one.root for one in reports if _reshapes(before[one.root], one)]
            number = 0
            if moving:  # what is to be changed is locked, and read again under the lock
                locked = await trees.read_locked(tx, self.book, moving)
                before |= {root: locked.get(root) or owned[root] for root in moving}
                number = await changes.last_number(tx)
            news = [one for one in reports if one.sequence > before[one.root].sequence]
            pairs = [(before[one.root], one, reported(before[one.root], one, number)) for one in news]
            clashing = await trees.clashes(tx, pairs)
            if clashing:
                await trees.leave(tx, clashing)
            sound = [(was, then) for was, _, then in pairs if then.root not in clashing]
            await self._save_owned(tx, sound, now, numbers)
        return clashing

    async def sweep(self) -> None:
        """Remove the trees that are gone and that nobody holds anything of any more."""
        await self._sweep()

    async def _sweep_together(self) -> None:
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            roots = await trees.leftovers(tx)
            if not roots:
                return
            await trees.enter(tx, roots, now)
            before = await trees.read_locked(tx, self.book, roots)
            await self._save_owned(tx, [(was, swept(was)) for was in before.values() if was.gone], now)

    async def _save_owned(
        self,
        tx: Transaction,
        pairs: Sequence[tuple[Tree, Tree]],
        now: float,
        numbers: Iterator[int] = tree_writes.NONE_NEW,
    ) -> None:
        news = [(was, then) for was, then in pairs if then != was]
        if news:
            await trees.save_hosts(tx, [then for _, then in news], now)
            await self._save(tx, news, now, numbers)

    # Edits

    async def edit(self, order: EditRequested) -> EditAnswered:
        [answer] = await self.edit_many([order])
        return answer

    async def edit_many(self, orders: Sequence[EditRequested]) -> Sequence[EditAnswered]:
        """Judged in turn, many to a transaction; one that is refused changes nothing."""
        results: list[EditResult] = []
        for part in _apart([order.edit for order in orders]):
            if isinstance(part, Reshape):
                results.append(await self._reshape(part))
            else:
                results += await self._edit(part)
        return [EditAnswered(result=one) for one in results]

    async def _edit_together(self, orders: Sequence[EditOfOne]) -> list[EditResult]:
        now = self.clock.now()
        await self._look_up(orders, now)
        if len(orders) == 1 and (done := await self._edit_undisturbed(orders[0], now)) is not None:
            return done
        new = sum(isinstance(order, MakeProvider) for order in orders)
        async with self.numbers.taken(new) as numbers, changing(self.database, self.book) as tx:
            forest = await self._forest(tx, orders)
            outcomes = self._judged(orders, forest, now)
            pairs = forest.changed()
            number = await self._save(tx, pairs, now, numbers) if pairs else 0
        return _told(outcomes, number)

    async def _edit_undisturbed(self, order: EditOfOne, now: float) -> list[EditResult] | None:
        """In two round trips instead of six, when nothing else is committed between them; None when it is."""
        if self.database.dialect == "sqlite" or monotonic() < self._calm_at:
            return None
        new = isinstance(order, MakeProvider)
        async with self.numbers.taken(new) as numbers, self.database.glance() as tx:
            forest = await self._forest(tx, [order], locking=False)
            outcomes = self._judged([order], forest, now)
            pairs = forest.changed()
            if not pairs:
                return _told(outcomes, 0)
            writes = tree_writes.writes_between(self.book, pairs, now, numbers)
            altered = trees.changes_between(pairs)
            if writes.first or len(altered) > changes.CHANGES_A_MESSAGE:
                return None
            there = [one.id for before, _ in pairs for one in before.providers]
            seen = changes.ReadVersions(
                forest.number, self.book.edition, there, writes.classes, writes.traits
            )
            last = (*writes.stocks, *writes.last)
            try:
                message = await changes.announce_undisturbed(tx, altered, last, seen)
            except (IntegrityError, Conflict):
                self._unrest = min(max(2 * self._unrest, SHORTEST_UNREST), LONGEST_UNREST)
                self._calm_at = monotonic() + self._unrest
                return None
            self._unrest = 0.0
            self._learn([message], {then.root: then for _, then in pairs})
        return _told(outcomes, message.number)

    def _judged(self, orders: Sequence[EditOfOne], forest: Forest, now: float) -> list[_Outcome]:
        known = self._known()
        outcomes = []
        for order in orders:
            before = forest.find(order.provider)
            state = edits.apply(order, forest, known)
            view = None
            if isinstance(state, ProviderState):
                view = self._view(state, forest.homes[state.uuid], now)
            outcomes.append(_Outcome(before is not state, state, view))
        return outcomes

    async def _forest(self, tx: Transaction, orders: Sequence[EditOfOne], *, locking: bool = True) -> Forest:
        """All that these edits concern: trees that may change, locked; ids and names that may be taken.

        Not locked, it is at least as new as its number says.
        """
        placing = [order for order in orders if isinstance(order, MakeProvider | ChangeProvider)]
        wanted = [order.provider for order in orders if not isinstance(order, MakeProvider)]
        wanted += [order.parent for order in placing if isinstance(order.parent, str)]
        if locking:
            read, number = await trees.read_locked(tx, self.book, wanted), 0
        else:
            read, number = await trees.read_at(tx, self.book, wanted)
        if not placing:
            return Forest(read, number=number)
        found = await trees.look(
            tx, self.book, [order.provider for order in placing], [order.name for order in placing]
        )
        return Forest(found.owned | read, found.names, found.ids, number or found.number)

    async def _look_up(self, orders: Sequence[EditOfOne], now: float) -> None:
        """Classes and traits must be there; aggregates are made by being named."""
        classes: set[str] = set()
        traits: set[str] = set()
        aggregates: set[str] = set()
        for order in orders:
            match order:
                case SetInventories(inventories=inventories):
                    classes.update(inventories)
                case AddInventory() | SetInventory() | DropInventory():
                    classes.add(order.resource_class)
                case SetTraits():
                    traits.update(order.traits)
                case SetAggregates():
                    aggregates.update(order.aggregates)
                case _:
                    pass
        await self.book.classes.look_up(self.database, classes)
        await self.book.traits.look_up(self.database, traits)
        await self.book.aggregates.ensure(self.database, aggregates, now)

    async def _reshape_once(self, order: Reshape) -> EditResult:
        now = self.clock.now()
        await self.book.know_owners(self.database, order.claims, now)
        await self.book.classes.look_up(
            self.database, {name for one in order.inventories for name in one.inventories}
        )
        try:
            async with changing(self.database, self.book) as tx:
                moved = await reshape.reshape(tx, self.book, self._known(), order, now)
                number = await self._announce(tx, moved.changes, moved.shaped, moved.writes)
        except reshape.Undone as undone:
            return undone.why
        return Edited(number=number)

    # Bulk

    async def load(self, order: LoadProviders) -> ProvidersLoaded:
        """Tree by tree, as a whole or not at all; many trees to a transaction."""
        items = list(enumerate(order.providers))
        wrong = bulk_load.wrong(items, self.book.known)
        named = {one.id for one in order.providers} | {one.parent for one in order.providers if one.parent}
        async with self.database.glance() as tx:
            homes = await trees.homes(tx, named)
        results: dict[str, LoadResult] = {}
        sound = []
        for tree in bulk_load.trees_of(items, homes):
            why = next((wrong[position] for position, _ in tree if position in wrong), "")
            if why:
                results.update((one.provider, one) for one in bulk_load.refused(tree, why))
            else:
                sound.append(tree)
        parts = portions(sound, len, PROVIDERS_A_TRANSACTION)

        async def work() -> None:
            for part in parts:
                results.update((one.provider, one) for one in await self._load(part))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(LOADS_AT_ONCE):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return ProvidersLoaded(results=tuple(results[one.id] for one in order.providers))

    async def _load_together(self, grown: Sequence[Sequence[bulk_load.Item]]) -> list[LoadResult]:
        now = self.clock.now()
        items: list[ProviderLoad] = [one for tree in grown for _, one in tree]
        await self.book.know_contents(self.database, items, now)
        named = {one.id: None for one in items} | {one.parent: None for one in items if one.parent}
        async with self.numbers.taken(len(items)) as numbers, changing(self.database, self.book) as tx:
            found = await trees.look(tx, self.book, list(named), [one.name for one in items])
            read = await trees.read_locked(tx, self.book, [one for one in named if one in found.ids])
            forest = Forest(found.owned | read, found.names, found.ids, found.number)
            if len(found.ids) != sum(one in forest.homes for one in named):
                raise Conflict("a provider went while it was being looked for")
            results = list(chain.from_iterable(bulk_load.load(tree, forest) for tree in grown))
            pairs = forest.changed()
            if pairs:
                await self._save(tx, pairs, now, numbers)
        return results

    # All

    async def _save(
        self, tx: Transaction, pairs: Sequence[tuple[Tree, Tree]], now: float, numbers: Iterator[int]
    ) -> int:
        """Write and announce; gives the number of the change, 0 when there is none."""
        writes = await tree_writes.writes_between(self.book, pairs, now, numbers).begin(tx)
        # Those that only repeat themselves were not locked: what they say of usage may be old.
        shaped = {then.root: then for was, then in pairs if then.providers != was.providers}
        return await self._announce(tx, trees.changes_between(pairs), shaped, writes)

    def _known(self) -> KnownNames:
        return KnownNames(self.book.classes.ids, self.book.traits.ids)

    def _view(self, state: ProviderState, root: str, now: float) -> Provider:
        book = self.book
        return Provider(
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


def _told(outcomes: Sequence[_Outcome], number: int) -> list[EditResult]:
    return [
        Edited(provider=one.view, number=number if one.news else 0)
        if one.state is None or isinstance(one.state, ProviderState)
        else one.state
        for one in outcomes
    ]


def _reshapes(before: Tree, report: InventoryReported) -> bool:
    return reported(before, report).providers != before.providers


def _apart(orders: Sequence[Edit]) -> Iterator[Sequence[EditOfOne] | Reshape]:
    """What may share a transaction: no provider is edited twice in one, and a reshape has its own."""
    part: dict[str, EditOfOne] = {}
    for order in orders:
        if part and (
            isinstance(order, Reshape) or order.provider in part or len(part) == EDITS_A_TRANSACTION
        ):
            yield list(part.values())
            part = {}
        if isinstance(order, Reshape):
            yield order
        else:
            part[order.provider] = order
    if part:
        yield list(part.values())


def _contended_edits(orders: Sequence[EditOfOne]) -> list[EditResult]:
    return [Contended() for _ in orders]


def _contended_reshape(order: Reshape) -> EditResult:
    return Contended()
