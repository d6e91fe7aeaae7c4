"""Provider trees as they are kept, and who put there what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bus.reports import Inventory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reported:
    """What of a provider the reports of its tree's owner put there; everything else is an operator's."""

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
    withheld: dict[str, int] = field(default_factory=dict)  # how much of what is reserved; see withholding

    @property
    def in_use(self) -> bool:
        return any(self.used.values())

    def withheld_with(self, inventories: Mapping[str, Inventory]) -> dict[str, int]:
        """What is withheld once somebody has set these inventories: nothing of those they changed."""
        return {
            name: amount
            for name, amount in self.withheld.items()
            if inventories.get(name) == self.inventories[name]
        }


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


def renamed(tree: Tree, old: str, new: str) -> Tree:
    """A resource class has another name."""

    def with_new(things: dict[str, T]) -> dict[str, T]:
        return {new if name == old else name: thing for name, thing in things.items()}

    return replace(
        tree,
        providers=tuple(
            replace(
                one,
                inventories=with_new(one.inventories),
                used=with_new(one.used),
                withheld=with_new(one.withheld),
                reported=replace(
                    one.reported, classes=frozenset(with_new(dict.fromkeys(one.reported.classes)))
                ),
            )
            if old in one.inventories
            else one
            for one in tree.providers
        ),
    )
