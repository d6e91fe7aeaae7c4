"""Provider trees by the thousand, as a memory of placement's in another process asks for them.

What repeats is said once: most hosts of a fleet are alike.
"""

from typing import Annotated

from msgspec import Meta

from bus.reports import capacity_of
from bus.vocabulary import Compact, Count, Id, LongList, Message, Ratio, Text, Value, Whole


class KnownInventory(Compact, frozen=True):
    resource_class: Text
    total: Whole
    reserved: Whole
    min_unit: Whole
    max_unit: Whole
    step_size: Whole
    allocation_ratio: Ratio

    @property
    def capacity(self) -> int:
        return capacity_of(self.total, self.reserved, self.allocation_ratio)


class KnownProvider(Compact, frozen=True):
    """A provider; `stock`, `traits` and `aggregates` are places in the tables beside it."""

    id: Text
    name: Text
    parent: Text | None
    generation: Whole
    shape: Whole
    stock: Whole
    used: LongList[Whole]  # of the classes in its stock, in that order
    traits: Whole
    aggregates: Whole


class KnownTree(Compact, frozen=True):
    """A tree with its owner; without providers it is gone, or never was."""

    root: Text | None  # None: the id of its first provider
    host: Text | None  # None: the name of its first provider
    owner: Whole
    sequence: Whole
    providers: LongList[KnownProvider] = ()  # the root first
    left_out: Whole = 0  # so many more of them had no room: ask again with `skip`


class KnownTrees(Value, frozen=True, kw_only=True):
    """Some trees, and the tables of what repeats in them."""

    trees: LongList[KnownTree]
    inventories: LongList[KnownInventory] = ()
    stocks: LongList[LongList[Whole]] = ()  # places in `inventories`
    traits: LongList[LongList[Text]] = ()
    aggregates: LongList[LongList[Text]] = ()
    owners: LongList[tuple[Text, Text, Text]] = ()  # cell, agent, zone


class FindTrees(Message, frozen=True, kw_only=True):
    """These trees as they are now; with no roots a page of all, behind the mark `after`.

    What has no room is left out: of the roots those that the answer does not name, of a large tree its last
    providers, for which one asks with its root alone and how many are known already.
    """

    roots: LongList[Id] = ()
    skip: Count = 0
    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class TreesFound(KnownTrees, Message, frozen=True, kw_only=True):
    more: Count | None = None  # ask again with after=more
