"""Every operation of placement: retry outside, transaction inside. Doors only translate."""

from collections.abc import Mapping, Sequence

from bus.clock import Clock
from bus.errors import Poison
from bus.messages import (
    CandidatesFound,
    ClaimAnswered,
    ClaimRequested,
    FindCandidates,
    PlacementChanged,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.sql.database import Conflict, Database, Transaction, retrying
from bus.sql.statement import BoundStatement
from bus.vocabulary import (
    Claimed,
    ClaimResult,
    ConsumerClaim,
    Contended,
    ProviderChange,
    Released,
    ReleaseResult,
)
from placement_worker.classes_and_traits import ClassesAndTraits
from placement_worker.core import capacity
from placement_worker.core.groups import SenselessQuery
from placement_worker.core.search import page
from placement_worker.core.trees import Tree
from placement_worker.lookups import Lookups
from placement_worker.memory import Memory
from placement_worker.providers import ProviderOperations
from placement_worker.relay import Relay
from placement_worker.store import changes, claims, trees
from placement_worker.store.numbered_names import Book
from placement_worker.transactions import again, changing, portions

CLAIMS_A_TRANSACTION = 500
REMEMBER_SECONDS = 7 * 24 * 3600.0  # how long the retired are refused, and reports of what is gone


class Placement:
    """The truth about resources. Use it on any number of processes: the database keeps them apart."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.book = Book()
        self.memory = Memory(database, self.book)
        self.relay = Relay(database)
        self.providers = ProviderOperations(database, clock, self.book, self._announce, self._learn)
        self.lookups = Lookups(database, self.book)
        self.classes_and_traits = ClassesAndTraits(database, clock, self.book, self._announce)
        self._claim = retrying(clock, otherwise=_contended_claims)(self._claim_together)
        self._release = retrying(clock, otherwise=_contended_releases)(self._release_together)
        self._open = again(clock, self.book.open)

    async def start(self) -> None:
        """Make the standard names and fill the index. The database has been migrated."""
        await self._open(self.database, self.clock.now())
        await self.memory.reload()

    # Candidates

    async def find_candidates(self, query: FindCandidates) -> CandidatesFound:
        try:
            return page(self.memory.index, query)
        except SenselessQuery as wrong:
            raise Poison(str(wrong)) from None

    # Claims

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        """Judged in turn, many to a transaction; the claims of one order are taken together or not at all."""
        results: list[tuple[ClaimResult, ...]] = []
        for part in portions(orders, lambda order: len(order.claims), CLAIMS_A_TRANSACTION):
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
                if one.generation is None or not one.fenced:
                    newcomers.setdefault(one.consumer, one)
                else:
                    others.add(one.consumer)
        now = self.clock.now()
        await self.book.know_owners(self.database, [one for order in orders for one in order.claims], now)
        providers = capacity.providers_of(orders, all_choices=all_choices)
        async with changing(self.database, self.book) as tx:
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
        async with changing(self.database, self.book) as tx:
            opened = await claims.open_world(tx, self.book, newcomers, others, (), now)
            results = [capacity.release(order, opened.world) for order in orders]
            number = await self._save(tx, opened, now)
        return [
            Released(number=number)
            if isinstance(one, Released) and order.consumer in opened.world.stirred
            else one
            for order, one in zip(orders, results, strict=True)
        ]

    async def _save(self, tx: Transaction, opened: claims.Opened, now: float) -> int:
        altered, writes = await claims.save_world(tx, self.book, opened, now)
        return await self._announce(tx, altered, {}, writes)

    # Upkeep

    async def prune(self) -> None:
        """Forget the retired and the gone of long ago."""
        before = self.clock.now() - REMEMBER_SECONDS
        async with self.database.write() as tx:
            await claims.prune_retired(tx, before)
            await trees.prune_hosts(tx, before)

    async def trim(self) -> None:
        """Forget the changes of long ago."""
        async with self.database.write() as tx:
            await changes.trim(tx)

    async def _announce(
        self,
        tx: Transaction,
        altered: Sequence[ProviderChange],
        shaped: Mapping[str, Tree],
        writes: Sequence[BoundStatement] = (),
        edition: int | None = None,
    ) -> int:
        """Do these last writes; tell the world and, once committed, our index. Gives the commit's number.

        `edition` is that of names, where this commit makes a new one.
        """
        if not altered:
            for write in writes:
                await write(tx)
            return 0
        messages, now = await changes.announce(tx, altered, writes)
        if now != (self.book.edition if edition is None else edition):
            await self.book.turn_to(tx, now)
            raise Conflict("a class was renamed meanwhile")
        tx.after_commit(lambda: self._learn(messages, shaped))
        return messages[-1].number

    def _learn(self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree]) -> None:
        """What was committed here."""
        self.memory.learn(messages, shaped)
        self.relay.wake()


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
