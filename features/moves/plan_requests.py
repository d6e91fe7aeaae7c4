"""Requests plans of many moves as a client and follows them; says what emptying hosts would do."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from berth.kit import PUBLISH_SECONDS, checked, instance_pages, repeated_until_answered
from bus import topics
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.parts import MoveParts, PlanParts
from bus.queries import PRESENT, FindInstances, Instance
from bus.resources import Consumer, FindAllocations, FindProviders, Provider
from features.moves.messages import (
    FIND_PLANS,
    START_PLAN,
    STOP_PLAN,
    EmptiedHost,
    Emptying,
    FindPlans,
    MoveKind,
    MoveOfPlan,
    MoveRequested,
    PlanOfMoves,
    PlanStands,
    StartPlan,
    StopPlan,
    SupposedDestination,
)
from features.moves.moving import REFUSED, MoveOutcome, supposed
from features.moves.supposed_moves import SupposedMove, moves_off

SOON = 0.05  # until the first read of a plan; the time doubles while the plan does not change
POLL_SECONDS = 1.0  # the longest time between two reads


class PlanListener:
    """Base class of objects that receive the progress of a plan; its methods do nothing."""

    def so_far(self, stands: PlanStands) -> None:
        """Receive the progress of a plan."""

    def on_move(self, move: MoveOfPlan) -> None:
        """Receive a move that has ended."""


@dataclass
class FollowedPlan:
    """A running plan, and what a client has read of it."""

    bus: Bus
    id: str
    listener: PlanListener
    stands: PlanStands | None = None
    moved: dict[str, MoveOfPlan] = field(default_factory=dict)  # the last ended move of each instance
    _version: int = 0

    async def ended(self, until: Callable[[PlanStands], bool] = lambda stands: False) -> PlanStands:
        """Read the plan until it has ended, or until `until`. If no scheduler answers, wait for one."""
        pause = SOON
        while True:
            stands = await repeated_until_answered(self.bus, self._read)
            if stands is not None:
                if stands.version != self._version or self.stands is None:
                    pause = SOON
                    self._take(stands)
                if (stands.ended and not stands.moves) or until(stands):
                    return stands
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)

    async def stop(self) -> None:
        """Let the plan request no further moves, and read once more how far it is."""
        await repeated_until_answered(
            self.bus, lambda: self.bus.asker(STOP_PLAN)(StopPlan(plan=self.id)), PUBLISH_SECONDS
        )
        if (stands := await repeated_until_answered(self.bus, self._read, PUBLISH_SECONDS)) is not None:
            self._take(stands)

    async def _read(self) -> PlanStands | None:
        question = FindPlans(plans=(self.id,), moves_after=self._version)
        return next(iter((await self.bus.asker(FIND_PLANS)(question)).plans), None)

    def _take(self, stands: PlanStands) -> None:
        self._version, self.stands = stands.version, stands
        for move in stands.moves:
            if move.ended:
                self.moved[move.build] = move
                self.listener.on_move(move)
        self.listener.so_far(stands)


async def start_plan(bus: Bus, plan: PlanOfMoves, listener: PlanListener) -> FollowedPlan:
    """Start a plan; raise OperationRefused if the scheduler refuses it. If a plan with the same goal runs,
    return that.
    """
    asked = checked(StartPlan(plan=plan))
    started = await repeated_until_answered(bus, lambda: bus.asker(START_PLAN)(asked), PUBLISH_SECONDS)
    if started.refused:
        raise OperationRefused(started.refused)
    return FollowedPlan(bus, started.plan, listener)


async def rehearse_plan(bus: RecordingBus, plan: PlanOfMoves) -> None:
    """Raise OperationRefused if the operator may not start a plan."""
    await bus.rehearse(checked(StartPlan(plan=plan)))


def emptying_plan(
    hosts: Sequence[Provider],
    kind: MoveKind,
    most: int,
    *,
    to_cell: str = "",
    parts: MoveParts | None = None,
    because: str = "",
    patient: bool = True,
) -> PlanOfMoves:
    """Return the plan that moves all instances off these hosts."""
    listed = [EmptiedHost(root=host.id, host=host.host or host.name, cell=host.cell) for host in hosts]
    goal = Emptying(
        hosts=tuple(listed), kind=kind, to_cell=to_cell, parts=parts or MoveParts(), because=because,
        patient=patient,
    )  # fmt: skip
    return PlanOfMoves(id=Clock().uuid(), parts=PlanParts(goal), most=most)


def outcome_of(move: MoveOfPlan, kind: str) -> MoveOutcome:
    """Return the result of an ended move of a plan."""
    end, _, reason = (REFUSED, "", move.result) if move.code else move.result.partition(": ")
    return MoveOutcome(
        move=move.move, build=move.build, end=end, kind=kind, host=move.host, reason=reason, code=move.code
    )


def plan_sentence(stands: PlanStands) -> str:
    """Return how far a plan is, such as `3 moved, 1 under way, none stays`."""
    rest = stands.total - stands.moved - stands.gone - stands.under_way - len(stands.stay)
    counts = ((stands.gone, "deleted meanwhile"), (stands.under_way, "under way"), (rest, "not started"))
    words = [f"{count} {what}" for count, what in counts if count > 0]
    stay = f"{len(stands.stay)} stay" if stands.stay else "none stays"
    return ", ".join([f"{stands.moved} moved", *words, stay])


async def instances_on(bus: Bus, hosts: Iterable[Provider]) -> list[Instance]:
    """Return the unfinished instances on the hosts; raise OperationRefused if a cell does not answer."""
    found: list[Instance] = []
    for host in hosts:
        if not host.cell:
            continue
        try:
            question = FindInstances(cell=host.cell, host=host.id, statuses=PRESENT)
            async for page in instance_pages(bus, question):
                found += page.instances
        except (Unavailable, Unroutable) as problem:
            raise OperationRefused(
                f"cell {host.cell} does not list the instances on {host.host or host.name}: {problem}"
            ) from None
    return found


async def remaining_consumers(bus: Bus, host: Provider, excluding: Collection[str]) -> list[Consumer]:
    """Return the consumers with allocations from the host, except the ids in `excluding`."""
    tree = (await bus.asker(topics.PROVIDERS)(FindProviders(in_tree=host.id, parts=()))).providers
    question = FindAllocations(providers=tuple(provider.id for provider in tree))
    consumers = (await bus.asker(topics.ALLOCATIONS)(question)).consumers
    return [consumer for consumer in consumers if consumer.id not in excluding]


@dataclass(frozen=True)
class SupposedHost:
    """The expected result of draining a host, from an evaluation without moves."""

    host: Provider
    statuses: Counter[str]  # its instances by status
    instances: list[SupposedDestination]  # the active instances


async def suppose_emptying(bus: Bus, hosts: Sequence[Provider], asked: MoveRequested) -> list[SupposedHost]:
    """Return for each host where a drain would move its instances, and which would stay. `asked`: the request
    to copy for each move.
    """
    instances = {host.id: await instances_on(bus, [host]) for host in hosts}

    async def suppose(moves: Sequence[MoveRequested]) -> Sequence[SupposedMove]:
        return await supposed(bus, list(map(checked, moves)), hosts)

    moves = await moves_off(
        (one for host in hosts for one in instances[host.id]), asked, suppose, Clock().uuid
    )
    found = []
    for host in hosts:
        there = {one.build: one.status for one in instances[host.id]}
        leaving = [one for one in moves if one.build in there]
        found.append(SupposedHost(host, Counter(there.values()), leaving))
    return found
