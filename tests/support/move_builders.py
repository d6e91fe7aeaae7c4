"""Builders for tests of moves: builds as cells report them, and a placement."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus.claims import Choice, Claimed, ClaimResult, ConsumerClaim, Held, NothingHeld, Refused
from bus.decisions import AlsoAsked, Decision, Record
from bus.errors import NoAnswer, Unroutable
from bus.groups import FindGroups, GroupsFound, ServerGroup
from bus.messages import BuildPlaced, Selection
from bus.moves import BEGUN, MoveRequested
from bus.queries import BuildsFound, BuildStands, FindBuilds
from bus.reports import Inventory
from bus.requests import BuildSpec
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from tests.support.ids import uid
from tests.support.scheduler_builders import SMALL, FakePlacement, Holding, a_candidate

LITTLE = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}
BUILD, MOVE = uid(1000, "b"), uid(1, "e")


def a_move(number: int = 1, kind: str = "migrate", *, build: str = BUILD, **fields: Any) -> MoveRequested:
    return MoveRequested(move=uid(number, "e"), build=build, kind=kind, **fields)  # type: ignore[arg-type]


def on_host(number: int, **fields: Any) -> Selection:
    one = a_candidate(number)
    return Selection(
        root=one.root, host=one.host, agent=one.agent, choice=Choice({one.root: dict(LITTLE)}), **fields
    )


def a_build_that_stands(
    host: int = 1,
    *,
    build: str = BUILD,
    status: str = "active",
    attempt: int = 1,
    generation: int | None = 1,
    asked: AlsoAsked | None = None,
    cell: str = "cell1",
    **fields: Any,
) -> BuildStands:
    spec = BuildSpec(flavor=SMALL, project="p", user="u", name="web-1", metadata={"a": "b"})
    chosen = on_host(host)
    placed = BuildPlaced(
        build=build,
        request=uid(77, "a"),
        cell=cell,
        chosen=chosen,
        generation=1,
        spec=spec,
        decision=Decision(record=Record(asked=asked)),
    )
    known: dict[str, Any] = {"attempt": attempt, "generation": generation, "chosen": chosen, "spec": spec}
    return BuildStands(build=build, status=status, placed=placed, host=chosen.host, **{**known, **fields})


@dataclass
class Cells:
    stands: dict[str, dict[str, BuildStands]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    questions: list[FindBuilds] = field(default_factory=list)

    def know(self, *stands: BuildStands) -> None:
        for one in stands:
            self.stands.setdefault(one.placed.cell, {})[one.build] = one

    async def find(self, question: FindBuilds) -> BuildsFound:
        self.questions.append(question)
        if question.cell in self.silent:
            raise NoAnswer("nobody")
        if question.cell not in self.stands:
            raise Unroutable(f"no {question.cell}")
        known = self.stands[question.cell]
        return BuildsFound(builds=tuple([known[build] for build in question.builds if build in known]))


@dataclass
class MovingPlacement(FakePlacement):
    """Placement without a database that knows how moves begin, and are undone."""

    groups: dict[str, ServerGroup] = field(default_factory=dict)
    metal: set[str] = field(default_factory=set)  # roots that are bare metal

    def hold(self, consumer: str, host: int, generation: int = 1) -> None:
        root = uid(host, "c")
        self.take(root, LITTLE)
        self.held[consumer] = Holding(generation, {root: dict(LITTLE)})

    def roots(self, consumer: str) -> set[str]:
        held = self.held.get(consumer)
        return set(held.allocations) if held is not None else set()

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        held = {consumer: self.held[consumer] for consumer in question.consumers if consumer in self.held}
        consumers = [
            Consumer(
                id=one,
                generation=its.generation,
                project="p",
                user="u",
                type="INSTANCE",
                allocations=its.allocations,
            )
            for one, its in held.items()
        ]
        return AllocationsFound(consumers=tuple(consumers), generations={})

    async def find_groups(self, question: FindGroups) -> GroupsFound:
        found: Sequence[ServerGroup] = tuple(self.groups.values())
        if question.ids:
            found = [one for one in found if one.id in question.ids]
        if question.members:
            found = [one for one in found if not one.members.keys().isdisjoint(question.members)]
        return GroupsFound(groups=tuple(found))

    async def providers(self, question: FindProviders) -> ProvidersFound:
        known = (await super().providers(question)).providers
        return ProvidersFound(providers=tuple([self._described(one) for one in known]))

    def _described(self, provider: Provider) -> Provider:
        host = self.hosts[provider.id]
        inventories = {name: Inventory(total=amount) for name, amount in host.capacity.items()}
        if provider.id in self.metal:
            inventories = {"CUSTOM_NODE": Inventory(total=1)}
        return replace(provider, traits=host.traits, inventories=inventories)

    def _claim_one(self, claim: ConsumerClaim, done: list[tuple[str, Choice]]) -> ClaimResult:
        if claim.begins is None:
            return super()._claim_one(claim, done)
        if claim.begins in self.retired:
            return self._ended(claim.begins)
        if claim.consumer in self.retired:
            return self._ended(claim.consumer)
        before = self.held.get(claim.consumer)
        is_at = before.generation if before is not None else None
        if is_at != claim.generation or (claim.keep in self.held):
            return Held(generation=is_at or 0, allocations=before.allocations if before is not None else {})
        if claim.take_over is not None and claim.take_over not in self.held:
            return Refused(refusals=(NothingHeld(consumer=claim.take_over),))
        for position, choice in enumerate(claim.choices):
            if claim.take_over is None and self._full(choice) is not None:
                continue
            self._begin(claim, choice, before)
            done.append((claim.consumer, choice))
            return Claimed(choice=position, generation=(is_at or 0) + 1, number=self.number)
        full = [self._full(choice) for choice in claim.choices]
        return Refused(refusals=tuple([one for one in full if one is not None]))

    def _begin(self, claim: ConsumerClaim, choice: Choice, before: Holding | None) -> None:
        assert claim.begins is not None
        self.retired[claim.begins] = BEGUN
        if before is not None and claim.keep is not None:
            self.held[claim.keep] = Holding(1, before.allocations)
        elif before is not None:
            for root, resources in before.allocations.items():
                self.take(root, {name: -amount for name, amount in resources.items()})
        taken = choice.allocations
        if claim.take_over is not None:
            taken = self.held.pop(claim.take_over).allocations
        else:
            for root, resources in taken.items():
                self.take(root, resources)
        self.held.pop(claim.consumer, None)
        if taken:
            generation = before.generation if before is not None else 0
            self.held[claim.consumer] = Holding(generation + 1, taken)
