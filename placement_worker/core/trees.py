"""Provider trees: as stored, and as edits change them in memory."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from bus.domains import NO_LABELS, HostLabels
from bus.replication import KnownInventory, KnownProvider, KnownTree, KnownTrees, TreesFound
from bus.reports import Inventory
from bus.resources import are_single_units
from bus.vocabulary import MAX_ORDINAL

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reported:
    """The parts of a provider that its agent's reports created; operators created all other parts."""

    provider: bool = False
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


BY_OPERATORS = Reported()


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as it is stored; `id` is its database number, 0 before it is stored."""

    id: int
    uuid: str
    name: str
    parent: str | None
    generation: int
    shape: int
    inventories: dict[str, Inventory]
    used: dict[str, int]
    traits: tuple[str, ...]  # sorted, as aggregates are
    aggregates: tuple[str, ...]
    reported: Reported = BY_OPERATORS
    # resource class → withheld part of the reserved amount
    withheld: dict[str, int] = field(default_factory=dict)

    @property
    def in_use(self) -> bool:
        return any(self.used.values())

    @property
    def is_node(self) -> bool:
        """Return whether the provider is a bare-metal node (bus.resources.is_node)."""
        classes = self.reported.classes & self.inventories.keys()
        is_root = self.parent is None and self.uuid == self.name
        return is_root and bool(classes) and are_single_units(classes, self.inventories)

    def withheld_with(self, inventories: Mapping[str, Inventory]) -> dict[str, int]:
        """Return the withheld amounts that remain after an edit of the provider's inventories: an inventory
        that the edit changes or deletes loses its withheld amount."""
        return {
            name: amount
            for name, amount in self.withheld.items()
            if inventories.get(name) == self.inventories[name]
        }


def shut(inventory: Inventory) -> Inventory:
    """Return the inventory with all of it reserved, so that nothing can be claimed."""
    return structs.replace(inventory, reserved=inventory.total)


def withheld_node(provider: ProviderState) -> ProviderState:
    """Return the provider; if it is a node in use, with all capacity withheld of its unused classes, because
    a node is indivisible.
    """
    if not (provider.in_use and len(provider.reported.classes) > 1 and provider.is_node):
        return provider
    left = {
        name: inventory.total - inventory.reserved
        for name, inventory in provider.inventories.items()
        if name in provider.reported.classes and not provider.used.get(name)
    }
    kept = {name: amount for name, amount in left.items() if amount}
    if not kept:
        return provider
    closed = {name: shut(provider.inventories[name]) for name in kept}
    return replace(provider, inventories=provider.inventories | closed, withheld=provider.withheld | kept)


@dataclass(frozen=True, slots=True)
class Tree:
    """A root provider with its descendants and owner; a deleted or unknown tree has no providers."""

    root: str
    host: str = ""
    cell: str = ""
    agent: str = ""
    zone: str = ""
    sequence: int = -1  # number of the owner's last report; -1 before the first one
    gone: bool = False
    providers: tuple[ProviderState, ...] = ()  # the root first
    labels: HostLabels = NO_LABELS

    @property
    def in_use(self) -> bool:
        return any(provider.in_use for provider in self.providers)

    @property
    def uuids(self) -> set[str]:
        return {provider.uuid for provider in self.providers}


def renamed(tree: Tree, old: str, new: str) -> Tree:
    """Return the tree with a resource class renamed in inventories and used amounts."""

    def with_new(values: dict[str, T]) -> dict[str, T]:
        return {new if name == old else name: value for name, value in values.items()}

    return replace(
        tree,
        providers=tuple(
            replace(
                provider,
                inventories=with_new(provider.inventories),
                used=with_new(provider.used),
                withheld=with_new(provider.withheld),
                reported=replace(
                    provider.reported, classes=frozenset(with_new(dict.fromkeys(provider.reported.classes)))
                ),
            )
            if old in provider.inventories
            else provider
            for provider in tree.providers
        ),
    )


@dataclass(frozen=True, slots=True)
class KnownNames:
    """All existing resource classes and traits, with their database numbers."""

    classes: Mapping[str, int]
    traits: Mapping[str, int]


@dataclass(slots=True)
class WorkingTrees:
    """Provider trees that edits change in memory, with the names and ids of all other existing providers."""

    read: dict[str, Tree]
    owners: dict[str, str] = field(default_factory=dict)
    taken: Collection[str] = ()  # ids of existing providers, also of other trees
    number: int = 0  # last change number; 0 if the edit cannot create providers
    homes: dict[str, str] = field(default_factory=dict)  # provider → its root
    members: dict[str, dict[str, ProviderState]] = field(default_factory=dict)  # root → its providers
    touched: dict[str, None] = field(default_factory=dict)  # roots of changed trees, in order
    was: dict[str, ProviderState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for root, tree in self.read.items():
            if tree.providers:
                self.members[root] = {provider.uuid: provider for provider in tree.providers}
                self.was.update(self.members[root])
                self.homes.update(dict.fromkeys(self.members[root], root))

    def find(self, provider: str) -> ProviderState | None:
        """Return a provider as edited so far, or None if it is not in the trees."""
        root = self.homes.get(provider)
        return None if root is None else self.members[root][provider]

    def there(self, provider: str) -> ProviderState:
        """Return a provider as edited so far; raise KeyError if it is not in the trees."""
        return self.members[self.homes[provider]][provider]

    def next_shape(self, provider: str) -> int:
        """Return the shape of a changed provider: one more than it had when read, even after several changes.

        The shape of a new provider is above the last change number, so that a recreated provider never
        repeats a shape.
        """
        was = self.was.get(provider)
        return self.number + 1 if was is None else was.shape + 1

    def with_contents(self, state: ProviderState, **contents: Any) -> ProviderState:
        """Return a copy of a provider with new inventories, traits or aggregates, and with an increased
        generation and shape.
        """
        if "inventories" in contents:
            inventories = contents["inventories"]
            contents["used"] = {name: state.used.get(name, 0) for name in inventories}
            contents["withheld"] = state.withheld_with(inventories)
        shape = self.next_shape(state.uuid)
        changed = replace(state, generation=state.generation + 1, shape=shape, **contents)
        return withheld_node(changed)

    def below(self, provider: str) -> list[str]:
        """Return the uuids of a provider and all its descendants."""
        children: dict[str | None, list[str]] = {}
        for state in self.members[self.homes[provider]].values():
            children.setdefault(state.parent, []).append(state.uuid)
        found = [provider]
        for descendant in found:  # the loop appends to this list
            found += children.get(descendant, ())
        return found

    def put(self, state: ProviderState, root: str = "") -> None:
        """Add or replace a provider, and mark its tree as changed."""
        root = root or self.homes[state.uuid]
        self.homes[state.uuid] = root
        self.members.setdefault(root, {})[state.uuid] = state
        self.touched[root] = None
        self.owners[state.name] = state.uuid

    def drop(self, state: ProviderState) -> None:
        """Remove a provider, and mark its tree as changed; its name is free."""
        root = self.homes.pop(state.uuid)
        del self.members[root][state.uuid]
        self.touched[root] = None
        self.free_name(state)

    def free_name(self, state: ProviderState) -> None:
        """Let another provider have this provider's name."""
        if self.owners.get(state.name) == state.uuid:
            del self.owners[state.name]

    def move(self, moved: ProviderState) -> None:
        """Give a provider another parent. After a move to another tree, the provider counts as created by an
        operator: agents' reports do not delete it.
        """
        before = self.homes[moved.uuid]
        root = moved.uuid if moved.parent is None else self.homes[moved.parent]
        if root == before:
            self.put(replace(moved, shape=self.next_shape(moved.uuid)))
            return
        self.touched[before] = None
        for uuid in self.below(moved.uuid):
            state = moved if uuid == moved.uuid else self.there(uuid)
            del self.members[before][uuid]
            put = replace(state.reported, provider=False)
            self.put(replace(state, shape=self.next_shape(uuid), reported=put), root)

    def changed(self) -> list[tuple[Tree, Tree]]:
        """Return the changed trees, each as a pair: the tree as it was read, and as it is now."""
        pairs = []
        for root in self.touched:
            before = self.read.get(root) or Tree(root)
            now = sorted(self.members.get(root, {}).values(), key=lambda provider: provider.uuid != root)
            after = replace(before, providers=tuple(now))  # the root first
            if after.providers != before.providers:
                pairs.append((before, after))
        return pairs


# Provider trees in the compact form of messages, the change log and the archive.


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
        """Return the packed trees as a page of an answer."""
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
