"""Hosts as rules and weighers see them: one, or a few in a placement that fits in a list."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import Bools, Floats, Heard, Ints
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.messages import BuildRequested, HostReported
from bus.queries import Candidate, FindCandidates
from bus.reports import HostState
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from scheduler_worker.core.host_map import NOBODY
from scheduler_worker.core.rule import Alternative, HostFacts
from scheduler_worker.core.view import AllHosts
from scheduler_worker.hosts import HostBook
from tests.support.ids import uid
from tests.support.scheduler_builders import ROOM, a_request

ASKED = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}),))
_OF_WISH = Alternative.__dataclass_fields__.keys() - {"request", "flavor"}


def reported(book: HostBook) -> tuple[int, set[str]]:
    """Return how many hosts the book has reports of, and their cells."""
    return book._count, set(book._hosts)


def recent_builds(book: HostBook, cell: str, root: str, now: float) -> int:
    """Return the number of builds sent to a host that its last report may not include yet."""
    book._past(now)
    return int(book._columns.recent[book._columns.slots.get((cell, root), NOBODY)])


def failed_builds(book: HostBook, cell: str, root: str, now: float) -> float:
    """Return the number of failed builds on a host, each halved repeatedly with time."""
    weight = book._weight(now)
    return float(book._columns.failures[book._columns.slots.get((cell, root), NOBODY)]) / weight


def an_aggregate(number: int = 1, **metadata: str) -> Aggregate:
    return Aggregate(id=uid(number, "e"), name=f"aggregate{number}", metadata=metadata)


def the_facts(number: int = 1, *aggregates: Aggregate, sent: int = 0, **fields: object) -> HostFacts:
    of_state = {name: fields.pop(name) for name in list(fields) if name in HostState.__struct_fields__}
    root, host = uid(number, "c"), f"host{number}"
    state = HostState(root=root, host=host, **of_state) if of_state else None  # type: ignore[arg-type]
    facts = HostFacts(root, host, "cell1", f"agent{number}", free=ROOM, capacity=ROOM, state=state)
    building = sent + (state.building if state is not None else 0)
    return msgspec.structs.replace(facts, aggregates=aggregates, **{"building": building, **fields})


def a_wish(request: BuildRequested | None = None, **fields: object) -> Alternative:
    of_wish = {name: fields.pop(name) for name in list(fields) if name in _OF_WISH}
    request = request or a_request(**fields)  # type: ignore[arg-type]
    return Alternative(request, request.flavor, ASKED, **of_wish)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ListedHost:
    """A host of the list, in the words of placement."""

    position: int
    facts: HostFacts

    @property
    def uuid(self) -> str:
        return self.facts.root

    @property
    def host(self) -> str:
        return self.facts.host

    @property
    def cell(self) -> str:
        return self.facts.cell

    @property
    def agent(self) -> str:
        return self.facts.agent

    @property
    def zone(self) -> str:
        return self.facts.zone

    @property
    def traits(self) -> tuple[str, ...]:
        return self.facts.traits

    @property
    def aggregates(self) -> tuple[str, ...]:
        return tuple(aggregate.id for aggregate in self.facts.aggregates)


@dataclass
class ListedHosts:
    """A placement where everybody fits. Every third position is empty."""

    listed: list[ListedHost]
    layout: int = 1
    seen: int = 0
    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    cells: dict[str, RegisteredCell] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Sequence[HostFacts]) -> "ListedHosts":
        listed = [ListedHost(index + index // 2, one) for index, one in enumerate(facts)]
        return cls(listed, aggregates={one.id: one for host in facts for one in host.aggregates})

    @property
    def size(self) -> int:
        return len(self.listed) * 2 + 1

    def position(self, root: str) -> int | None:
        return next((one.position for one in self.listed if one.uuid == root), None)

    def named(self, host: str) -> Sequence[str]:
        return [one.uuid for one in self.listed if host in (one.host, one.uuid)]

    def hosts(self) -> Sequence[ListedHost]:
        return self.listed

    async def fresh(self) -> None: ...

    def search(self, question: FindCandidates, *, empty: bool = False) -> "ListedSearch":
        return ListedSearch(self)

    def free(self, root: str) -> Mapping[str, int]:
        return next((one.facts.free for one in self.listed if one.uuid == root), {})

    def having(self, resource_class: str, amount: int) -> int:
        return sum(one.facts.capacity.get(resource_class, 0) >= amount for one in self.listed)

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        return {}

    def reserve(self, allocations: Allocations) -> None: ...

    def withdraw(self, allocations: Allocations) -> None: ...

    def watch(self, heard: Heard) -> None: ...

    def watch_for_more(self, heard: Heard) -> None: ...


@dataclass
class ListedSearch:
    source: ListedHosts

    @property
    def considered(self) -> int:
        return len(self.source.listed)

    @property
    def positions(self) -> Ints:
        return np.array([host.position for host in self.source.listed], np.intp)

    def any_of(self, resource_class: str) -> bool:
        return any(
            resource_class in {**host.facts.free, **host.facts.capacity} for host in self.source.listed
        )

    def free(self, resource_class: str) -> Floats:
        return np.array([host.facts.free.get(resource_class, 0) for host in self.source.listed], np.float64)

    def capacity(self, resource_class: str) -> Floats:
        return np.array(
            [host.facts.capacity.get(resource_class, 0) for host in self.source.listed], np.float64
        )

    def has(self, trait: str) -> Bools:
        return np.array([trait in host.traits for host in self.source.listed], np.bool_)

    def within(self, aggregate: str) -> Bools:
        return np.array([aggregate in host.aggregates for host in self.source.listed], np.bool_)

    def host(self, position: int) -> ListedHost:
        return next(host for host in self.source.listed if host.position == position)

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        facts = self.host(position).facts
        return facts.free, facts.capacity

    def ways(self, position: int, most: int) -> Sequence[Candidate]:
        return ()

    def removals(self) -> Sequence[Removal]:
        return ()

    def nearest(self, roots: Collection[str] = (), most: int = 5) -> Sequence[NearMiss]:
        return ()


def reported_by(facts: HostFacts, sequence: int = 1) -> HostReported:
    hosts = () if facts.state is None else (facts.state,)
    return HostReported(cell=facts.cell, agent=facts.agent, sequence=sequence, hosts=hosts)


def seen_at_once(facts: Sequence[HostFacts]) -> tuple[AllHosts, list[HostFacts]]:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(facts)
    for fact in facts:
        if not fact.down:
            book.handle(reported_by(fact), 0.0)
        said = fact.state.building if fact.state is not None and not fact.down else 0
        for _ in range(fact.building - said):
            book.chose(fact.cell, fact.root, 0.0)
        for _ in range(round(fact.failures)):
            book.failed(fact.cell, fact.root, 0.0)
    now, search = book.level(source, 0.0), source.search(ASKED)
    one_by_one = [now.facts(search, int(position)) for position in search.positions]
    return AllHosts(search, now), one_by_one
