"""Parts of agents' reports: provider trees with inventories, reshapes, and states of hosts."""

from typing import Annotated

from msgspec import Meta, field

from bus.vocabulary import (
    LONG,
    MAX_INT,
    SHORT,
    Allocations,
    Amount,
    Cause,
    ClassName,
    Compact,
    Count,
    Id,
    LongList,
    Name,
    Number,
    Properties,
    Ratio,
    ShortList,
    SmallMap,
    Text,
    TraitName,
    Value,
    Zone,
    capacity_of,
)

# If siblings have this trait, only one of them can be in use at a time, such as the possible types of a GPU.
EXCLUDES_SIBLINGS = "CUSTOM_EXCLUDES_SIBLINGS"
SHARES = "MISC_SHARES_VIA_AGGREGATE"  # trait of pools, whose aggregates' trees can use them


class Inventory(Value, frozen=True, kw_only=True):
    """The inventory of one resource class of a provider."""

    total: Count
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount = MAX_INT
    step_size: Amount = 1
    allocation_ratio: Ratio = 1.0

    @property
    def capacity(self) -> int:
        """Return how much can be allocated: (total - reserved) × allocation_ratio, rounded down."""
        return capacity_of(self.total, self.reserved, self.allocation_ratio)


class ProviderReport(Value, frozen=True, kw_only=True):
    """One provider of a provider tree that an agent reports."""

    id: Id
    name: Name
    parent: Id | None = None
    inventories: SmallMap[ClassName, Inventory]
    traits: ShortList[TraitName] = ()
    aggregates: ShortList[Id] = ()


class InventoryMove(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An inventory that moves from `provider` to the providers in `to`, with all its allocations."""

    provider: Id
    resource_class: ClassName
    # All allocations of a consumer move to the first of these providers that has free capacity for them.
    to: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=SHORT)]
    becomes: ClassName | None = None  # new resource class, with the same amounts; None: unchanged


class GuestPlace(Compact, frozen=True):
    """In a reshape: a guest's new allocations of the moved inventory, as the agent reports them. They replace
    the allocations of the guest's consumer in placement.
    """

    build: Id
    attempt: Amount  # the guest's attempt; if the build has left it, its holder consumer is moved
    allocations: Allocations


class Reshaping(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The moves of inventory within a provider tree (a reshape), with the allocations that move too."""

    moves: Annotated[tuple[InventoryMove, ...], Meta(min_length=1, max_length=LONG)]
    guests: LongList[GuestPlace] = ()


class HostState(Value, frozen=True, kw_only=True):
    """Facts about a host that only its agent knows, such as its load. Placement does not store them."""

    root: Id
    host: Name
    enabled: bool = True
    why_disabled: Cause = ""
    zone: Zone = ""
    building: Count = 0
    load: Number = 0.0
    metrics: SmallMap[Text, Number] = field(default_factory=dict)
    instances: Count = 0
    forced_down: bool = False  # set by an operator
    images: ShortList[Text] = ()  # names of cached images
    # NAME=VALUE of an image property → number of instances with this property
    image_properties: SmallMap[Cause, Count] = field(default_factory=dict)
    architecture: Text = ""
    hypervisor: Text = ""  # hypervisor type
    hypervisor_version: Count = 0
    vm_modes: ShortList[Text] = ()
    # kinds of guests, as architecture/hypervisor/VM mode; empty: any combination of the three fields above
    guest_kinds: ShortList[Text] = ()
    ip: Text = ""
    # further properties, matched by extra specs
    capabilities: Properties = field(default_factory=dict)
    driver: Text = ""  # the driver that runs the guests: simulated, ironic, or an operator's module:Class
    agent_version: Text = ""
    moves: ShortList[Text] = ()  # the kinds of moves that the driver supports
