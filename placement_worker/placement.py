"""Every operation of placement: retry outside, transaction inside. Doors only translate."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import IntegrityError

from bus.clock import Clock
from bus.database import Conflict, Database, Transaction, retrying
from bus.messages import (
    CandidatesFound,
    ClaimAnswered,
    ClaimRequested,
    FindCandidates,
    InventoryReported,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.protocol import Poison, Unavailable
from bus.vocabulary import (
    Claimed,
    ClaimResult,
    ConsumerClaim,
    Contended,
    ProviderChange,
    Released,
    ReleaseResult,
)
from placement_worker.core import capacity
from placement_worker.core.search import search
from placement_worker.core.trees import Tree, complaint, reported, swept
from placement_worker.memory import Memory
from placement_worker.store import changes, claims, reshape, trees
from placement_worker.store.names import Book

P = ParamSpec("P")
T = TypeVar("T")

CLAIMS_A_TRANSACTION = 500
PROVIDERS_A_TRANSACTION = 2000
REMEMBER_SECONDS = 7 * 24 * 3600.0  # how long the retired are refused, and reports of what is gone


class Placement:
    """The truth about resources. Use it on any number of processes: the database keeps them apart."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.book = Book()
        self.memory = Memory(database, self.book)
        self._claim = retrying(clock, otherwise=_contended_claims)(self._claim_together)
        self._release = retrying(clock, otherwise=_contended_releases)(self._release_together)
        self._report = _again(clock, self._report_together)
        self._sweep = _again(clock, self._sweep_together)
        self._open = _again(clock, self.book.open)

    async def start(self) -> None:
        """Make the standard names and fill the index. The database has been migrated."""
        await self._open(self.database, self.clock.now())
        await self.memory.reload()

    # Candidates

    async def find_candidates(self, query: FindCandidates) -> CandidatesFound:
        return search(self.memory.index, query)

    # Claims

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        """Judged in turn, many to a transaction; the claims of one order are taken together or not at all."""
        results: list[tuple[ClaimResult, ...]] = []
        for part in _portions(orders, lambda order: len(order.claims), CLAIMS_A_TRANSACTION):
            results += await self._claim_part(part)
        return [ClaimAnswered(results=one) for one in results]

    async def _claim_part(self, orders: Sequence[ClaimRequested]) -> list[tuple[ClaimResult, ...]]:
        # First choices nearly always do: only their providers are locked, and who needs more comes again.
        first = await self._claim(orders, all_choices=False)
        waiting = [order for order, result in zip(orders, first, strict=True) if result is None]
        second = iter(await self._claim(waiting, all_choices=True) if waiting else ())
        results = []
        for order, result in zip(orders, first, strict=True):
            judged = result if result is not None else next(second)
            results.append(judged if judged is not None else _contended(order))
        return results

    async def _claim_together(
        self, orders: Sequence[ClaimRequested], *, all_choices: bool = True
    ) -> list[tuple[ClaimResult, ...] | None]:
        newcomers: dict[str, ConsumerClaim | None] = {}
        others = set()
        for order in orders:
            for one in order.claims:
                if one.generation is None:
                    newcomers.setdefault(one.consumer, one)
                else:
                    others.add(one.consumer)
        now = self.clock.now()
        await self._know_owners(orders, now)
        providers = capacity.providers_of(orders, all_choices=all_choices)
        async with self.database.write() as tx:
            opened = await claims.open_world(tx, self.book, newcomers, others, providers, now)
            results = [capacity.claim(order, opened.world) for order in orders]
            number = await self._save(tx, opened, now)
        return [result and _numbered(result, number) for result in results]

    # Releases

    async def release_many(self, orders: Sequence[ReleaseRequested]) -> Sequence[ReleaseAnswered]:
        results: list[ReleaseResult] = []
        for at in range(0, len(orders), CLAIMS_A_TRANSACTION):
            results += await self._release(orders[at : at + CLAIMS_A_TRANSACTION])
        return [ReleaseAnswered(result=one) for one in results]

    async def _release_together(self, orders: Sequence[ReleaseRequested]) -> list[ReleaseResult]:
        # One that is to be retired and holds nothing is kept from claiming until its tombstone is there.
        newcomers: dict[str, ConsumerClaim | None] = {one.consumer: None for one in orders if one.retire}
        others = {one.consumer for one in orders}
        now = self.clock.now()
        async with self.database.write() as tx:
            opened = await claims.open_world(tx, self.book, newcomers, others, (), now)
            results = [capacity.release(order, opened.world) for order in orders]
            number = await self._save(tx, opened, now)
        return [Released(number=number) if isinstance(one, Released) else one for one in results]

    async def _save(self, tx: Transaction, opened: claims.Opened, now: float) -> int:
        return await self._announce(tx, await claims.save_world(tx, self.book, opened, now), {})

    # Inventory

    async def report_inventory_many(self, reports: Sequence[InventoryReported]) -> Sequence[Poison | None]:
        """Take in whole trees. Of one root the highest sequence counts; what is not news changes nothing."""
        complaints = [complaint(report, self.book.known) for report in reports]
        latest: dict[str, int] = {}
        for position, report in enumerate(reports):
            best = latest.get(report.root)
            if not complaints[position] and (best is None or report.sequence > reports[best].sequence):
                latest[report.root] = position
        chosen = [reports[position] for position in latest.values()]
        for part in _portions(chosen, lambda one: len(one.providers), PROVIDERS_A_TRANSACTION):
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

    async def _sweep_together(self) -> None:
        """Remove the trees that are gone and that nobody holds anything of any more."""
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

    async def _know_owners(self, orders: Iterable[ClaimRequested], now: float) -> None:
        wanted = [one for order in orders for one in order.claims]
        book, database = self.book, self.database
        await book.projects.ensure(database, {one.project for one in wanted}, now)
        await book.users.ensure(database, {one.user for one in wanted}, now)
        await book.types.ensure(database, {one.type for one in wanted}, now)

    # Upkeep

    async def sweep(self) -> None:
        await self._sweep()

    async def prune(self) -> None:
        """Forget the retired and the gone of long ago."""
        before = self.clock.now() - REMEMBER_SECONDS
        async with self.database.write() as tx:
            await claims.prune_retired(tx, before)
            await trees.prune_hosts(tx, before)

    async def _announce(
        self, tx: Transaction, altered: Sequence[ProviderChange], shaped: Mapping[str, Tree]
    ) -> int:
        """Tell the world and, once committed, our own index; gives the number of this commit."""
        messages = await changes.announce(tx, altered)
        if not messages:
            return 0
        tx.after_commit(lambda: self.memory.learn(messages, shaped))
        return messages[-1].number


def _again(clock: Clock, work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Retried when it lost a race; one that always loses is put off."""

    def later(*_: P.args, **__: P.kwargs) -> T:
        raise Unavailable("placement lost the same race too often")

    return retrying(clock, otherwise=later)(work)


def _portions(items: Sequence[T], size_of: Callable[[T], int], most: int) -> Iterator[Sequence[T]]:
    """So many at a time that a transaction stays short; one item is never split."""
    begin = size = 0
    for position, item in enumerate(items):
        if size and size + size_of(item) > most:
            yield items[begin:position]
            begin, size = position, 0
        size += size_of(item)
    if begin < len(items):
        yield items[begin:]


def _reshapes(before: Tree, report: InventoryReported) -> bool:
    return reported(before, report).providers != before.providers


def _numbered(results: tuple[ClaimResult, ...], number: int) -> tuple[ClaimResult, ...]:
    return tuple(
        Claimed(choice=one.choice, generation=one.generation, number=number, refused=one.refused)
        if isinstance(one, Claimed)
        else one
        for one in results
    )


def _contended_claims(
    orders: Sequence[ClaimRequested], *, all_choices: bool = True
) -> list[tuple[ClaimResult, ...] | None]:
    return [_contended(order) for order in orders]


def _contended(order: ClaimRequested) -> tuple[ClaimResult, ...]:
    return tuple(Contended() for _ in order.claims)


def _contended_releases(orders: Sequence[ReleaseRequested]) -> list[ReleaseResult]:
    return [Contended() for _ in orders]
