"""Provider trees in the compact form of messages, the change log and the archive."""

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import structs

from bus.domains import NO_LABELS
from bus.replication import KnownInventory, KnownProvider, KnownTree, KnownTrees, TreesFound
from bus.reports import Inventory
from bus.vocabulary import MAX_ORDINAL
from placement_worker.core.trees import ProviderState, Tree

ROOM = 512 * 1024  # maximum size of the trees in an answer, in bytes
CARRIED = 50  # maximum number of providers in a placement.changed message
CARRIED_ROOM = 16 * 1024  # maximum size of the trees in a placement.changed message, in bytes

_FIGURES = Inventory.__struct_fields__
_encode = msgspec.json.Encoder().encode


class Packing:
    """Builds a list of provider trees for a message of limited size; values that occur several times are
    stored once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._trees: list[KnownTree] = []
        self._tables = tuple(_Table() for _ in range(5))
        self._inventories, self._stocks, self._traits, self._aggregates, self._owners = self._tables

    def add(self, tree: Tree, skip: int = 0) -> bool:
        """Add a tree without its first `skip` providers; return False, without effect, if the message has no
        space for it. The first tree of a message may be cut."""
        spent = 0
        providers: list[KnownProvider] = []
        for provider in tree.providers[skip:]:
            known = self._provider(provider)
            spent += len(_encode(known)) + 1
            if providers and spent + self._size() > self._capacity:
                break
            providers.append(known)
        left_out = len(tree.providers) - skip - len(providers)
        if self._trees and (left_out > 0 or spent + self._size() > self._capacity):
            return False
        first = providers[0] if providers and not skip else None
        self._trees.append(
            KnownTree(
                root=None if first is not None and first.id == tree.root else tree.root,
                host=None if first is not None and first.name == tree.host else tree.host,
                owner=self._owners.place((tree.cell, tree.agent, tree.zone)),
                sequence=tree.sequence,
                providers=tuple(providers),
                left_out=max(left_out, 0),
                labels=tree.labels,
            )
        )
        labels = 0 if tree.labels is NO_LABELS else len(_encode(tree.labels))
        self._capacity -= spent + 2 * len(tree.root) + len(_encode(tree.host)) + labels
        return True

    def _size(self) -> int:
        return sum(table.bytes for table in self._tables)

    def _provider(self, state: ProviderState) -> KnownProvider:
        known = [KnownInventory(name, *structs.astuple(each)) for name, each in state.inventories.items()]
        stock = tuple([self._inventories.place(inventory) for inventory in known])
        return KnownProvider(
            *(state.uuid, state.name, state.parent, state.generation, state.shape),
            self._stocks.place(stock),
            tuple([state.used.get(name, 0) for name in state.inventories]),
            self._traits.place(state.traits),
            self._aggregates.place(state.aggregates),
        )

    def answer(self, more: int | None = None, history: str = "") -> TreesFound:
        return TreesFound(**structs.asdict(self.packed()), more=more, history=history)

    def packed(self) -> KnownTrees:
        """Return the added provider trees in the compact form that messages contain."""
        return KnownTrees(
            trees=tuple(self._trees),
            inventories=tuple(self._inventories),
            stocks=tuple(self._stocks),
            traits=tuple(self._traits),
            aggregates=tuple(self._aggregates),
            owners=tuple(self._owners),
        )


class _Table:
    """A list of the distinct values of provider trees in a message. The trees contain positions in this list
    instead of values.
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self.bytes = 0

    def place(self, value: Hashable) -> int:
        place = self._places.get(value)
        if place is None:
            place = self._places[value] = len(self._places)
            self.bytes += len(_encode(value)) + 1
        return place

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)


def packed(trees: Iterable[Tree]) -> KnownTrees:
    """Return provider trees in the compact form, whatever their size."""
    packing = Packing(MAX_ORDINAL)
    for tree in trees:
        packing.add(tree)
    return packing.packed()


def carried(trees: Collection[Tree]) -> KnownTrees | None:
    """Return provider trees for a `placement.changed` message, or None if they are too large for it."""
    if not trees or sum(len(tree.providers) for tree in trees) > CARRIED:
        return None
    packing = Packing(ROOM)
    if not all(packing.add(tree) for tree in trees):
        return None
    packed = packing.packed()
    return packed if len(_encode(packed)) <= CARRIED_ROOM else None


def unpacked(found: KnownTrees) -> Iterator[tuple[Tree, int]]:
    """Yield the provider trees of a message, each with the number of its providers for which the message had
    no space.
    """
    inventories = []
    for known in found.inventories:
        name, *figures = structs.astuple(known)
        inventories.append((name, Inventory(**dict(zip(_FIGURES, figures, strict=True)))))
    stocks = [dict([inventories[place] for place in stock]) for stock in found.stocks]
    for tree in found.trees:
        cell, agent, zone = found.owners[tree.owner]
        root, host = tree.root, tree.host
        root = tree.providers[0].id if root is None else root
        host = tree.providers[0].name if host is None else host
        providers = tuple([_state(provider, root, found, stocks) for provider in tree.providers])
        yield Tree(root, host, cell, agent, zone, tree.sequence, False, providers, tree.labels), tree.left_out


def _state(known: KnownProvider, root: str, found: KnownTrees, stocks: list[Any]) -> ProviderState:
    stock = stocks[known.stock]
    return ProviderState(
        0,
        root if known.id == root else known.id,  # the same object, to save memory
        *(known.name, known.parent, known.generation, known.shape),
        stock,
        dict(zip(stock, known.used, strict=True)),
        found.traits[known.traits],
        found.aggregates[known.aggregates],
    )
