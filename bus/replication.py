"""Messages for replicas of placement's index: numbered changes, and queries for missed changes and trees.

Most hosts are alike. A message therefore lists each distinct set of inventories, traits or aggregates once,
and providers refer to it by its position in the list.
"""

from typing import Annotated

from msgspec import Meta

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.domains import NO_LABELS, HostLabels
from bus.vocabulary import (
    Allocations,
    Compact,
    Count,
    Id,
    Key,
    LargeMap,
    LongList,
    Message,
    Ordinal,
    Ratio,
    Text,
    Value,
    Whole,
    capacity_of,
)


class KnownInventory(Compact, frozen=True):
    """An inventory as replicas of the index receive it."""

    resource_class: Text
    total: Whole
    reserved: Whole
    min_unit: Whole
    max_unit: Whole
    step_size: Whole
    allocation_ratio: Ratio

    @property
    def capacity(self) -> int:
        """Return how much can be allocated: (total - reserved) × allocation_ratio, rounded down."""
        return capacity_of(self.total, self.reserved, self.allocation_ratio)


class KnownProvider(Compact, frozen=True):
    """A provider in `KnownTrees`. Its inventories (`stock`), traits and aggregates are positions in lists of
    KnownTrees.
    """

    id: Text
    name: Text
    parent: Text | None
    generation: Whole
    shape: Whole
    stock: Whole
    used: LongList[Whole]  # used amounts, in the order of the inventories in `stock`
    traits: Whole
    aggregates: Whole


class KnownTree(Compact, frozen=True):
    """A provider tree and its owner; a tree without providers was deleted or never existed."""

    root: Text | None  # None: equal to the id of the first provider
    host: Text | None  # None: equal to the name of the first provider
    owner: Whole
    sequence: Whole
    providers: LongList[KnownProvider] = ()  # the root first
    left_out: Whole = 0  # number of providers that did not fit into the message: query them with `skip`
    labels: HostLabels = NO_LABELS


class KnownTrees(Value, frozen=True, kw_only=True):
    """Provider trees, and lists of distinct values; the trees contain positions in the lists, not values."""

    trees: LongList[KnownTree]
    inventories: LongList[KnownInventory] = ()
    stocks: LongList[LongList[Whole]] = ()  # positions in `inventories`
    traits: LongList[LongList[Text]] = ()
    aggregates: LongList[LongList[Text]] = ()
    owners: LongList[tuple[Text, Text, Text]] = ()  # cell, agent, zone


class ProviderChange(Compact, frozen=True):
    """The new state of a provider after a commit. By default only its usage and generation changed;
    `reshaped`: its other contents changed too; `gone`: the provider was deleted.
    """

    provider: Text
    root: Text
    generation: Whole
    used: LargeMap[Text, Whole]
    reshaped: bool = False
    gone: bool = False
    sequence: Whole = -1  # if reshaped: sequence number of the last report of the provider's tree


class ConsumerChange(Compact, frozen=True):
    """The allocations of a consumer after a commit that changed them. If they are empty, the consumer was
    deleted.
    """

    consumer: Text
    generation: Ordinal
    allocations: Allocations
    project: Text = ""  # empty: as before
    type: Text = ""  # empty: as before
    heir_of: Text = ""  # consumer from which it took over the allocations and the project


class PlacementChanged(Message, frozen=True, kw_only=True):
    """One commit of placement. Change numbers have no gaps, so replicas notice and query missed changes."""

    number: Ordinal
    changes: LongList[ProviderChange]
    aggregates: LongList[Aggregate] = ()  # changed aggregates
    cells: LongList[RegisteredCell] = ()  # changed cells
    # keys (RuleRefused.wakes_on) of refused claims that the commit may let succeed; a key that ends with a
    # colon stands for all keys that begin with it
    wakes: LongList[Key] = ()
    trees: KnownTrees | None = None  # the reshaped trees if they are few and small; query all further trees
    # history id of the database, which a fail-over changes because change numbers may repeat; empty: unknown
    history: Text = ""


class FindChanges(Message, frozen=True, kw_only=True):
    """A query for the changes that were committed after this change number."""

    after: Ordinal
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class ChangesFound(Message, frozen=True, kw_only=True):
    """Placement's changes in commit order. A replica that needs changes before `oldest` reloads all trees."""

    changes: LongList[PlacementChanged]
    oldest: Ordinal  # number of the oldest stored change; 0: no change is stored
    last: Ordinal  # number of the last committed change
    history: Text = ""  # as in PlacementChanged


class FindTrees(Message, frozen=True, kw_only=True):
    """A query for the provider trees of the given roots, or without roots, for a page of all trees. `after`
    is the field `more` of the answer that contained the previous page.

    To limit its size, an answer omits whole trees, or the last providers of a large tree. To get these, query
    their roots again; for a large tree set `skip` to the number of its providers received so far.
    """

    roots: LongList[Id] = ()
    skip: Count = 0
    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class TreesFound(KnownTrees, Message, frozen=True, kw_only=True):
    """A page of provider trees with which a replica loads its index."""

    more: Count | None = None  # `after` of the next page; None: this is the last page
    history: Text = ""  # as in PlacementChanged
