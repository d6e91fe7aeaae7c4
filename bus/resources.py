"""What can be asked of placement about its providers and what is held of them: views, edits, outcomes."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from bus.claims import ClaimResult, ConsumerClaim
from bus.not_done import Contended, InUse, Missing, Taken
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import (
    LONG,
    Allocations,
    Cause,
    ClassName,
    Count,
    Id,
    KeystoneId,
    LargeMap,
    LongList,
    Message,
    Name,
    Number,
    Ordinal,
    ShortList,
    SmallMap,
    Tagged,
    Text,
    TraitName,
    Value,
    Whole,
    Word,
)

Inventories = SmallMap[ClassName, Inventory]


# Views: what is


class Provider(Value, frozen=True, kw_only=True):
    """A provider as it stands. What was not asked for is empty."""

    id: Text
    name: Text
    parent: Text | None
    root: Text
    generation: Whole
    inventories: LargeMap[Text, Inventory] = field(default_factory=dict)
    used: LargeMap[Text, Whole] = field(default_factory=dict)  # of every class it has inventory of
    traits: LongList[Text] = ()  # in the order of their numbers: standard ones first, as aggregates are
    aggregates: LongList[Text] = ()
    updated: Number = 0.0  # seconds since the epoch; the newest of itself and what was read of it
    # part `owner`: who reports its tree; empty when nobody does
    cell: Text = ""
    agent: Text = ""
    zone: Text = ""
    host: Text = ""  # what the owner calls the tree: builds are ordered under this name
    sequence: Whole = -1  # of the last report
    gone: bool = False  # the owner said so; it stays while somebody holds something of it
    # part `owner`, of the other parts: what no report put there, and none takes away
    kept_classes: LongList[Text] = ()
    kept_traits: LongList[Text] = ()
    kept_aggregates: LongList[Text] = ()


class Consumer(Value, frozen=True, kw_only=True):
    """Who holds something, and what of which provider."""

    id: Text
    generation: Whole
    project: Text
    user: Text
    type: Text | None  # None: written before there were types
    allocations: Allocations
    updated: Number = 0.0
    client: bool = False  # a client of the API claimed for it, and nobody of berth's since


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
    traits: ShortList[TraitName]
    generation: Ordinal | None = None


class SetAggregates(Tagged, frozen=True, kw_only=True):
    """With a generation it always moves; without one it is neither asked for nor moved."""

    provider: Id
    aggregates: ShortList[Id]
    generation: Ordinal | None = None


class Reshape(Tagged, frozen=True, kw_only=True):
    """Move inventories between providers with what is held of them: all of it or nothing."""

    inventories: Annotated[tuple[SetInventories, ...], Meta(min_length=1, max_length=LONG)]
    claims: LongList[ConsumerClaim] = ()


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
    number: Whole = 0  # the change that made it so; 0: nothing had to change


class Stale(Tagged, frozen=True, kw_only=True):
    """Somebody else changed the provider since."""

    provider: Text
    actual: Whole
    given: Whole


class HasChildren(Tagged, frozen=True, kw_only=True):
    provider: Text


class Tangled(Tagged, frozen=True, kw_only=True):
    """The tree cannot be that way."""

    why: Literal["itself", "loop", "re-parenting", "un-parenting"]
    provider: Text
    parent: Text | None


class Denied(Tagged, frozen=True, kw_only=True):
    """A reshape whose claims could not be had: one result for each."""

    results: LongList[ClaimResult]


EditResult = Edited | Missing | Stale | Taken | InUse | HasChildren | Tangled | Denied | Contended


# Whose a root is


class OwnerGiven(Tagged, frozen=True, kw_only=True):
    """It is as the operator said; and who had it before."""

    cell: Text
    agent: Text
    sequence: Whole
    number: Whole = 0  # the change that made it so; 0: it has no providers now


OwnerResult = OwnerGiven | Missing | Contended


# Bulk


class ProviderLoad(Value, frozen=True, kw_only=True):
    """Make this provider what is written here; with a generation, only if it still has that one.

    What is not named stays as it is: the parent, traits, aggregates.
    """

    id: Id
    name: Name
    parent: Id | UnsetType | None = UNSET
    inventories: Inventories
    traits: ShortList[TraitName] | UnsetType = UNSET
    aggregates: ShortList[Id] | UnsetType = UNSET
    generation: Ordinal | None = None


class LoadResult(Value, frozen=True, kw_only=True):
    provider: Text
    did: Literal["made", "changed", "nothing", "refused"]
    generation: Whole = 0
    why: Cause = ""  # refused: the field and what is wrong with it


# Questions and answers


class FindProviders(Message, frozen=True, kw_only=True):
    """Providers that meet all of this, each by itself. Without any of it: all."""

    ids: LongList[Id] = ()
    name: Text = ""
    in_tree: Id | None = None
    like: ResourceGroup | None = None  # resources it could give now, traits, aggregates
    parts: LongList[Literal["inventories", "traits", "aggregates", "owner"]] = (
        "inventories",
        "traits",
        "aggregates",
    )
    agents: LongList[Word] = ()  # of trees that one of these reports
    after: Text = ""  # with a limit: in the order of their ids, those behind this one
    limit: Count = 0  # 0: all of them, which must fit into one message
    cell: Text = ""  # that asks; empty: it is not asked from within one


class ProvidersFound(Message, frozen=True, kw_only=True):
    providers: LongList[Provider]


class EditRequested(Message, frozen=True, kw_only=True):
    edit: Edit


class EditAnswered(Message, frozen=True, kw_only=True):
    result: EditResult


class OwnerEditRequested(Message, frozen=True, kw_only=True):
    """A root belongs to this cell from now on, whoever has it, and its next report counts whatever its
    sequence: what undoes a report that never should have been believed."""

    root: Id
    cell: Word


class OwnerEditAnswered(Message, frozen=True, kw_only=True):
    result: OwnerResult


class LoadProviders(Message, frozen=True, kw_only=True):
    """Make or change all these, parents before children. Each tree is taken as a whole or refused with why.

    Classes, traits and aggregates nobody knew are made; providers that are not named stay as they are.
    """

    providers: Annotated[tuple[ProviderLoad, ...], Meta(min_length=1, max_length=20_000)]


class ProvidersLoaded(Message, frozen=True, kw_only=True):
    results: LongList[LoadResult]  # one for each, in order


class FindAllocations(Message, frozen=True, kw_only=True):
    """What these consumers hold, or who holds what of these providers (then only that is told)."""

    consumers: LongList[Id] = ()
    providers: LongList[Id] = ()
    cell: Text = ""  # that asks; empty: it is not asked from within one


class AllocationsFound(Message, frozen=True, kw_only=True):
    consumers: LongList[Consumer]  # those who hold something
    generations: LargeMap[Text, Whole]  # of every provider that is named


class FindUsages(Message, frozen=True, kw_only=True):
    """What a project uses in all, by consumer type; None counts as `unknown`."""

    project: KeystoneId
    user: Text = ""


class UsagesFound(Message, frozen=True, kw_only=True):
    used: LargeMap[Text, LargeMap[Text, Whole]]  # type → class → amount
    consumers: LargeMap[Text, Whole]  # type → how many
