"""What a memory of placement's in another process asks: provider trees by the thousand, and what it missed.

What repeats is said once in an answer: most hosts of a fleet are alike.
"""

from typing import Annotated

from msgspec import Meta

from bus.messages import PlacementChanged
from bus.reports import capacity_of
from bus.vocabulary import Compact, Count, Id, Message, Ordinal


class KnownInventory(Compact, frozen=True):
    resource_class: str
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float

    @property
    def capacity(self) -> int:
        return capacity_of(self.total, self.reserved, self.allocation_ratio)


class KnownProvider(Compact, frozen=True):
    """A provider; `stock`, `traits` and `aggregates` are places in the tables of the answer."""

    id: str
    name: str
    parent: str | None
    generation: int
    shape: int
    stock: int
    used: tuple[int, ...]  # of the classes in its stock, in that order
    traits: int
    aggregates: int


class KnownTree(Compact, frozen=True):
    """A tree with its owner; without providers it is gone, or never was."""

    root: str | None  # None: the id of its first provider
    host: str | None  # None: the name of its first provider
    owner: int
    sequence: int
    providers: tuple[KnownProvider, ...] = ()  # the root first
    left_out: int = 0  # so many more of them had no room: ask again with `skip`


class FindTrees(Message, frozen=True, kw_only=True):
    """These trees as they are now; with no roots a page of all, behind the mark `after`.

    What has no room is left out: of the roots those that the answer does not name, of a large tree its last
    providers, for which one asks with its root alone and how many are known already.
    """

    roots: tuple[Id, ...] = ()
    skip: Count = 0
    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class TreesFound(Message, frozen=True, kw_only=True):
    trees: tuple[KnownTree, ...]
    inventories: tuple[KnownInventory, ...] = ()
    stocks: tuple[tuple[int, ...], ...] = ()  # places in `inventories`
    traits: tuple[tuple[str, ...], ...] = ()
    aggregates: tuple[tuple[str, ...], ...] = ()
    owners: tuple[tuple[str, str, str], ...] = ()  # cell, agent, zone
    more: Count | None = None  # ask again with after=more


class FindChanges(Message, frozen=True, kw_only=True):
    """What was committed after this number: how a listener fills a gap, or learns that nothing was lost."""

    after: Ordinal
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class ChangesFound(Message, frozen=True, kw_only=True):
    changes: tuple[PlacementChanged, ...]  # in order
    oldest: Ordinal  # that is kept: who needs one before it reads all anew; 0: none is kept
    last: Ordinal  # that was committed
