"""Interface of a scheduler to the copy of placement's data in its own process: a search over all hosts at
once.

Placement implements it, with its own data or a replica in another process. Hosts have positions in arrays,
so rules and weights are computed for all hosts together.
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
    """The query about candidates is not valid; the text names the field and the reason."""


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
    """The result of one query for all hosts, valid until the next await.

    Arrays are in the order of `positions`. Reserved amounts count as used: in arrays as of the search, in
    `amounts` and `ways` as of now.
    """

    @property
    def considered(self) -> int: ...

    @property
    def positions(self) -> Ints:
        """The hosts that fit, as far as arrays can decide: for trees, `ways` decides."""
        ...

    def any_of(self, resource_class: str) -> bool:
        """Return whether any provider has this class. If not, `free` and `capacity` are 0 for all hosts."""
        ...

    def free(self, resource_class: str) -> Floats: ...

    def capacity(self, resource_class: str) -> Floats: ...

    def has(self, trait: str) -> Bools: ...

    def within(self, aggregate: str) -> Bools: ...

    def host(self, position: int) -> PlacedHost: ...

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the free amounts and the capacities in its tree."""
        ...

    def ways(self, position: int, most: int) -> Sequence[Candidate]:
        """Complete allocations there is room for now, at most so many."""
        ...

    def removals(self) -> Sequence[Removal]:
        """Return how many hosts each of placement's constraints removed."""
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
        """The cells that operators have described or disabled."""
        ...

    def position(self, root: str) -> int | None: ...

    def named(self, host: str) -> Sequence[str]:
        """The roots of this host, by its name or its root."""
        ...

    def hosts(self) -> Sequence[PlacedHost]: ...

    def search(self, question: FindCandidates, *, empty: bool = False) -> CandidateSearch:
        """Return the hosts that fit. Raise SenselessQuery if the query is not valid. `empty`: as if all hosts
        were unused; `free` is not changed by it.
        """
        ...

    def free(self, root: str) -> Mapping[str, int]:
        """Return the free amounts in its tree, reservations not subtracted; empty for an unknown root."""
        ...

    def having(self, resource_class: str, amount: int) -> int:
        """Return how many providers have this amount free."""
        ...

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        """Return the roots whose trees have providers that share with others, with the classes of these."""
        ...

    def promise(self, allocations: Allocations) -> None:
        """This scheduler has chosen it: it counts as used in its searches, and nowhere else."""
        ...

    def withdraw(self, allocations: Allocations) -> None: ...

    def watch(self, heard: Heard) -> None:
        """Call this after every change, with what it touched."""
        ...

    def watch_for_more(self, heard: Heard) -> None:
        """Call `heard` for changes other than claims: roots with more free capacity, or with another
        difference.
        """
        ...
