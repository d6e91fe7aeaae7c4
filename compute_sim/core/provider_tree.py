"""Holds the provider tree of a host: the host's hardware, and the content that operators added in placement.

Drivers of the host's hardware start from a tree that contains only operators' content, and add all hardware
that they find. So hardware that was removed, or that only a former driver reported, is not in the tree.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

import os_resource_classes  # type: ignore[import-untyped]
import os_traits  # type: ignore[import-untyped]
from msgspec import structs

from bus.reports import Inventory, ProviderReport
from bus.resources import Provider

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_CLASSES = frozenset(os_resource_classes.STANDARDS)
STANDARD_TRAITS = frozenset(os_traits.get_traits())


class TreeMistake(ValueError):
    """Error: a hardware driver adds invalid data to a provider tree; the text names field and reason."""


@dataclass(frozen=True, slots=True)
class ForeignContents:
    """Resource classes, traits and aggregates added to a provider by operators; agents never report them."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


NOTHING_FOREIGN = ForeignContents()


@dataclass(frozen=True, slots=True)
class TreeProvider:
    """A provider of a host's tree: contents from hardware drivers, and contents that operators added."""

    id: str
    name: str
    parent: str | None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    foreign: ForeignContents = NOTHING_FOREIGN
    reported: bool = True  # False: known from placement only
    used: Mapping[str, int] = field(default_factory=dict)  # in placement, of the drivers' classes


class ProviderTree:
    """The provider tree of a host. A provider's id is derived from the root's id and the provider's name."""

    def __init__(self, root: str, name: str, known: Iterable[TreeProvider] = ()) -> None:
        self.root = root
        self.name = name
        self._known = {provider.id: provider for provider in known}
        self._named = {name: root}
        known_root = self._known.get(root)
        self._known[root] = TreeProvider(
            root, name, None, foreign=known_root.foreign if known_root else NOTHING_FOREIGN
        )

    @property
    def providers(self) -> tuple[TreeProvider, ...]:
        """Return the providers that a host's hardware drivers added; parents come before their children."""
        return tuple(self._known[id_] for id_ in self._named.values())

    @property
    def foreign(self) -> tuple[TreeProvider, ...]:
        """Return the tree's providers that placement has but no driver added; reports omit them."""
        return tuple(provider for provider in self._known.values() if not provider.reported)

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def __getitem__(self, name: str) -> TreeProvider:
        if name not in self._named:
            raise TreeMistake(f"{name}: there is no such provider; there are: {', '.join(self._named)}")
        return self._known[self._named[name]]

    def by_id(self, id_: str) -> TreeProvider | None:
        """Return a reported provider by its id, or None."""
        provider = self._known.get(id_)
        return provider if provider is not None and provider.reported else None

    def add(self, name: str, parent: str = "") -> str:
        """Add a provider below the parent, or below the root, and return its name."""
        above = self[parent or self.name]
        if name in self._named:
            raise TreeMistake(f"{name}: there are two providers of this name")
        if not 1 <= len(name) <= 200:
            raise TreeMistake(f"{name[:40]!r}...: a name has from 1 to 200 characters")
        id_ = child_id(self.root, name)
        known = self._known.get(id_)
        others = known.foreign if known else NOTHING_FOREIGN
        self._known[id_] = TreeProvider(id_, name, above.id, foreign=others)
        self._named[name] = id_
        return name

    def give(self, name: str, **inventories: Inventory) -> None:
        """Add inventories, by resource class, to the provider of this name; raise TreeMistake if it has an
        inventory of the same class already, or if a class or an amount is invalid.
        """
        provider = self[name]
        for class_, inventory in inventories.items():
            at = f"{name}: inventories.{class_}"
            if class_ not in _CLASSES and not _CUSTOM.fullmatch(class_):
                raise TreeMistake(f"{at}: no such resource class; custom names begin with CUSTOM_")
            if class_ in provider.inventories:
                raise TreeMistake(f"{at}: two drivers set it")
            if not inventory.total > 0:
                raise TreeMistake(f"{at}.total: {inventory.total}; leave out a class without units")
            if not 0 <= inventory.reserved <= inventory.total:
                total = inventory.total
                raise TreeMistake(f"{at}.reserved: {inventory.reserved} is not from 0 to the total, {total}")
        self._known[provider.id] = replace(provider, inventories={**provider.inventories, **inventories})

    def mark(self, name: str, *traits: str) -> None:
        """Add traits to the provider of this name."""
        provider = self[name]
        for trait in traits:
            if trait not in STANDARD_TRAITS and not _CUSTOM.fullmatch(trait):
                text = f"{name}: traits: no such trait {trait}; custom names begin with CUSTOM_"
                raise TreeMistake(text)
        self._known[provider.id] = replace(provider, traits=provider.traits.union(traits))

    def gather(self, name: str, *aggregates: str) -> None:
        """Add the provider of this name to aggregates, given by uuid."""
        provider = self[name]
        self._known[provider.id] = replace(provider, aggregates=provider.aggregates.union(aggregates))

    def report(self) -> tuple[ProviderReport, ...]:
        """Return all that hardware drivers added to a host's provider tree, as a report for placement."""
        return tuple(
            ProviderReport(
                id=provider.id,
                name=provider.name,
                parent=provider.parent,
                inventories=dict(provider.inventories),
                traits=tuple(sorted(provider.traits)),
                aggregates=tuple(sorted(provider.aggregates)),
            )
            for provider in self.providers
        )


def child_id(root: str, name: str) -> str:
    """Return the id of a child provider, derived from root and name, so that it stays the same after a
    restart.
    """
    return str(uuid5(UUID(root), name))


def answered(providers: Iterable[Provider]) -> dict[str, tuple[TreeProvider, ...]]:
    """Return the providers of placement's answer as objects of this module, by the root of their tree."""
    trees: dict[str, list[TreeProvider]] = {}
    for provider in providers:
        not_reported = (provider.kept_classes, provider.kept_traits, provider.kept_aggregates)
        others = ForeignContents(*map(frozenset, not_reported))
        theirs = TreeProvider(
            provider.id,
            provider.name,
            provider.parent,
            {name: has for name, has in provider.inventories.items() if name not in others.classes},
            frozenset(provider.traits) - others.traits,
            frozenset(provider.aggregates) - others.aggregates,
            others,
            reported=False,
            used={name: used for name, used in provider.used.items() if name not in others.classes},
        )
        trees.setdefault(provider.root, []).append(theirs)
    return {root: tuple(some) for root, some in trees.items()}


def differences(stored: Iterable[TreeProvider], tree: ProviderTree, *, closed_too: bool) -> Iterator[str]:
    """Yield one text for each change that a report of this tree would make in placement (`stored`).

    A removed resource class that is still in use stays fully reserved in placement: this is no change. A
    higher `reserved` in placement than in `tree` is a change only with `closed_too`.
    """
    known = {provider.id: provider for provider in stored}
    for now in tree.providers:
        was = known.pop(now.id, None)
        if was is None:
            yield f"+{now.name}"
            continue
        # Placement adds a suffix to the name if another cell has a provider of this name.
        has_suffix = was.name.startswith(f"{now.name}@")
        if (was.name != now.name and not has_suffix) or was.parent != now.parent:
            yield f"{now.name}: its name or parent"
        for class_ in sorted({*was.inventories, *now.inventories}):
            old, new = was.inventories.get(class_), now.inventories.get(class_)
            if not _alike(old, new, closed_too):
                yield f"{now.name}: {_figure(old)} → {_figure(new)} {class_}"
        for attribute, old_, new_ in (
            ("traits", was.traits, now.traits - now.foreign.traits),
            ("aggregates", was.aggregates, now.aggregates - now.foreign.aggregates),
        ):
            if old_ != new_:
                changes = [f"+{name}" for name in sorted(new_ - old_)]
                changes += [f"-{name}" for name in sorted(old_ - new_)]
                yield f"{now.name}: {attribute} {', '.join(changes)}"
    for was in known.values():
        has = was.inventories.values()
        if not all(map(_is_closed, has)) if has else was.traits or was.aggregates:
            yield f"-{was.name}"


def _alike(old: Inventory | None, new: Inventory | None, closed_too: bool) -> bool:
    if old is None or new is None:
        return old is not None and _is_closed(old)
    if old == new:
        return True
    same = structs.replace(old, reserved=new.reserved) == new
    return not closed_too and old.reserved > new.reserved and same


def _is_closed(inventory: Inventory) -> bool:
    return inventory.reserved >= inventory.total


def _figure(inventory: Inventory | None) -> str:
    if inventory is None:
        return "no"
    ratio = f"×{inventory.allocation_ratio:g}" if inventory.allocation_ratio != 1 else ""
    return f"{inventory.total - inventory.reserved}{ratio}"
