"""Messages that query and edit providers, inventories, allocations and usages in placement, and a
function that says whether a provider is a bare-metal node.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from bus.claims import ClaimResult, ConsumerClaim
from bus.domains import NO_LABELS, HostLabels
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import (
    LONG,
    USER_KIND,
    Allocations,
    CellOrNone,
    ClassName,
    Contended,
    Count,
    Id,
    InstanceId,
    InUse,
    LargeMap,
    LongList,
    Message,
    Missing,
    Name,
    Number,
    Ordinal,
    ProjectId,
    ProviderId,
    ShortList,
    SmallMap,
    Tagged,
    Taken,
    Text,
    TraitName,
    Value,
    Whole,
    Word,
    WordOrNone,
    Zone,
    names,
)

Inventories = SmallMap[ClassName, Inventory]


class Provider(Value, frozen=True, kw_only=True):
    """A resource provider. Parts that the query did not request are empty."""

    id: Text
    name: Text
    parent: Text | None
    root: Text
    generation: Whole
    inventories: LargeMap[Text, Inventory] = field(default_factory=dict)
    used: LargeMap[Text, Whole] = field(default_factory=dict)  # resource class → used amount
    traits: LongList[Text] = ()  # sorted by database id: standard traits first
    aggregates: LongList[Text] = ()
    updated: Number = 0.0  # last change of the provider or the parts returned
    # Part `owner`: the agent that reports the provider's tree; empty if no agent does.
    cell: Text = ""
    agent: Text = ""
    zone: Text = ""
    host: Text = ""  # the agent's name for the host, used in orders
    sequence: Whole = -1  # sequence number of the agent's last report of the tree
    gone: bool = False  # the agent has deleted it; the provider stays while consumers have allocations
    # Part `owner`: contents that operators added, and that the agent's reports do not remove.
    kept_classes: LongList[Text] = ()
    kept_traits: LongList[Text] = ()
    kept_aggregates: LongList[Text] = ()
    label_sources: HostLabels = NO_LABELS  # part `owner`
    labels: LargeMap[Text, Text] = field(default_factory=dict)  # part `labels`: a root's labels, by level


class Consumer(Value, frozen=True, kw_only=True):
    """A consumer of resources, for example an instance, with its allocations."""

    id: Text
    generation: Whole
    project: Text
    user: Text
    type: Text | None  # None: written before consumer types existed
    allocations: Allocations
    updated: Number = 0.0
    client: bool = False  # the allocations were claimed by a client of the Placement API
    protected: bool = False  # a rule forbids that another consumer takes its capacity


# Edits. `generation` is compared with the provider's; None: no comparison.


class MakeProvider(Tagged, frozen=True, kw_only=True):
    """Create a resource provider, as a root or as a child of `parent`."""

    provider: Id
    name: Name
    parent: Id | None = None


class ChangeProvider(Tagged, frozen=True, kw_only=True):
    """An edit that renames a provider, or moves it and its descendants below `parent` (None: as a root)."""

    provider: Id
    name: Name
    parent: Id | UnsetType | None = UNSET
    anywhere: bool = True  # False: only a root may be moved, as in the API before 1.37


class DropProvider(Tagged, frozen=True, kw_only=True):
    """Delete a resource provider, which is refused while it has children or allocations."""

    provider: Id


class SetInventories(Tagged, frozen=True, kw_only=True):
    """Replace all inventories of a provider. A given `generation` must be the current one."""

    provider: Id
    inventories: Inventories
    generation: Ordinal | None = None


class AddInventory(Tagged, frozen=True, kw_only=True):
    """An edit that adds an inventory of one resource class; refused as Taken if the provider has one."""

    provider: Id
    resource_class: ClassName
    inventory: Inventory


class SetInventory(Tagged, frozen=True, kw_only=True):
    """An edit that changes the inventory of one resource class; the provider must already have one."""

    provider: Id
    resource_class: ClassName
    inventory: Inventory
    generation: Ordinal | None = None


class DropInventory(Tagged, frozen=True, kw_only=True):
    """Delete the inventory of one class, which is refused while it is in use."""

    provider: Id
    resource_class: ClassName


class SetTraits(Tagged, frozen=True, kw_only=True):
    """An edit that replaces a provider's traits. The provider's generation grows only if they change."""

    provider: Id
    traits: ShortList[TraitName]
    generation: Ordinal | None = None
    # A provider outside of this cell counts as missing; empty: providers of all cells.
    cell: Text = ""


class SetAggregates(Tagged, frozen=True, kw_only=True):
    """An edit that replaces a provider's aggregates. An edit with `generation` is refused if the
    provider's generation differs, and increases the generation.
    """

    provider: Id
    aggregates: ShortList[Id]
    generation: Ordinal | None = None


class Reshape(Tagged, frozen=True, kw_only=True):
    """An edit that moves inventories between providers, with their allocations, completely or not at all."""

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


class Edited(Tagged, frozen=True, kw_only=True):
    """The result of a successful edit: the provider's new state; None if the provider was deleted, or if
    several providers changed.
    """

    provider: Provider | None = None
    number: Whole = 0  # change number; 0: nothing changed
    before: Provider | None = None  # the provider before; None if created, or if several changed


class Stale(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit because the provider's generation differs from the `generation` of the edit."""

    provider: Text
    actual: Whole
    given: Whole


class HasChildren(Tagged, frozen=True, kw_only=True):
    """The refusal to delete a provider, because it has children."""

    provider: Text


class Tangled(Tagged, frozen=True, kw_only=True):
    """The refusal to set a provider's parent: the new parent is the provider itself or one of its
    descendants, or the present parent may not be changed or removed.
    """

    why: Literal["itself", "loop", "re-parenting", "un-parenting"]
    provider: Text
    parent: Text | None


class Denied(Tagged, frozen=True, kw_only=True):
    """The refusal of a reshape because one of its claims failed, with the result of each claim."""

    results: LongList[ClaimResult]


EditResult = Edited | Missing | Stale | Taken | InUse | HasChildren | Tangled | Denied | Contended


class OwnerGiven(Tagged, frozen=True, kw_only=True):
    """The result of assigning a root provider to a cell: the provider's previous cell and agent, and the
    sequence number of the last report about it.
    """

    cell: Text
    agent: Text
    sequence: Whole
    number: Whole = 0  # change number; 0: the root has no providers


OwnerResult = OwnerGiven | Missing | Contended


class FindProviders(Message, frozen=True, kw_only=True):
    """A query for the providers that meet all given conditions; without conditions, for all providers."""

    ids: LongList[Id] = ()
    name: Text = ""  # the name of the provider
    # root providers of hosts with this name: the agent's name for the host, or the name of the provider
    host: Text = ""
    in_tree: Id | None = None
    like: ResourceGroup | None = None  # with this free capacity, these traits and aggregates
    parts: LongList[Literal["inventories", "traits", "aggregates", "owner", "labels"]] = (
        "inventories",
        "traits",
        "aggregates",
    )
    agents: LongList[Word] = ()  # only providers in trees that one of these agents reports
    after: Text = ""  # only ids after this one; used with `limit`
    limit: Count = 0  # maximum number of providers; 0: all, which must fit into one message
    cell: Text = ""  # the asking cell; empty: not asked by a cell


class ProvidersFound(Message, frozen=True, kw_only=True):
    providers: LongList[Provider]


class EditRequested(Message, frozen=True, kw_only=True):
    edit: Edit


class EditAnswered(Message, frozen=True, kw_only=True):
    result: EditResult


class OwnerEditRequested(Message, frozen=True, kw_only=True):
    """Assign a root provider to a cell, whichever cell and agent own it now, to correct a wrongly accepted
    report. The next report of the root is accepted with any sequence number.

    With an agent and a host name, builds may be placed on the host although no agent reports it: clients of
    the Placement API, such as nova-compute, maintain its inventory.
    """

    root: Id
    cell: Word
    agent: WordOrNone = ""
    host: Text = ""
    zone: Zone = ""


class OwnerEditAnswered(Message, frozen=True, kw_only=True):
    result: OwnerResult


class FindAllocations(Message, frozen=True, kw_only=True):
    """A query for the allocations of the given consumers, or for all allocations of the given providers."""

    consumers: LongList[InstanceId] = ()
    providers: LongList[ProviderId] = ()
    cell: CellOrNone = ""  # the asking cell; empty: not asked by a cell
    others: bool = False  # also return what else has an id in `consumers`; ignored if a cell asks


class AllocationsFound(Message, frozen=True, kw_only=True):
    """The allocations of consumers, and the generations with which a client may write them."""

    consumers: LongList[Consumer]  # consumers with allocations
    generations: LargeMap[Text, Whole]  # generation of each provider that occurs in `consumers`
    # The following fields are for `others`.
    # object of a feature, or a started move → its project; empty: no client may use its id
    objects: LargeMap[Text, Text] = field(default_factory=dict)
    # retired consumer or started move → the cell that retired it; empty: another worker
    retired: LargeMap[Text, Text] = field(default_factory=dict)


class FindUsages(Message, frozen=True, kw_only=True):
    """A query for a project's total usage by consumer type; usage without a type is returned as `unknown`."""

    project: ProjectId
    user: Annotated[Text, names(USER_KIND)] = ""


class UsagesFound(Message, frozen=True, kw_only=True):
    """Used amounts and numbers of consumers of a project, by consumer type."""

    used: LargeMap[Text, LargeMap[Text, Whole]]  # type → class → amount
    consumers: LargeMap[Text, Whole]  # type → number of consumers


# Recognizes bare-metal nodes, and allocations of whole nodes, by their resource classes.


PROCESSORS = frozenset({"VCPU", "PCPU"})  # the resource classes of processors for guests


def is_node(provider: Provider) -> bool:
    """Return whether a provider is a bare-metal node: a root provider with its id as its name, and with
    single units of custom resource classes. Classes that operators added do not count (part `owner`).
    """
    reported = provider.inventories.keys() - provider.kept_classes
    is_named_by_id = provider.id == provider.root == provider.name
    return is_named_by_id and are_single_units(reported, provider.inventories)


def is_bare_metal(held: Allocations, root: Id, inventories: Mapping[str, Inventory]) -> bool:
    """Return whether allocations are of a bare-metal node as a whole: their only resource is the root
    provider's one unit of a custom resource class, and the root provider has no processors for guests.
    """
    resources = held.get(root, {})
    is_one = len(held) == len(resources) == 1 and PROCESSORS.isdisjoint(inventories)
    return is_one and are_single_units(resources, inventories)


def are_single_units(classes: Iterable[str], inventories: Mapping[str, Inventory]) -> bool:
    """Return whether all classes are custom ones of which the provider has exactly one unit, as a bare-metal
    node has.
    """
    return all(
        name.startswith("CUSTOM_") and name in inventories and inventories[name].total == 1
        for name in classes
    )
