"""What a scheduler needs of placement's memory in its own process: a search over all hosts at once.

Placement gives it (its own memory, or a replica of it elsewhere), `berth` hands it over. Hosts are known by
their position in arrays, so that rules and weights can be worked out for all of them together.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.queries import Candidate, FindCandidates
from bus.vocabulary import Allocations

Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


class SenselessQuery(ValueError):
    """A question about candidates that cannot be meant; says which field is wrong, and why."""


Heard = Callable[
    [Sequence[str], Sequence[str]], None
]  # roots that changed; aggregates and cells described anew


class PlacedHost(Protocol):
    """A root as placement knows it. It is replaced when that changes, never altered."""

    @property
    def position(self) -> int: ...
    @property
    def uuid(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def cell(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def traits(self) -> tuple[str, ...]: ...
    @property
    def aggregates(self) -> tuple[str, ...]: ...


class CandidateSearch(Protocol):
    """One question, answered for all hosts at once; it is good until something else is awaited.

    Arrays go with `positions`. What is promised counts as used, in arrays from the moment of the search, in
    `amounts` and `ways` as it is now.
    """

    @property
    def considered(self) -> int: ...

    @property
    def positions(self) -> Ints:
        """The hosts that fit, as far as arrays can tell: of a tree, `ways` has the last word."""
        ...

    def any_of(self, resource_class: str) -> bool:
        """Has anybody any of it, used or not? Else `free` and `capacity` are nought for all."""
        ...

    def free(self, resource_class: str) -> Floats: ...

    def capacity(self, resource_class: str) -> Floats: ...

    def has(self, trait: str) -> Bools: ...

    def within(self, aggregate: str) -> Bools: ...

    def host(self, position: int) -> PlacedHost: ...

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What is free in its tree now, and what there is."""
        ...

    def ways(self, position: int, most: int) -> Sequence[Candidate]:
        """Complete allocations there is room for now, at most so many."""
        ...

    def removals(self) -> Sequence[Removal]:
        """What each of placement's constraints took out of the running."""
        ...

    def nearest(self, roots: Collection[str] = (), most: int = 5) -> Sequence[NearMiss]:
        """Return what each of these roots lacks; without roots, the closest hosts if no host fits."""
        ...


class CandidateSource(Protocol):
    """Placement's memory, as a scheduler in the same process uses it."""

    @property
    def seen(self) -> int:
        """The last change it knows of."""
        ...

    async def fresh(self) -> None:
        """Know at least what was committed when this was called: one small question."""
        ...

    @property
    def layout(self) -> int:
        """Grows whenever a host came, went, or has another position, name, cell or agent."""
        ...

    @property
    def size(self) -> int:
        """Positions are below this."""
        ...

    @property
    def aggregates(self) -> Mapping[str, Aggregate]: ...

    @property
    def cells(self) -> Mapping[str, RegisteredCell]:
        """Those that operators said something of."""
        ...

    def position(self, root: str) -> int | None: ...

    def named(self, host: str) -> Sequence[str]:
        """The roots of this host, by its name or its root."""
        ...

    def hosts(self) -> Sequence[PlacedHost]: ...

    def search(self, question: FindCandidates, *, empty: bool = False) -> CandidateSearch:
        """SenselessQuery when it cannot be meant. `empty`: as if nobody used anything; `free` is as it is."""
        ...

    def free(self, root: str) -> Mapping[str, int]:
        """What is free in its tree, promises aside; nothing where there is no such root."""
        ...

    def having(self, resource_class: str, amount: int) -> int:
        """How many providers could give so much of it."""
        ...

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        """Roots in whose trees somebody serves others, and the classes of those."""
        ...

    def promise(self, allocations: Allocations) -> None:
        """This scheduler has chosen it: it counts as used in its searches, and nowhere else."""
        ...

    def withdraw(self, allocations: Allocations) -> None: ...

    def watch(self, heard: Heard) -> None:
        """Call this after every change, with what it touched."""
        ...

    def watch_for_more(self, heard: Heard) -> None:
        """The same without what only took: roots where more is free, or something is otherwise."""
        ...
