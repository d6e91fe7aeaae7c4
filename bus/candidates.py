"""The interface through which schedulers search placement's index, or a replica of it in another process.

Properties of hosts are arrays with one element per host, so that filters and weighers evaluate all hosts
together.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.errors import AnswerRefused
from bus.packing import Bools as Bools
from bus.packing import Floats as Floats
from bus.packing import Ints as Ints
from bus.packing import ProviderPacking
from bus.queries import Candidate, FindCandidates
from bus.reports import Inventory
from bus.vocabulary import Allocations


class SenselessQuery(ValueError, AnswerRefused):
    """The error for an invalid query for candidates; the text names the wrong field and the reason."""

    code = "unreadable"  # code of the reason (docs/reasons.md)


ALIKE = 4  # candidates of a host that differ only by providers which are alike
# argument: keys of refused claims that may succeed now (PlacementChanged.wakes); "": all keys
OnWakes = Callable[[Collection[str]], None]
# arguments: changed roots; changed aggregates and cells
OnChange = Callable[[Sequence[str], Sequence[str]], None]


class PlacedHost(Protocol):
    """A host as schedulers see it in placement's index. A change of the host replaces the object."""

    @property
    def position(self) -> int:
        """The host's index in the arrays of the replica."""

    @property
    def uuid(self) -> str:
        """The id of the host's root provider."""

    @property
    def host(self) -> str:
        """The name of the host."""

    @property
    def cell(self) -> str: ...
    @property
    def agent(self) -> str:
        """The agent that carries out orders for the host."""

    @property
    def zone(self) -> str: ...
    @property
    def traits(self) -> tuple[str, ...]:
        """The traits of all providers of the host's tree."""

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The ids of the aggregates of which the host is a member."""


class FreeProvider(NamedTuple):
    """A provider in the tree of a host, with the free amount of each resource class now."""

    position: int  # its row in placement's index
    uuid: str
    parent: str | None
    free: Mapping[str, int]
    capacity: Mapping[str, int]
    traits: tuple[str, ...]


class PlacedProvider(PlacedHost, Protocol):
    """A provider in the tree of a host."""

    @property
    def parent(self) -> str | None: ...
    @property
    def inventories(self) -> Mapping[str, Inventory]: ...


class HostAmounts(Protocol):
    """Returns hosts and their amounts of resources by position: a host's row number in placement's index."""

    def host(self, position: int) -> PlacedHost:
        """Return the host at this index of the arrays."""

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return a host's free amounts and capacities, summed over its provider tree, by resource class."""


class ProviderArrays(Protocol):
    """The amounts of each provider of hosts, in arrays with an element for each row of placement's index;
    valid until the next await. Choices made before the search count as used. Do not write to the arrays.
    """

    @property
    def host(self) -> Ints:
        """Return the row of the root of each provider's host; -1: the row is unused."""

    @property
    def layout(self) -> object:
        """Return a value that changes whenever a provider is added or removed, or gets another host."""

    @property
    def shaped(self) -> object:
        """Return a value that changes whenever anything but the used amounts changes."""

    @property
    def uses(self) -> int:
        """Return a number that grows whenever the free amounts of a provider change."""

    def used_since(self, uses: int) -> Ints | None:
        """Return the rows whose free amounts may have changed after the property `uses` had the given value;
        None: any row may have.
        """

    def any_of(self, resource_class: str) -> bool:
        """Return whether any provider has an inventory of this resource class."""

    def free(self, resource_class: str) -> Floats:
        """Return the free amounts; negative if a provider is overcommitted."""

    def capacity(self, resource_class: str) -> Floats:
        """Return the capacity of each provider for a class: 0 if it has none."""

    def has(self, trait: str) -> Bools:
        """Return for each provider whether it has the trait."""

    def shared(self, resource_class: str) -> Bools:
        """Return the roots of hosts that can use a sharing provider of another tree with this class."""


class CandidateSearch(HostAmounts, Protocol):
    """The hosts that fit one query for candidates, with their properties in arrays; valid until the next
    await.

    Each array has one element per host, in the order of `positions` (the hosts' rows in the index).
    Tentative choices count as used capacity. The arrays include only choices made before the search; the
    methods `amounts` and `ways`, for single hosts, include later ones too.
    """

    @property
    def considered(self) -> int:
        """The number of hosts that the search examined."""

    @property
    def positions(self) -> Ints:
        """Return the positions of the hosts that satisfy the query's conditions on a single provider.

        If the query needs nested providers, some of these hosts can lack allocations for the whole query.
        """

    def any_of(self, resource_class: str) -> bool:
        """Return whether any provider has an inventory of this resource class. If none has, the arrays that
        `free` and `capacity` return for the class contain only 0.
        """

    def free(self, resource_class: str) -> Floats:
        """Return the free amount of a class on each found host."""

    def capacity(self, resource_class: str) -> Floats:
        """Return the capacity of each found host for a class."""

    def has(self, trait: str) -> Bools:
        """Return for each found host whether it has the trait."""

    def within(self, aggregate: str) -> Bools:
        """Return for each found host whether it is a member of the aggregate."""

    def providers(self) -> ProviderArrays:
        """Return the providers of the found hosts as arrays."""

    def tree(self, position: int) -> Sequence[FreeProvider]:
        """Return the providers of a host, the root first, as of now."""

    def ways(
        self, position: int, most: int, within: Sequence[Allocations] = (), *, distinct: bool = False
    ) -> Sequence[Candidate]:
        """Return at most `most` candidates (complete allocations for the query) on one host, as of now. With
        `within`, such as those of a restriction, a host of several providers has only the candidates that
        one of these allocations covers. `distinct`: of candidates that differ only by providers with equal
        inventories, traits, aggregates and free amounts below one parent, return at most ALIKE.
        """

    def removals(self) -> Sequence[Removal]:
        """Return, for each condition of the query, how many hosts it excluded from the result."""

    def nearest(self, roots: Collection[str] = (), most: int = 5) -> Sequence[NearMiss]:
        """Return what the given hosts lack to satisfy the query. Without `roots`, return what the hosts that
        nearly fit lack, or [] if any host fits.
        """


class CandidateSource(Protocol):
    """A scheduler's access to placement's index, or to a replica of the index in the scheduler's process."""

    @property
    def seen(self) -> int:
        """Return the change number of the newest commit that this index includes."""

    async def fresh(self) -> None:
        """Wait until the index includes every commit of placement made before this call."""

    @property
    def layout(self) -> int:
        """Return a counter that grows whenever a host is added, removed or renamed, or gets another cell or
        agent."""

    @property
    def size(self) -> int:
        """Return the number of rows in placement's index, some unused: the length of arrays by position."""

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """All aggregates by id."""

    @property
    def cells(self) -> Mapping[str, RegisteredCell]:
        """Return a mapping of names to the cells that operators have registered."""

    def position(self, root: str) -> int | None:
        """Return the array index of a host by its root, or None if the replica does not have it."""

    def named(self, host: str) -> Sequence[str]:
        """Return the uuids of the root providers with this host name or this uuid."""

    def hosts(self) -> Sequence[PlacedHost]:
        """Return all hosts of the replica."""

    def labels(self, level: str) -> tuple[Ints, Sequence[str]]:
        """Return, for each row of the index, the number of its host's label of a level (0: no label), and the
        labels by number. Both are valid until the next await.
        """

    def search(self, question: FindCandidates, *, empty: bool = False) -> CandidateSearch:
        """Return the hosts that fit the query. Raise SenselessQuery if the query is not valid.

        With `empty`, hosts are searched as if they had no allocations; `free` still shows the real amounts.
        """

    def free(self, root: str) -> Mapping[str, int]:
        """Return a host's free amounts by resource class, ignoring tentative choices; {} for an unknown
        host.
        """

    def having(self, resource_class: str, amount: int) -> int:
        """Return how many providers could give a single claim this amount of a resource class; tentative
        choices are ignored.
        """

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        """Return the resource classes of each sharing provider's inventories, by the provider's root."""

    def tree_of(self, provider: str) -> Sequence[PlacedProvider]:
        """Return all providers of the host with this provider, the root first; () for an unknown provider."""

    @property
    def packing(self) -> ProviderPacking:
        """Return what this scheduler's tentative choices take: its searches count these amounts as used."""

    def watch(self, on_change: OnChange) -> None:
        """Register a callback for all changes of the index; its arguments are the changed roots, and
        the changed aggregates and cells.
        """

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        """Register a callback for keys of refused claims that may succeed now (PlacementChanged.wakes); "" in
        its argument means all keys.
        """

    def watch_for_more(self, on_change: OnChange) -> None:
        """Register a callback for changes that can help waiting requests, such as more capacity; its
        arguments are as in `watch`.
        """
