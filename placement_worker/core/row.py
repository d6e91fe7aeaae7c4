"""A provider as the index keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bus.reports import Inventory


@dataclass(slots=True, eq=False)
class Row:
    """A provider, ready to be offered. Its dicts are replaced, never changed: candidates carry them away.

    There may be a hundred thousand: what all of them have alike is one thing, and what few are asked for is
    made when they are.
    """

    position: int
    uuid: str
    parent: str | None
    root: str
    host: str
    cell: str
    agent: str
    zone: str
    generation: int
    shape: int
    inventories: dict[str, Inventory]
    capacity: dict[str, int]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    number: int  # the last change it knows of
    shaped: int  # the last change that shaped it
    size: int  # about how many bytes it takes in an answer
    amounts: tuple[int, ...] | Mapping[str, int]  # what is used, in the order of `capacity` where it can be
    told: Any = None  # what the API over HTTP made of it; nothing again after every change
    known_free: dict[str, int] | None = None
    excluded: bool = False  # a sibling is in use that excludes it

    @property
    def shapes(self) -> dict[str, int]:
        return {self.uuid: self.shape}

    @property
    def used(self) -> Mapping[str, int]:
        amounts = self.amounts
        return dict(zip(self.capacity, amounts, strict=True)) if isinstance(amounts, tuple) else amounts

    @property
    def in_use(self) -> bool:
        amounts = self.amounts
        return any(amounts if isinstance(amounts, tuple) else amounts.values())

    @property
    def free(self) -> dict[str, int]:
        if (free := self.known_free) is None:
            amounts, capacity = self.amounts, self.capacity
            if self.excluded:
                free = dict.fromkeys(capacity, 0)
            elif isinstance(amounts, tuple):
                free = {name: capacity[name] - used for name, used in zip(capacity, amounts, strict=True)}
            else:
                free = {name: most - amounts.get(name, 0) for name, most in capacity.items()}
            self.known_free = free
        return free
