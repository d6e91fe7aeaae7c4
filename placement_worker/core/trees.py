"""Provider trees as stored, with the origin of their contents: reports or operators."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bus.reports import Inventory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reported:
    """The contents of a provider that reports of its tree's owner created. All other contents are an
    operator's.
    """

    provider: bool = False
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


BY_OPERATORS = Reported()


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
    reported: Reported = BY_OPERATORS
    # the withheld part of the reserved amounts, see withholding.py
    withheld: dict[str, int] = field(default_factory=dict)

    @property
    def in_use(self) -> bool:
        return any(self.used.values())

    def withheld_with(self, inventories: Mapping[str, Inventory]) -> dict[str, int]:
        """Return the withheld amounts after an operator set the inventories: changed inventories withhold
        nothing.
        """
        return {
            name: amount
            for name, amount in self.withheld.items()
            if inventories.get(name) == self.inventories[name]
        }


@dataclass(frozen=True, slots=True)
class Tree:
    """A root with all its descendants and its owner. A tree without providers is deleted, or never
    existed.
    """

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
    """Return the tree with a resource class renamed."""

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
