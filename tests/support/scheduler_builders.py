"""Builders for tests of the scheduler: hosts, requests, and a placement in a dictionary."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.claims import (
    Choice,
    ClaimAnswered,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    Full,
    Held,
    Refused,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    ReleaseResult,
    Retired,
)
from bus.clock import Clock
from bus.groups import FindGroups, GroupsFound
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
from bus.vocabulary import Allocations, Resources
from scheduler_worker.dependencies import PlacementQueries
from tests.support.ids import uid
from tests.support.plain_source import PlainSource

SMALL = Flavor(name="small", vcpus=1, memory_mb=1024, disk_gb=10)
METAL = Flavor(
    name="metal",
    vcpus=8,
    memory_mb=8192,
    disk_gb=100,
    extra_specs={
        "resources:CUSTOM_BAREMETAL": "1",
        "resources:VCPU": "0",
        "resources:MEMORY_MB": "0",
        "resources:DISK_GB": "0",
    },
)
ROOM: Resources = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}


def a_request(
    number: int = 1, *, instances: int = 1, flavor: Flavor = SMALL, **fields: object
) -> BuildRequested:
    ids = tuple(uid(number * 1000 + index, "b") for index in range(instances))
    return BuildRequested(request=uid(number, "a"), instances=ids, flavor=flavor, **fields)  # type: ignore[arg-type]


def a_candidate(
    number: int = 1,
    *,
    asked: Resources | None = None,
    free: Resources | None = None,
    cell: str = "cell1",
    zone: str = "",
    agent: str | None = None,
    traits: tuple[str, ...] = (),
) -> Candidate:
    root = uid(number, "c")
    return Candidate(
        root=root,
        host=f"host{number}",
        cell=cell,
        agent=f"agent{number}" if agent is None else agent,
        zone=zone,
        allocations={root: asked or {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}},
        shapes={root: 1},
        free=ROOM if free is None else free,
        capacity=ROOM,
        traits=traits,
    )


def a_state(number: int = 1, **fields: object) -> HostState:
    return HostState(root=uid(number, "c"), host=f"host{number}", **fields)  # type: ignore[arg-type]


def a_heartbeat(number: int = 1, *, sequence: int = 1, cell: str = "cell1", **state: object) -> HostReported:
    """The heartbeat of agent `number`, which has one host."""
    return HostReported(
        cell=cell, agent=f"agent{number}", sequence=sequence, period=10.0, hosts=(a_state(number, **state),)
    )


class TurnedClock:
    """A clock that tests turn."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.clock = Clock(now=lambda: self.now, chance=random.Random(7), monotonic=lambda: self.now)


@dataclass
class Holding:
    generation: int
    allocations: Allocations


@dataclass
class FakePlacement:
    source: PlainSource = field(default_factory=PlainSource)
    hosts: dict[str, Candidate] = field(default_factory=dict)
    held: dict[str, Holding] = field(default_factory=dict)
    retired: dict[str, str] = field(default_factory=dict)
    unplaceable: set[str] = field(default_factory=set)
    number: int = 0
    orders: list[ClaimRequested] = field(default_factory=list)
    releases: list[ReleaseRequested] = field(default_factory=list)

    @classmethod
    def of(cls, *candidates: Candidate) -> "FakePlacement":
        free = {candidate.root: dict(candidate.free) for candidate in candidates}
        return cls(PlainSource(candidates, free), {one.root: one for one in candidates})

    @property
    def free(self) -> dict[str, dict[str, int]]:
        return self.source.left

    def take(self, root: str, resources: Resources) -> None:
        for name, amount in resources.items():
            self.free[root][name] -= amount

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> list[ClaimAnswered]:
        self.orders.extend(orders)
        answers = [self._claim(order) for order in orders]
        if not self.source.lag:
            self.source.seen = self.number
        return answers

    async def release(self, question: ReleaseRequested) -> ReleaseAnswered:
        self.releases.append(question)
        return ReleaseAnswered(result=self._release(question))

    async def find_groups(self, question: FindGroups) -> GroupsFound:
        return GroupsFound(groups=())

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})

    async def usages(self, question: FindUsages) -> UsagesFound:
        raise NotImplementedError

    def queries(self) -> PlacementQueries:
        return PlacementQueries(
            claim_many=self.claim_many,
            release=self.release,
            providers=self.providers,
            groups=self.find_groups,
            allocations=self.allocations,
            usages=self.usages,
        )

    async def providers(self, question: FindProviders) -> ProvidersFound:
        known = [self.hosts[id_] for id_ in question.ids if id_ in self.hosts]
        return ProvidersFound(
            providers=tuple(
                Provider(
                    id=one.root,
                    name=one.host,
                    parent=None,
                    root=one.root,
                    generation=1,
                    cell=one.cell if one.agent else "",
                    agent=one.agent,
                    host=one.host if one.agent else "",
                )
                for one in known
            )
        )

    def _claim(self, order: ClaimRequested) -> ClaimAnswered:
        done: list[tuple[str, Choice]] = []
        self.number += 1
        results = [self._claim_one(claim, done) for claim in order.claims]
        if len(done) < len(results):
            for consumer, choice in done:
                del self.held[consumer]
                for root, resources in choice.allocations.items():
                    self.take(root, {name: -amount for name, amount in resources.items()})
            results = [Refused(refusals=()) if isinstance(result, Claimed) else result for result in results]
        return ClaimAnswered(results=tuple(results))

    def _claim_one(self, claim: ConsumerClaim, done: list[tuple[str, Choice]]) -> ClaimResult:
        if claim.consumer in self.retired:
            return self._ended(claim.consumer)
        if claim.consumer in self.held:
            held = self.held[claim.consumer]
            return Held(generation=held.generation, allocations=held.allocations)
        refusals: list[Full] = []
        for position, choice in enumerate(claim.choices):
            full = self._full(choice)
            if full is None:
                for root, resources in choice.allocations.items():
                    self.take(root, resources)
                self.held[claim.consumer] = Holding(1, choice.allocations)
                done.append((claim.consumer, choice))
                return Claimed(choice=position, generation=1, number=self.number, refused=tuple(refusals))
            refusals.append(full)
        return Refused(refusals=tuple(refusals))

    def _ended(self, consumer: str) -> Retired:
        return Retired(why=self.retired[consumer], unplaceable=consumer in self.unplaceable)

    def _full(self, choice: Choice) -> Full | None:
        for root, resources in choice.allocations.items():
            for name, amount in resources.items():
                free = self.free[root].get(name, 0)
                if amount > free:
                    return Full(provider=root, resource_class=name, asked=amount, free=free)
        return None

    def _release(self, question: ReleaseRequested) -> ReleaseResult:
        consumer = question.consumer
        if consumer in self.retired:
            return self._ended(consumer)
        held = self.held.get(consumer)
        if held is not None and held.generation != question.generation:
            return Held(generation=held.generation, allocations=held.allocations)
        if held is not None:
            del self.held[consumer]
        if question.retire:
            self.retired[consumer] = question.retire
            if question.unplaceable:
                self.unplaceable.add(consumer)
        return Released()
