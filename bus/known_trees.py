"""Provider trees by the thousand, as a memory of placement's in another process asks for them.

What repeats is said once: most hosts of a fleet are alike.
"""

from typing import Annotated

from msgspec import Meta

from bus.reports import capacity_of
from bus.vocabulary import Compact, Count, Id, Message, Value


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
    """A provider; `stock`, `traits` and `aggregates` are places in the tables beside it."""

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


class KnownTrees(Value, frozen=True, kw_only=True):
    """Some trees, and the tables of what repeats in them."""

    trees: tuple[KnownTree, ...]
    inventories: tuple[KnownInventory, ...] = ()
    stocks: tuple[tuple[int, ...], ...] = ()  # places in `inventories`
    traits: tuple[tuple[str, ...], ...] = ()
    aggregates: tuple[tuple[str, ...], ...] = ()
    owners: tuple[tuple[str, str, str], ...] = ()  # cell, agent, zone


class FindTrees(Message, frozen=True, kw_only=True):
    """These trees as they are now; with no roots a page of all, behind the mark `after`.

    What has no room is left out: of the roots those that the answer does not name, of a large tree its last
    providers, for which one asks with its root alone and how many are known already.
    """

    roots: tuple[Id, ...] = ()
    skip: Count = 0
    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class TreesFound(KnownTrees, Message, frozen=True, kw_only=True):
    more: Count | None = None  # ask again with after=more
