"""What can be asked of placement about its providers, and what it answers: edits, outcomes, views."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from bus.vocabulary import (
    Allocations,
    Amount,
    ClaimResult,
    ClassName,
    ConsumerClaim,
    Contended,
    GroupPolicy,
    Id,
    Inventory,
    Name,
    Ordinal,
    ServerGroup,
    Tagged,
    TraitName,
    Value,
)

Inventories = dict[ClassName, Inventory]

# Views: what is


class Provider(Value, frozen=True, kw_only=True):
    """A provider as it stands. What was not asked for is empty."""

    id: str
    name: str
    parent: str | None
    root: str
    generation: int
    inventories: dict[str, Inventory] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)  # of every class it has inventory of
    traits: tuple[str, ...] = ()  # in the order of their numbers: standard ones first, as aggregates are
    aggregates: tuple[str, ...] = ()
    updated: float = 0.0  # seconds since the epoch; the newest of itself and what was read of it
    # part `owner`: who reports its tree; empty when nobody does
    cell: str = ""
    agent: str = ""
    zone: str = ""
    host: str = ""  # what the owner calls the tree: builds are ordered under this name
    sequence: int = -1  # of the last report
    gone: bool = False  # the owner said so; it stays while somebody holds something of it
    # part `owner`, of the other parts: what no report put there, and none takes away
    kept_classes: tuple[str, ...] = ()
    kept_traits: tuple[str, ...] = ()
    kept_aggregates: tuple[str, ...] = ()


class Consumer(Value, frozen=True, kw_only=True):
    """Who holds something, and what of which provider."""

    id: str
    generation: int
    project: str
    user: str
    type: str | None  # None: written before there were types
    allocations: Allocations
    updated: float = 0.0


class Named(Value, frozen=True, kw_only=True):
    """A resource class or trait."""

    name: str
    updated: float = 0.0


# Edits: what one client wants changed. `generation` is the one it last saw; None does not ask.


class MakeProvider(Tagged, frozen=True, kw_only=True):
    provider: Id
    name: Name
    parent: Id | None = None


class ChangeProvider(Tagged, frozen=True, kw_only=True):
    """Rename it and, where a parent is named (None: it becomes a root), move it there with all below it."""

    provider: Id
    name: Name
    parent: Id | UnsetType | None = UNSET
    anywhere: bool = True  # False: only a root may be moved, as in the API before 1.37


class DropProvider(Tagged, frozen=True, kw_only=True):
    provider: Id


class SetInventories(Tagged, frozen=True, kw_only=True):
    provider: Id
    inventories: Inventories
    generation: Ordinal | None = None


class AddInventory(Tagged, frozen=True, kw_only=True):
    """One more class; Taken when it has inventory of it already."""

    provider: Id
    resource_class: ClassName
    inventory: Inventory


class SetInventory(Tagged, frozen=True, kw_only=True):
    """Change the inventory of a class it has."""

    provider: Id
    resource_class: ClassName
    inventory: Inventory
    generation: Ordinal | None = None


class DropInventory(Tagged, frozen=True, kw_only=True):
    provider: Id
    resource_class: ClassName


class SetTraits(Tagged, frozen=True, kw_only=True):
    """The generation moves only if the set does."""

    provider: Id
    traits: tuple[TraitName, ...]
    generation: Ordinal | None = None


class SetAggregates(Tagged, frozen=True, kw_only=True):
    """With a generation it always moves; without one it is neither asked for nor moved."""

    provider: Id
    aggregates: tuple[Id, ...]
    generation: Ordinal | None = None


class Reshape(Tagged, frozen=True, kw_only=True):
    """Move inventories between providers with what is held of them: all of it or nothing."""

    inventories: Annotated[tuple[SetInventories, ...], Meta(min_length=1)]
    claims: tuple[ConsumerClaim, ...] = ()


Edit = (
    MakeProvider
    | ChangeProvider
    | DropProvider
    | SetInventories
    | AddInventory
    | SetInventory
    | DropInventory
    | SetTraits
    | SetAggregates
    | Reshape
)

# Outcomes


class Edited(Tagged, frozen=True, kw_only=True):
    """Done; the provider as it is now (None: dropped, or several)."""

    provider: Provider | None = None
    number: int = 0  # the change that made it so; 0: nothing had to change


class Missing(Tagged, frozen=True, kw_only=True):
    """Something that was named does not exist."""

    what: Literal["provider", "parent", "resource class", "trait", "inventory", "aggregate", "host", "cell"]
    names: tuple[str, ...]
    provider: str = ""  # inventory: whose


class Stale(Tagged, frozen=True, kw_only=True):
    """Somebody else changed the provider since."""

    provider: str
    actual: int
    given: int


class Taken(Tagged, frozen=True, kw_only=True):
    what: Literal["name", "id", "inventory", "resource class"]
    value: str


class InUse(Tagged, frozen=True, kw_only=True):
    """Something is held of it; of a provider these classes, in the order of their numbers."""

    what: str  # the provider, class, trait or server group
    classes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # of a server group: some of them


class HasChildren(Tagged, frozen=True, kw_only=True):
    provider: str


class Tangled(Tagged, frozen=True, kw_only=True):
    """The tree cannot be that way."""

    why: Literal["itself", "loop", "re-parenting", "un-parenting"]
    provider: str
    parent: str | None


class Denied(Tagged, frozen=True, kw_only=True):
    """A reshape whose claims could not be had: one result for each."""

    results: tuple[ClaimResult, ...]


class Standard(Tagged, frozen=True, kw_only=True):
    """A standard name, or one that is not of the custom form: it can be neither made, renamed nor dropped."""

    name: str


EditResult = Edited | Missing | Stale | Taken | InUse | HasChildren | Tangled | Denied | Contended

# Whose a root is


class OwnerGiven(Tagged, frozen=True, kw_only=True):
    """It is as the operator said; and who had it before."""

    cell: str
    agent: str
    sequence: int
    number: int = 0  # the change that made it so; 0: it has no providers now


OwnerResult = OwnerGiven | Missing | Contended

# Names


class MakeName(Tagged, frozen=True, kw_only=True):
    name: str


class RenameName(Tagged, frozen=True, kw_only=True):
    name: str
    to: str


class DropName(Tagged, frozen=True, kw_only=True):
    name: str


NameEdit = MakeName | RenameName | DropName


class NameEdited(Tagged, frozen=True, kw_only=True):
    named: Named | None = None
    made: bool = False  # False: it was there already, or is gone now


NameResult = NameEdited | Missing | Taken | InUse | Standard | Contended
NameKind = Literal["resource class", "trait"]

# Server groups: nothing of one changes while it is there


class MakeGroup(Tagged, frozen=True, kw_only=True):
    """Who makes one chooses its id: made twice, it is one. Its name is one of a kind in its project."""

    group: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"


class DropGroup(Tagged, frozen=True, kw_only=True):
    """With `force` while it has members, too: they stay where they are, in no group."""

    group: Id
    force: bool = False


GroupEdit = MakeGroup | DropGroup


class GroupEdited(Tagged, frozen=True, kw_only=True):
    group: ServerGroup | None = None  # None: there is none any more
    changed: bool = False  # False: it was so already


GroupResult = GroupEdited | Taken | InUse | Contended

# Bulk


class ProviderLoad(Value, frozen=True, kw_only=True):
    """Make this provider what is written here; with a generation, only if it still has that one.

    What is not named stays as it is: the parent, traits, aggregates.
    """

    id: Id
    name: Name
    parent: Id | UnsetType | None = UNSET
    inventories: Inventories
    traits: tuple[TraitName, ...] | UnsetType = UNSET
    aggregates: tuple[Id, ...] | UnsetType = UNSET
    generation: Ordinal | None = None


class LoadResult(Value, frozen=True, kw_only=True):
    provider: str
    did: Literal["made", "changed", "nothing", "refused"]
    generation: int = 0
    why: str = ""  # refused: the field and what is wrong with it
