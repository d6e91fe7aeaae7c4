"""Builders for tests of the scheduler: hosts, requests, and a placement in a dictionary."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.messages import BuildRequested, HostReported
from bus.queries import Candidate
from bus.reports import HostState
from bus.requests import Flavor
from bus.resources import (
    AllocationsFound,
    FindAllocations,
    FindProviders,
    FindUsages,
    Provider,
    ProvidersFound,
    UsagesFound,
)
from bus.topics import Query
from bus.vocabulary import Resources
from scheduler_worker.queries import PlacementQueries
from tests.support.claims_in_memory import ClaimsInMemory
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.request_parts import with_parts

SMALL = Flavor(name="small", vcpus=1, memory_mb=1024, disk_gb=10)
_NONE_OF = {f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
METAL = Flavor(
    name="metal", vcpus=8, memory_mb=8192, disk_gb=100,
    extra_specs={"resources:CUSTOM_BAREMETAL": "1", **_NONE_OF},
)  # fmt: skip
ROOM: Resources = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}


def a_request(
    number: int = 1, *, instances: int = 1, flavor: Flavor = SMALL, **fields: object
) -> BuildRequested:
    ids = tuple(uid(number * 1000 + index, "b") for index in range(instances))
    return BuildRequested(request=uid(number, "a"), instances=ids, flavor=flavor, **with_parts(fields))


def a_candidate(
    number: int = 1, *, asked: Resources | None = None, free: Resources | None = None, cell: str = "cell1",
    zone: str = "", agent: str | None = None, traits: tuple[str, ...] = (),
) -> Candidate:  # fmt: skip
    root, agent = uid(number, "c"), f"agent{number}" if agent is None else agent
    asked = asked or {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}
    free = ROOM if free is None else free
    return Candidate(root, f"host{number}", cell, agent, zone, {root: asked}, {root: 1}, free, ROOM, traits)


def a_state(number: int = 1, **fields: object) -> HostState:
    return HostState(root=uid(number, "c"), host=f"host{number}", **fields)  # type: ignore[arg-type]


def a_heartbeat(number: int = 1, *, sequence: int = 1, cell: str = "cell1", **state: object) -> HostReported:
    """Return the heartbeat of agent `number`, which has one host."""
    return HostReported(
        cell=cell, agent=f"agent{number}", sequence=sequence, period=10.0, hosts=(a_state(number, **state),)
    )


class FakePlacement(ClaimsInMemory):
    """Placement as a scheduler sees it: candidates, and claims that reduce their free amounts."""

    def __init__(self, *candidates: Candidate, unpublished: Sequence[Candidate] = ()) -> None:
        super().__init__()
        self.hosts = {candidate.root: candidate for candidate in (*candidates, *unpublished)}
        self.free = {root: dict(candidate.free) for root, candidate in self.hosts.items()}
        self.source = RecordingSource(candidates, self.free)
        self.source.unpublished += unpublished
        self.orders: list[ClaimRequested] = []
        self.releases: list[ReleaseRequested] = []

    def take(self, root: str, resources: Resources) -> None:
        for name, amount in resources.items():
            self.free[root][name] -= amount

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> list[ClaimAnswered]:
        self.orders.extend(orders)
        answers = [self.claim(order) for order in orders]
        if not self.source.lag:
            self.source.memory.index.seen = self.number
        return answers

    async def release_one(self, question: ReleaseRequested) -> ReleaseAnswered:
        self.releases.append(question)
        return ReleaseAnswered(result=self.release(question))

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})

    async def usages(self, question: FindUsages) -> UsagesFound:
        raise NotImplementedError

    async def edit(self, question: object) -> Any:
        raise NotImplementedError

    def asker(self, query: Query[Any, Any], /) -> Any:
        """Return a function that answers a query of a feature: nothing is found."""

        async def answer(question: object) -> Any:
            return query.answer(
                **{field.name: () for field in structs.fields(query.answer) if field.required}
            )

        return answer if query.name.startswith("placement.") else self.edit

    def queries(self) -> PlacementQueries:
        return PlacementQueries(
            claim_many=self.claim_many, release=self.release_one, providers=self.providers,
            allocations=self.allocations, usages=self.usages, edit=self.edit, edit_name=self.edit,
            ask=self.asker,
        )  # fmt: skip

    async def providers(self, question: FindProviders) -> ProvidersFound:
        known = [self.hosts[id_] for id_ in question.ids if id_ in self.hosts]
        return ProvidersFound(providers=tuple(map(self.provider, known)))

    def provider(self, one: Candidate) -> Provider:
        cell, host = (one.cell, one.host) if one.agent else ("", "")
        return Provider(
            id=one.root, name=one.host, parent=None, root=one.root, generation=1, cell=cell, agent=one.agent,
            host=host, zone=one.zone,
        )  # fmt: skip
