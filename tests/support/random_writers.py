"""Writers that execute random operations on a Placement in two processes, and a check of what they leave."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from berth.operations.audit import placement_breaches
from bus.claims import Choice, Claimed, Held
from bus.clock import Clock
from bus.names import NameEditRequested, RenameName
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.resources import (
    ChangeProvider,
    DropProvider,
    Edit,
    Edited,
    EditRequested,
    FindProviders,
    MakeProvider,
    Provider,
    Reshape,
    SetAggregates,
    SetInventories,
    SetTraits,
)
from placement_worker import Placement
from placement_worker.store import changes
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    gone,
    keeps_its_index,
    seen_by,
)

HOSTS, CONSUMERS, STEPS = 7, 6, 90
TRAITS = ("COMPUTE_NODE", "CUSTOM_GOLD", "CUSTOM_OLD")
GPUS = ("CUSTOM_GPU", "CUSTOM_CARD")  # one class, which is renamed again and again

# change number, provider, generation, and whether the edit must change the generation
Seen = tuple[int, str, int, bool]


class Writer:
    """A client that executes random operations on the Placement of one process."""

    def __init__(self, placement: Placement, seed: int) -> None:
        self.placement = placement
        self.seed = seed
        self.chance = random.Random(seed)
        self.held: dict[int, int | None] = {}
        self.seen: list[Seen] = []
        self.done: Counter[str] = Counter()

    def operations(self) -> list[Callable[[], Awaitable[str]]]:
        return [
            *(self.claim, self.claim, self.claim, self.release, self.restock, self.restock, self.retrait),
            *(self.make, self.make, self.move, self.reshape, self.reshape),
            *(self.drop, self.aggregate, self.rename, self.report),
        ]

    async def live(self) -> None:
        operations = self.operations()
        for _ in range(STEPS):
            deed = self.chance.choice(operations)
            self.done.update(f"{deed.__name__}: {outcome}" for outcome in (await deed()).split(", "))

    def host(self) -> str:
        return uid(self.chance.randrange(HOSTS), "a")

    async def look(self) -> Provider | None:
        found = await self.placement.lookups.providers(FindProviders())
        return self.chance.choice(found.providers) if found.providers else None

    async def edit(self, edit: Edit, *, moves: bool) -> str:
        """Execute an edit, and record the provider's new generation for the check at the end."""
        result = (await self.placement.providers.edit_many([EditRequested(edit=edit)]))[0].result
        if isinstance(result, Edited) and result.provider is not None and result.number:
            view = result.provider
            self.seen.append((result.number, view.id, view.generation, moves))
        return type(result).__name__

    def stock(self, used: Mapping[str, int], *more: str) -> dict[str, Inventory]:
        names = ("VCPU", *used, *more)
        return {name: Inventory(total=max(used.get(name, 0), self.chance.randrange(1, 9))) for name in names}

    # Operations

    async def claim(self) -> str:
        one = self.chance.randrange(CONSUMERS)
        amounts = {"VCPU": self.chance.randrange(1, 4)}
        if self.chance.random() < 0.3:
            amounts[self.chance.choice(GPUS)] = 1
        choices = [Choice({self.host(): amounts}), Choice({self.host(): {"VCPU": 1}})]
        order = an_order(a_claim(self.consumer(one), *choices, generation=self.held.get(one)))
        result = (await self.placement.claims.claim_many([order]))[0].results[0]
        if isinstance(result, Claimed | Held):
            self.held[one] = result.generation or None
        return type(result).__name__

    def consumer(self, one: int) -> int:
        return one if one % 2 else one + 100 * self.seed

    async def release(self) -> str:
        one = self.chance.randrange(CONSUMERS)
        order = a_release(self.consumer(one), self.held.get(one))
        result = (await self.placement.claims.release_many([order]))[0].result
        self.held[one] = result.generation or None if isinstance(result, Held) else None
        return type(result).__name__

    async def make(self) -> str:
        parent = self.host() if self.chance.random() < 0.5 else None
        name = f"name-{self.chance.randrange(HOSTS)}"
        return await self.edit(MakeProvider(provider=self.host(), name=name, parent=parent), moves=False)

    async def drop(self) -> str:
        return await self.edit(DropProvider(provider=self.host()), moves=False)

    async def move(self) -> str:
        """Move a provider to another parent; half of the moves keep the name, so that some succeed always."""
        view = await self.look()
        if view is None:
            return "nobody"
        parent = self.host() if self.chance.random() < 0.7 else None
        name = view.name if self.chance.random() < 0.5 else f"name-{self.chance.randrange(HOSTS)}"
        return await self.edit(ChangeProvider(provider=view.id, name=name, parent=parent), moves=False)

    async def restock(self) -> str:
        """Set inventories only at the generation that was read, so that capacity never falls below usage."""
        view = await self.look()
        if view is None:
            return "nobody"
        more = self.chance.sample(GPUS, self.chance.randrange(2))  # the class may be renamed at this time
        stock = self.stock({name: amount for name, amount in view.used.items() if amount}, *more)
        order = SetInventories(provider=view.id, inventories=stock, generation=view.generation)
        return await self.edit(order, moves=True)

    async def retrait(self) -> str:
        view = await self.look()
        if view is None:
            return "nobody"
        traits = tuple(self.chance.sample(TRAITS, self.chance.randrange(3)))
        generation = view.generation if self.chance.random() < 0.5 else None
        return await self.edit(SetTraits(provider=view.id, traits=traits, generation=generation), moves=True)

    async def aggregate(self) -> str:
        aggregates = tuple(uid(self.chance.randrange(3), "e") for _ in range(self.chance.randrange(3)))
        return await self.edit(SetAggregates(provider=self.host(), aggregates=aggregates), moves=False)

    async def reshape(self) -> str:
        """Move all inventories of one provider to another, with the allocations of one consumer."""
        view, to = await self.look(), await self.look()
        if view is None or to is None or view.id == to.id:
            return "nobody"
        both = {**to.inventories, **view.inventories}
        grown = {
            name: Inventory(total=stock.total + to.used.get(name, 0) + view.used.get(name, 0))
            for name, stock in both.items()
        }
        claims = []
        one = self.chance.randrange(CONSUMERS)
        if self.held.get(one) and "VCPU" in grown:
            claims = [a_claim(self.consumer(one), {to.id: {"VCPU": 1}}, generation=self.held[one])]
        order = Reshape(
            inventories=(
                SetInventories(provider=view.id, inventories={}, generation=view.generation),
                SetInventories(provider=to.id, inventories=grown, generation=to.generation),
            ),
            claims=tuple(claims),
        )
        done = await self.edit(order, moves=True)
        if done == "Edited" and claims:
            self.held[one] = (self.held[one] or 0) + 1
        return done

    async def rename(self) -> str:
        old, new = self.chance.sample(GPUS, 2)
        order = NameEditRequested(kind="resource class", edit=RenameName(name=old, to=new))
        return type((await self.placement.classes_and_traits.edit(order)).result).__name__

    async def report(self) -> str:
        number, sequence = self.chance.randrange(HOSTS), self.chance.randrange(10**6)
        if self.chance.random() < 0.3:
            report = gone(number, sequence)
        else:  # more than the largest possible usage
            report = a_report(number, sequence=sequence, inventories={"VCPU": Inventory(total=1000)})
        return str((await self.placement.reports.report_many([report]))[0] is None)


async def audited(placement: Placement, writers: list[Writer]) -> None:
    living = asyncio.gather(*(writer.live() for writer in writers))
    while not living.done():
        assert await placement_breaches(placement.database) == []
        await asyncio.wait([living], timeout=0.05)
    await living


async def log_of(placement: Placement) -> dict[int, dict[str, ProviderChange]]:
    async with placement.database.read() as tx:
        messages = (await changes.since(tx, 0, 100_000)).changes
    log: dict[int, dict[str, ProviderChange]] = {}
    for message in messages:
        commit = log.setdefault(message.number, {})
        for change in message.changes:
            if not change.gone or change.provider not in commit:
                commit[change.provider] = change
    return log


def generations_never_repeat(log: dict[int, dict[str, ProviderChange]], seen: list[Seen]) -> None:
    moving = {(number, provider): (generation, moves) for number, provider, generation, moves in seen}
    last: dict[str, int] = {}
    for number in sorted(log):
        for provider, change in log[number].items():
            generation, moves = moving.pop((number, provider), (change.generation, False))
            assert generation == change.generation
            if provider in last and not change.gone:
                assert generation > last[provider] if moves else generation >= last[provider]
            last[provider] = change.generation
            if change.gone:
                del last[provider]
    assert moving == {}


MUST_HAPPEN = (
    *(f"{edit}: Edited" for edit in ("make", "move", "restock", "retrait", "aggregate", "reshape")),
    *("restock: Stale", "claim: Claimed", "claim: Refused", "claim: Held", "release: Released"),
    *("rename: NameEdited", "report: True"),
)


async def check_random_writes(
    url: str, placement: Placement, writer_type: type[Writer], must_happen: Sequence[str] = ()
) -> None:
    """Let six writers execute random operations in two processes; check that the tables are consistent, that
    both indexes agree, and that each operation had the results in MUST_HAPPEN and `must_happen`.
    """
    async with a_placement(url, Clock(chance=random.Random(7))) as other:
        for name in GPUS[:1]:
            await placement.book.classes.ensure(placement.database, [name], 0.0)
        writers = [writer_type(one, seed) for seed, one in enumerate((placement, other) * 3)]
        await audited(placement, writers)
        for one in (placement, other):
            await one.memory.fresh()
        assert seen_by(placement) == seen_by(other)
        await keeps_its_index(other)
        seen = [one for writer in writers for one in writer.seen]
        generations_never_repeat(await log_of(placement), seen)
        done = sum((writer.done for writer in writers), Counter[str]())
        assert not [deed for deed in (*MUST_HAPPEN, *must_happen) if not done[deed]], done
