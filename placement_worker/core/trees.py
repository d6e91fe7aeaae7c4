"""Provider trees: what is wrong with a report, and what a tree becomes by it."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from bus.messages import InventoryReported
from bus.vocabulary import Inventory, ProviderReport

T = TypeVar("T")

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
MAX_NAMES = 100_000  # characters; every candidate carries those of its provider, some three times over


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as it is kept. `id` is 0 until it is."""

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

    @property
    def in_use(self) -> bool:
        return any(self.used.values())


@dataclass(frozen=True, slots=True)
class Tree:
    """A root and all below it, with its owner. Without providers it is a tree that is gone, or never was."""

    root: str
    host: str = ""
    cell: str = ""
    agent: str = ""
    zone: str = ""
    sequence: int = -1  # of its owner's last report; -1: none yet
    gone: bool = False
    providers: tuple[ProviderState, ...] = ()  # the root first

    @property
    def in_use(self) -> bool:
        return any(provider.in_use for provider in self.providers)


def complaint(report: InventoryReported, known: Callable[[str, str], bool]) -> str:
    """What is wrong with this report, naming the field; empty when it is sound.

    `known(kind, name)` says whether a resource class or trait exists.
    """
    if report.gone:
        return ""
    if not report.providers:
        return "providers: none; to say that the tree is no more, set gone"
    if report.providers[0].id != report.root:
        return f"providers[0].id: the first provider must be the root, {report.root}"
    ids: set[str] = set()
    names: set[str] = set()
    for position, provider in enumerate(report.providers):
        at = f"providers[{position}]"
        if provider.id in ids:
            return f"{at}.id: {provider.id} is there twice"
        if provider.name in names:
            return f"{at}.name: {provider.name!r} is there twice"
        ids.add(provider.id)
        names.add(provider.name)
        if wrong := wrong_contents(provider, known):
            return f"{at}.{wrong}"
    return _wrong_parents(report.providers)


def wrong_contents(provider: ProviderReport, known: Callable[[str, str], bool]) -> str:
    """The field of its inventories, traits and aggregates that is wrong, and how; empty when all is well."""
    for name, inventory in provider.inventories.items():
        if not (known("resource class", name) or is_custom(name)):
            return f"inventories.{name}: no such resource class; those of your own begin with CUSTOM_"
        if inventory.reserved > inventory.total:
            return (
                f"inventories.{name}.reserved: {inventory.reserved} is more than the total, {inventory.total}"
            )
    for name in provider.traits:
        if not (known("trait", name) or is_custom(name)):
            return f"traits: no such trait {name}; those of your own begin with CUSTOM_"
    return _too_many(provider)


def _too_many(provider: ProviderReport) -> str:
    size = sum(map(len, (*provider.inventories, *provider.traits)))
    if size > MAX_NAMES:
        return f"inventories and traits: their names are {size} characters together, at most {MAX_NAMES}"
    return ""


def is_custom(name: str) -> bool:
    """May a class or trait of this name be made?"""
    return _CUSTOM.fullmatch(name) is not None


def _wrong_parents(providers: tuple[ProviderReport, ...]) -> str:
    parents = {provider.id: provider.parent for provider in providers}
    for position, provider in enumerate(providers):
        at = f"providers[{position}].parent"
        if position == 0:
            if provider.parent is not None:
                return f"{at}: the first provider is the root and has none"
        elif provider.parent is None:
            return f"{at}: only the first provider, the root, has none"
        elif provider.parent not in parents:
            return f"{at}: {provider.parent} is not in this tree"
    rooted = {providers[0].id}
    for position, provider in enumerate(providers):
        path: list[str] = []
        here: str | None = provider.id
        while here is not None and here not in rooted:
            if here in path:
                return f"providers[{position}].parent: {provider.id} is its own ancestor"
            path.append(here)
            here = parents[here]
        rooted.update(path)
    return ""


def reported(before: Tree, report: InventoryReported, number: int = 0) -> Tree:
    """What the tree becomes by this report. A report that is not news gives the tree as it was.

    `number` is that of the last change: a new provider has a shape above it (see WorkingTrees.next_shape).
    """
    if report.sequence <= before.sequence:
        return before
    if report.gone:
        return swept(replace(before, sequence=report.sequence, gone=True))
    facts = (report.host, report.cell, report.agent, report.zone)
    moved = facts != (before.host, before.cell, before.agent, before.zone)
    old = {provider.uuid: provider for provider in before.providers}
    after = []
    for position, provider in enumerate(report.providers):
        was = old.pop(provider.id, None)
        reshaped = moved and position == 0
        after.append(_provider(was, provider, number + 1, reshaped=reshaped))
    after += _kept(old, {provider.uuid for provider in after}, report.root)
    return Tree(report.root, *facts, report.sequence, False, tuple(after))


def swept(tree: Tree) -> Tree:
    """A tree that is gone, without its providers; closed while somebody holds something of it."""
    if not tree.in_use:
        return replace(tree, providers=())
    return replace(tree, providers=tuple(_closed(provider) for provider in tree.providers))


def renamed(tree: Tree, old: str, new: str) -> Tree:
    """A resource class has another name."""

    def with_new(things: dict[str, T]) -> dict[str, T]:
        return {new if name == old else name: thing for name, thing in things.items()}

    return replace(
        tree,
        providers=tuple(
            replace(one, inventories=with_new(one.inventories), used=with_new(one.used))
            if old in one.inventories
            else one
            for one in tree.providers
        ),
    )


def _provider(was: ProviderState | None, now: ProviderReport, shape: int, *, reshaped: bool) -> ProviderState:
    traits, aggregates = tuple(sorted(set(now.traits))), tuple(sorted(set(now.aggregates)))
    if was is None:
        used = dict.fromkeys(now.inventories, 0)
        return ProviderState(
            0, now.id, now.name, now.parent, 1, shape, dict(now.inventories), used, traits, aggregates
        )
    inventories = dict(now.inventories)
    for name, amount in was.used.items():
        if amount and name not in inventories:
            inventories[name] = _shut(was.inventories[name])
    same = (
        inventories == was.inventories
        and now.parent == was.parent
        and traits == was.traits
        and aggregates == was.aggregates
    )
    if same and not reshaped:
        return was if now.name == was.name else replace(was, name=now.name)
    return replace(
        was,
        name=now.name,
        parent=now.parent,
        generation=was.generation if same else was.generation + 1,
        shape=was.shape + 1,
        inventories=inventories,
        used={name: was.used.get(name, 0) for name in inventories},
        traits=traits,
        aggregates=aggregates,
    )


def _kept(left: dict[str, ProviderState], there: Collection[str], root: str) -> list[ProviderState]:
    """Of the providers that left the report those still in use, closed."""
    stay = {uuid for uuid, provider in left.items() if provider.in_use}
    kept = []
    for provider in left.values():
        if provider.uuid not in stay:
            continue
        closed = _closed(provider)
        if closed.parent not in there and closed.parent not in stay:
            closed = replace(closed, parent=root)
        kept.append(closed)
    return kept


def _closed(provider: ProviderState) -> ProviderState:
    shut = {name: _shut(inventory) for name, inventory in provider.inventories.items()}
    if shut == provider.inventories:
        return provider
    return replace(provider, inventories=shut, generation=provider.generation + 1, shape=provider.shape + 1)


def _shut(inventory: Inventory) -> Inventory:
    """Nothing more can be taken of it."""
    return Inventory(
        total=inventory.total,
        reserved=inventory.total,
        min_unit=inventory.min_unit,
        max_unit=inventory.max_unit,
        step_size=inventory.step_size,
        allocation_ratio=inventory.allocation_ratio,
    )
