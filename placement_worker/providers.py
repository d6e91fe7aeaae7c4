"""Providers and their trees: what owners report, what clients edit, what is loaded in bulk."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from sqlalchemy.exc import IntegrityError

from bus.clock import Clock
from bus.database import Conflict, Database, Transaction
from bus.messages import InventoryReported
from bus.protocol import Poison
from bus.vocabulary import ProviderChange
from placement_worker.core.trees import Tree, complaint, reported, swept
from placement_worker.store import reshape, trees
from placement_worker.store.names import Book
from placement_worker.transactions import again, portions

PROVIDERS_A_TRANSACTION = 2000


class Announce(Protocol):
    """Tell the world and, once committed, our own index; gives the number of this commit."""

    async def __call__(
        self, tx: Transaction, altered: Sequence[ProviderChange], shaped: Mapping[str, Tree]
    ) -> int: ...


class Providers:
    def __init__(self, database: Database, clock: Clock, book: Book, announce: Announce) -> None:
        self.database = database
        self.clock = clock
        self.book = book
        self._announce = announce
        self._report = again(clock, self._report_together)
        self._sweep = again(clock, self._sweep_together)

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
        await self._know_contents(reports, now)
        async with self._names_may_move(), self.database.write() as tx:
            await trees.enter(tx, roots, now)
            before = await trees.load(tx, self.book, roots)
            changing = [one.root for one in reports if _reshapes(before[one.root], one)]
            if changing:  # what is to be changed is locked, and read again under the lock
                await trees.lock(tx, changing)
                before |= await trees.load(tx, self.book, changing)
            news = [one for one in reports if one.sequence > before[one.root].sequence]
            pairs = [(before[one.root], one, reported(before[one.root], one)) for one in news]
            clashing = await trees.clashes(tx, pairs)
            if clashing:
                await trees.leave(tx, clashing)
            await self._save_trees(
                tx, [(was, then) for was, _, then in pairs if then.root not in clashing], now
            )
        return clashing

    async def sweep(self) -> None:
        """Remove the trees that are gone and that nobody holds anything of any more."""
        await self._sweep()

    async def _sweep_together(self) -> None:
        now = self.clock.now()
        async with self.database.write() as tx:
            roots = await trees.leftovers(tx)
            if not roots:
                return
            await trees.enter(tx, roots, now)
            await trees.lock(tx, roots)
            before = await trees.load(tx, self.book, roots)
            await self._save_trees(tx, [(was, swept(was)) for was in before.values() if was.gone], now)

    async def _save_trees(self, tx: Transaction, pairs: Sequence[tuple[Tree, Tree]], now: float) -> None:
        news = [(was, then) for was, then in pairs if then != was]
        if not news:
            return
        await trees.save_hosts(tx, [then for _, then in news], now)
        await reshape.save_trees(tx, self.book, news, now)
        altered = [change for was, then in news for change in trees.changes_between(was, then)]
        # Those that only repeat themselves were not locked: what they say of usage may be old.
        shaped = {then.root: then for was, then in news if then.providers != was.providers}
        await self._announce(tx, altered, shaped)

    @asynccontextmanager
    async def _names_may_move(self) -> AsyncIterator[None]:
        """Another process may just have taken a provider's name, or removed a class that we remember."""
        try:
            yield
        except IntegrityError as error:
            await self.book.read_again(self.database)
            raise Conflict(str(error.orig)) from error

    async def _know_contents(self, reports: Iterable[InventoryReported], now: float) -> None:
        providers = [provider for report in reports for provider in report.providers]
        book, database = self.book, self.database
        await book.classes.ensure(database, {name for one in providers for name in one.inventories}, now)
        await book.traits.ensure(database, {name for one in providers for name in one.traits}, now)
        await book.aggregates.ensure(database, {uuid for one in providers for uuid in one.aggregates}, now)


def _reshapes(before: Tree, report: InventoryReported) -> bool:
    return reported(before, report).providers != before.providers
