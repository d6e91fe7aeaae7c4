"""Claims and releases on placement's own rules, with dictionaries in place of its database."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from bus.claims import ClaimAnswered, Claimed, ClaimRequested, ReleaseRequested, ReleaseResult, Retired
from bus.parts import ClaimParts
from bus.vocabulary import Allocations
from placement_worker.core import capacity
from placement_worker.core.capacity import ClaimedProvider, ClaimWorld, Holder, Stock

MUCH = 10**9


class Holding(NamedTuple):
    generation: int
    allocations: Allocations


class ClaimsInMemory:
    def __init__(self) -> None:
        self.held: dict[str, Holding] = {}
        self.retired: dict[str, str] = {}  # consumer → reason
        self.unplaceable: set[str] = set()
        self.ended_in: dict[str, str] = {}  # retired consumer → the cell that retired it
        self.revivable: set[str] = set()
        self.free: dict[str, dict[str, int]] = {}
        self.number = 0

    def free_at(self, root: str) -> Mapping[str, int] | None:
        """Return the free amounts of a provider; None: there is always enough."""
        return self.free.get(root)

    def claim(self, order: ClaimRequested) -> ClaimAnswered:
        self.number += 1
        claims = [replace(claim, parts=ClaimParts()) for claim in order.claims]
        consumers = [c for one in claims for c in (one.consumer, one.keep, one.begins, one.take_over) if c]
        asked = [choice.allocations for claim in claims for choice in claim.choices]
        world = self._world(consumers, asked)
        results = capacity.claim(replace(order, claims=tuple(claims)), world)
        assert results is not None
        self._store(world, [claim.keep for claim in claims])
        return ClaimAnswered(
            results=tuple(replace(r, number=self.number) if isinstance(r, Claimed) else r for r in results)
        )

    def release(self, order: ReleaseRequested) -> ReleaseResult:
        world = self._world([consumer for consumer in (order.consumer, order.keep) if consumer], ())
        result = capacity.release(order, world)
        assert result is not None  # no slot of a reservation must be read first
        self._store(world, [order.keep])
        return result

    def _world(self, consumers: Iterable[str], asked: Iterable[Allocations]) -> ClaimWorld:
        held = {consumer: self.held.get(consumer) or Holding(0, {}) for consumer in consumers}
        used: dict[str, Counter[str]] = defaultdict(Counter)  # provider → what these consumers hold
        for allocations in asked:
            for provider, resources in allocations.items():
                used[provider].update(dict.fromkeys(resources, 0))
        for _, allocations in held.values():
            for provider, resources in allocations.items():
                used[provider].update(resources)
        providers: dict[str, ClaimedProvider | None] = {}
        for uuid, amounts in used.items():
            free = self.free_at(uuid)
            stocks = {
                name: Stock(0, amount + (MUCH if free is None else free.get(name, 0)), amount, 0, 1, MUCH, 1)
                for name, amount in amounts.items()
            }
            providers[uuid] = ClaimedProvider(1, uuid, uuid, 1, 1, 1, stocks)
        holders = {consumer: Holder(consumer, 1, *it) for consumer, it in held.items()}
        ended = {
            one: Retired(
                why=why,
                unplaceable=one in self.unplaceable,
                revivable=one in self.revivable,
                cell=self.ended_in.get(one, ""),
            )
            for one, why in self.retired.items()
        }
        return ClaimWorld(providers, holders, ended)

    def _store(self, world: ClaimWorld, keeps: Iterable[str | None]) -> None:
        for holder in world.changed_holders.values():
            assert holder.uuid not in keeps or holder.generation == 1, "it held something before"
            self.held.pop(holder.uuid, None)
            if holder.held:
                self.held[holder.uuid] = Holding(holder.generation, holder.held)
        for provider in world.touched.values():
            if provider.uuid in self.free:
                left = {name: stock.capacity - stock.used for name, stock in provider.stocks.items()}
                self.free[provider.uuid].update(left)
        for consumer in world.woken:
            del self.retired[consumer]
        self.retired |= {consumer: retired.why for consumer, retired in world.to_retire.items()}
        self.unplaceable |= {consumer for consumer, it in world.to_retire.items() if it.unplaceable}
        self.revivable -= world.to_retire.keys()
        self.revivable |= {consumer for consumer, it in world.to_retire.items() if it.revivable}
