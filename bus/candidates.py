"""The interface of placement's index for schedulers, implemented by the index and by replicas in other
processes.

Hosts have positions in arrays, so filters and weighers work on all hosts together.
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
    """A query for candidates that is not valid; the text names the wrong field and the reason."""


OnChange = Callable[[Sequence[str], Sequence[str]], None]  # changed roots; changed aggregates and cells


class PlacedHost(Protocol):
    """A root provider in the index. The object is replaced, never altered, when the root changes."""

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


class HostAmounts(Protocol):
    """Hosts and their amounts by position."""

    def host(self, position: int) -> PlacedHost: ...

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the free amount and the capacity of each resource class in the provider tree of one host."""


class CandidateSearch(HostAmounts, Protocol):
    """The result of one query for candidates, over all hosts, valid until the next await.

    Arrays are in the order of `positions`. Reserved amounts count as used: in arrays as of the search, in
    `amounts` and `ways` as of now.
    """

    @property
    def considered(self) -> int: ...

    @property
    def positions(self) -> Ints:
        """Return the positions of the hosts that fit; for hosts with nested providers `ways` decides."""

    def any_of(self, resource_class: str) -> bool:
        """Return whether any provider has an inventory of the class; else `free` and `capacity` are 0."""

    def free(self, resource_class: str) -> Floats: ...

    def capacity(self, resource_class: str) -> Floats: ...

    def has(self, trait: str) -> Bools: ...

    def within(self, aggregate: str) -> Bools: ...

    def ways(self, position: int, most: int) -> Sequence[Candidate]:
        """Return at most this many complete sets of allocations by which the request fits on one host now."""

    def removals(self) -> Sequence[Removal]:
        """Return how many hosts each constraint of the query removed."""

    def nearest(self, roots: Collection[str] = (), most: int = 5) -> Sequence[NearMiss]:
        """Return what the given hosts lack for the query, or without hosts what the closest hosts lack."""


class CandidateSource(Protocol):
    """Placement's index, or a replica, in a scheduler's process."""

    @property
    def seen(self) -> int:
        """Return the number of the last change of placement that this index includes."""

    async def fresh(self) -> None:
        """Wait until the index includes every change that was committed before this call."""

    @property
    def layout(self) -> int:
        """Return a counter of changes to the list of hosts: added, removed, renamed or moved hosts."""

    @property
    def size(self) -> int:
        """Return the number of positions in the arrays of hosts; some positions may be empty."""

    @property
    def aggregates(self) -> Mapping[str, Aggregate]: ...

    @property
    def cells(self) -> Mapping[str, RegisteredCell]:
        """Return the cells that operators have described or disabled."""

    def position(self, root: str) -> int | None: ...

    def named(self, host: str) -> Sequence[str]:
        """Return the root providers with this host name or this uuid."""

    def hosts(self) -> Sequence[PlacedHost]: ...

    def search(self, question: FindCandidates, *, empty: bool = False) -> CandidateSearch:
        """Return the hosts that fit the query. Raise SenselessQuery if the query is not valid.

        `empty` treats all hosts as unused; the amounts in `free` are not changed by it.
        """

    def free(self, root: str) -> Mapping[str, int]:
        """Return the free amounts by resource class on a host, ignoring reservations; empty if unknown."""

    def having(self, resource_class: str, amount: int) -> int:
        """Return the number of providers with at least this free amount of a resource class."""

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        """Return the hosts that use providers shared with other hosts, each with the shared classes."""

    def reserve(self, allocations: Allocations) -> None:
        """Count allocations as used in this scheduler's searches until they are withdrawn."""

    def withdraw(self, allocations: Allocations) -> None: ...

    def watch(self, on_change: OnChange) -> None:
        """Call `on_change` after every change of placement, with the changed roots, aggregates and cells."""

    def watch_for_more(self, on_change: OnChange) -> None:
        """Call `on_change` when a waiting request may fit: capacity, traits or inventories have changed."""
