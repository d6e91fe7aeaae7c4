"""A compact format for thousands of trees: repeated values are written once."""

from collections.abc import Collection, Hashable, Iterator
from typing import Any

import msgspec
from msgspec import structs

from bus.replication import KnownInventory, KnownProvider, KnownTree, KnownTrees, TreesFound
from bus.reports import Inventory
from placement_worker.core.trees import ProviderState, Tree

ROOM = 512 * 1024  # bytes of an answer
CARRIED = 50  # providers, at most, that go with the news of them
CARRIED_ROOM = 16 * 1024  # their size in bytes

_FIGURES = Inventory.__struct_fields__
_encode = msgspec.json.Encoder().encode


class Packing:
    """A list of provider trees in the compact format while it is being made."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._trees: list[KnownTree] = []
        self._tables = tuple(_Table() for _ in range(5))
        self._inventories, self._stocks, self._traits, self._aggregates, self._owners = self._tables

    def add(self, tree: Tree, skip: int = 0) -> bool:
        """Add a tree without `skip` providers, the first tree as far as it fits; return whether it fits."""
        spent = 0
        providers: list[KnownProvider] = []
        for provider in tree.providers[skip:]:
            known = self._provider(provider)
            spent += len(_encode(known)) + 1
            if providers and spent + self._size() > self._room:
                break
            providers.append(known)
        left_out = len(tree.providers) - skip - len(providers)
        if self._trees and (left_out > 0 or spent + self._size() > self._room):
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
            )
        )
        self._room -= spent + 2 * len(tree.root) + len(_encode(tree.host))
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

    def answer(self, more: int | None = None) -> TreesFound:
        return TreesFound(**structs.asdict(self.beside()), more=more)

    def beside(self) -> KnownTrees:
        """Return the packed trees without the tables, to be sent with other data."""
        return KnownTrees(
            trees=tuple(self._trees),
            inventories=tuple(self._inventories),
            stocks=tuple(self._stocks),
            traits=tuple(self._traits),
            aggregates=tuple(self._aggregates),
            owners=tuple(self._owners),
        )


class _Table:
    """The distinct values of one type in the compact format, each with its position."""

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


def carried(trees: Collection[Tree]) -> KnownTrees | None:
    """Return the trees in the compact format if they are small enough for a change message."""
    if not trees or sum(len(tree.providers) for tree in trees) > CARRIED:
        return None
    packing = Packing(ROOM)
    if not all(packing.add(tree) for tree in trees):
        return None
    packed = packing.beside()
    return packed if len(_encode(packed)) <= CARRIED_ROOM else None


def unpacked(found: KnownTrees) -> Iterator[tuple[Tree, int]]:
    """Yield the trees of the compact format, each with the number of its omitted providers."""
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
        yield Tree(root, host, cell, agent, zone, tree.sequence, False, providers), tree.left_out


def _state(known: KnownProvider, root: str, found: KnownTrees, stocks: list[Any]) -> ProviderState:
    stock = stocks[known.stock]
    return ProviderState(
        0,
        root if known.id == root else known.id,  # the same text, not another like it
        *(known.name, known.parent, known.generation, known.shape),
        stock,
        dict(zip(stock, known.used, strict=True)),
        found.traits[known.traits],
        found.aggregates[known.aggregates],
    )
