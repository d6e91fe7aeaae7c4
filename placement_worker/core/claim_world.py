"""The data that claims and releases are judged by, first as read, then as changed.

Rooms are providers with their inventories, holders are consumers with their allocations.
"""

from dataclasses import dataclass, field

from bus.claims import CLEANUP, ConsumerClaim, Held, Retired
from bus.vocabulary import Allocations
from placement_worker.core.cell_limits import CellLimits
from placement_worker.core.server_groups import GroupPlaces


@dataclass(slots=True)
class Stock:
    """The inventory and usage of one class at a provider."""

    class_id: int
    capacity: int
    used: int
    was: int  # what was used when it was read
    min_unit: int
    max_unit: int
    step_size: int


@dataclass(slots=True)
class ClaimedProvider:
    """A provider as claims see it."""

    id: int
    uuid: str
    root: str
    shape: int
    generation: int
    was: int  # its generation when it was read
    stocks: dict[str, Stock] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()  # siblings that must be unused while this provider is claimed

    @property
    def in_use(self) -> bool:
        return any(stock.used for stock in self.stocks.values())


@dataclass(slots=True)
class Holder:
    """A consumer; without allocations its `generation` is 0."""

    uuid: str
    id: int
    generation: int = 0
    held: Allocations = field(default_factory=dict)
    by: ConsumerClaim | None = None  # the claim that gave it what it holds now
    heir_of: "Holder | None" = None  # consumer that it took allocations over from; same project and user
    heir_type: str = CLEANUP  # and of this type
    keeps_for: str | None = None  # consumer with a guest that may still use the held allocations
    group: int | None = None  # the number of its server group, which may have been dropped since
    group_was: int | None = None  # when it was read


@dataclass(slots=True)
class ClaimWorld:
    """The data as read, then as changed. A missing provider has no state."""

    providers: dict[str, ClaimedProvider | None]
    holders: dict[str, Holder]
    retired: dict[str, Retired]
    groups: dict[int, GroupPlaces] = field(
        default_factory=dict
    )  # that claims name, or their consumers are in
    named: dict[str, int] = field(default_factory=dict)  # named groups → their numbers
    sharing: set[str] = field(default_factory=set)  # providers that share with other trees; read with groups
    # restrictions of the asking cell; empty if an operator or the scheduler asks
    wall: CellLimits | None = None
    touched: dict[str, ClaimedProvider] = field(
        default_factory=dict
    )  # providers with a changed usage or generation
    stirred: dict[str, Holder] = field(default_factory=dict)  # consumers that claimed or released
    tombstones: dict[str, Retired] = field(default_factory=dict)  # consumers to be retired
    woken: set[str] = field(default_factory=set)  # shelved consumers whose tombstone is deleted

    def provider(self, uuid: str) -> ClaimedProvider:
        provider = self.providers[uuid]
        assert provider is not None  # it has been claimed from, or holds something
        return provider

    def holds(self, consumer: str) -> bool:
        holder = self.holders.get(consumer)
        return holder is not None and bool(holder.held)

    def retire(self, consumer: str, ended: Retired) -> None:
        self.retired[consumer] = self.tombstones[consumer] = ended

    def wake(self, consumer: str) -> None:
        del self.retired[consumer]
        self.tombstones.pop(consumer, None)
        self.woken.add(consumer)


class Unread(Exception):
    """The world holds no answer: something that matters was not read."""


def as_held(holder: Holder, world: ClaimWorld) -> Held:
    """Return the consumer's state, for a caller that expected another generation."""
    held = [world.providers.get(uuid) for uuid in holder.held]
    roots = {provider.root for provider in held if provider is not None}
    return Held(generation=holder.generation, allocations=holder.held, roots=tuple(sorted(roots)))
