"""Provider trees as stored, with the origin of their contents, and trees that edits change in memory."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bus.reports import Inventory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reported:
    """The contents of a provider that its agent's report created. Operators created all others."""

    provider: bool = False
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


BY_OPERATORS = Reported()


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as it is stored; `id` is 0 until then."""

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
    # the withheld part of the reserved amounts, see withholding.py
    withheld: dict[str, int] = field(default_factory=dict)

    @property
    def in_use(self) -> bool:
        return any(self.used.values())

    def withheld_with(self, inventories: Mapping[str, Inventory]) -> dict[str, int]:
        """Return what is withheld after an operator's change: nothing of changed inventories."""
        return {
            name: amount
            for name, amount in self.withheld.items()
            if inventories.get(name) == self.inventories[name]
        }


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

    @property
    def in_use(self) -> bool:
        return any(provider.in_use for provider in self.providers)


def renamed(tree: Tree, old: str, new: str) -> Tree:
    """Return a tree with a resource class renamed."""

    def with_new(things: dict[str, T]) -> dict[str, T]:
        return {new if name == old else name: thing for name, thing in things.items()}

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
    """The existing resource classes and traits, by number."""

    classes: Mapping[str, int]
    traits: Mapping[str, int]

    def in_order(self, classes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(classes, key=self.classes.__getitem__))


@dataclass(slots=True)
class WorkingTrees:
    """Provider trees that edits change in memory, with the names and ids of other existing providers."""

    read: dict[str, Tree]
    owners: dict[str, str] = field(default_factory=dict)
    taken: Collection[str] = ()  # ids of existing providers, in any tree
    number: int = 0  # of the last change, known where a provider may be made
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
        root = self.homes.get(provider)
        return None if root is None else self.members[root][provider]

    def there(self, provider: str) -> ProviderState:
        return self.members[self.homes[provider]][provider]

    def next_shape(self, provider: str) -> int:
        """Return the shape of a changed provider: one more than read, however many changes follow.

        A new provider starts above the last change number, so a recreated one never repeats a shape.
        """
        was = self.was.get(provider)
        return self.number + 1 if was is None else was.shape + 1

    def with_contents(self, state: ProviderState, **contents: Any) -> ProviderState:
        """Return a provider with other inventories, traits or aggregates, and the next generation."""
        if "inventories" in contents:
            inventories = contents["inventories"]
            contents["used"] = {name: state.used.get(name, 0) for name in inventories}
            contents["withheld"] = state.withheld_with(inventories)
        shape = self.next_shape(state.uuid)
        return replace(state, generation=state.generation + 1, shape=shape, **contents)

    def below(self, provider: str) -> list[str]:
        """Return a provider and all its descendants."""
        children: dict[str | None, list[str]] = {}
        for state in self.members[self.homes[provider]].values():
            children.setdefault(state.parent, []).append(state.uuid)
        found = [provider]
        for one in found:  # grows meanwhile
            found += children.get(one, ())
        return found

    def is_above(self, provider: str, other: str | None) -> bool:
        """Return whether a provider is `other` or an ancestor of it."""
        while other is not None and other != provider:
            other = self.there(other).parent
        return other is not None

    def put(self, state: ProviderState, root: str = "") -> None:
        """Set the state of a provider in its tree, or add a new provider to the tree."""
        root = root or self.homes[state.uuid]
        self.homes[state.uuid] = root
        self.members.setdefault(root, {})[state.uuid] = state
        self.touched[root] = None
        self.owners[state.name] = state.uuid

    def drop(self, state: ProviderState) -> None:
        root = self.homes.pop(state.uuid)
        del self.members[root][state.uuid]
        self.touched[root] = None
        self.free_name(state)

    def free_name(self, state: ProviderState) -> None:
        if self.owners.get(state.name) == state.uuid:
            del self.owners[state.name]

    def move(self, moved: ProviderState) -> None:
        """Give a provider another parent; if it moves to another tree, it counts as an operator's."""
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
        """Return the changed trees, each as a pair (as read, as changed)."""
        pairs = []
        for root in self.touched:
            before = self.read.get(root) or Tree(root)
            now = sorted(self.members.get(root, {}).values(), key=lambda provider: provider.uuid != root)
            after = replace(before, providers=tuple(now))  # the root first
            if after.providers != before.providers:
                pairs.append((before, after))
        return pairs
