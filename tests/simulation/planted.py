"""Bugs planted on purpose: each removes one fence of the product. The simulation must find each of them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from bus import topics
from bus.agent_builds import AgentBuilds
from bus.claims import MIGRATION, ConsumerClaim, Full, Released
from bus.delivery.settling import Emitter, ServedRow
from bus.direct import DirectTransport, Handed
from bus.errors import Unavailable
from bus.messages import AgentReported
from bus.protocol import Receipt
from bus.sql.failures import Conflict
from cell_conductor import applying, builds
from cell_conductor.builds import Builds
from cell_conductor.core import leftovers
from cell_conductor.core import step as core_step
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.ownership import GuestState
from features.groups.places import GroupPlaces
from features.headroom import plan as headroom
from features.headroom.controller import HeadroomController
from features.moves import agent_moves
from features.moves.core import guest_phases
from features.moves.core.guest_phases import PhaseEnd
from features.moves.messages import MoveOrdered
from features.waiting.core.waiting_queues import WaitingQueues
from features.waiting.queue import WaitingQueue
from features.waiting.results import Results, WaitEvaluator
from features.waiting.store import WaitingStore
from placement_worker.core import capacity
from placement_worker.core.capacity import ClaimWorld, Holder
from placement_worker.worker import Placement
from scheduler_worker.core.events import Fence, FenceAnswers
from scheduler_worker.dependencies import Ending


@dataclass(frozen=True)
class PlantedBug:
    """A bug, the fence that it removes, and the worlds that find it soonest."""

    fence: str
    patches: Callable[[], Sequence[Any]]  # returns patches of the product
    faults: str = ""
    moves: bool | None = None
    headroom: bool = False
    metal: bool = False
    complaint: str = ""  # expected in the broken invariant


def _unfenced_claims() -> Sequence[Any]:
    fence = capacity.fence

    def unfenced(claim: ConsumerClaim, world: ClaimWorld) -> Any:
        holder = world.holders.get(claim.consumer)
        seen = claim.generation if holder is None else holder.generation or None
        return fence(replace(claim, generation=seen), world)

    return [patch.object(capacity, "fence", unfenced)]


def _claims_of_retired() -> Sequence[Any]:
    fence = capacity.fence

    def raised(claim: ConsumerClaim, world: ClaimWorld) -> Any:
        world.retired.pop(claim.consumer, None)
        return fence(claim, world)

    return [patch.object(capacity, "fence", raised)]


def _unfenced_releases() -> Sequence[Any]:
    release = capacity.release

    def unfenced(order: Any, world: ClaimWorld) -> Any:
        holder = world.holders.get(order.consumer)
        if holder is not None and holder.generation and order.generation != "any":
            order = replace(order, generation=holder.generation)
        return release(order, world)

    return [patch.object(capacity, "release", unfenced)]


def _no_capacity_check() -> Sequence[Any]:
    refusal = capacity._refusal

    def without_amounts(choice: Any, before: Any, world: ClaimWorld) -> Any:
        found = refusal(choice, before, world)
        return None if isinstance(found, Full) and found.limit == "" else found

    return [patch.object(capacity, "_refusal", without_amounts)]


def _node_classes_offered() -> Sequence[Any]:
    from placement_worker.core import reports, trees

    return [patch.object(module, "withheld_node", lambda provider: provider) for module in (reports, trees)]


def _no_group_check() -> Sequence[Any]:
    return [patch.object(GroupPlaces, name, lambda *_: None) for name in ("refusal", "topology_refusal")]


def _leftovers_released() -> Sequence[Any]:
    return [patch.object(leftovers, "add", lambda build, *_: build)]


def _source_released() -> Sequence[Any]:
    leave = ClaimWorld.leave

    def left_to_none(world: ClaimWorld, holder: Holder, heir: Holder, type_: str) -> None:
        if type_ == MIGRATION:
            world.hold(holder, 0, {}, None)
        else:
            leave(world, holder, heir, type_)

    return [patch.object(ClaimWorld, "leave", left_to_none)]


def _source_not_stopped() -> Sequence[Any]:
    afterwards, refusal = guest_phases.afterwards, guest_phases.refusal

    def blind(order: MoveOrdered, here: Mapping[int, GuestState]) -> str:
        why = refusal(order, here)
        return "" if why.endswith("runs here") else why

    def running(order: MoveOrdered, state: GuestState, end: PhaseEnd) -> GuestState | None:
        return "running" if order.phase == "send" else afterwards(order, state, end)

    return [
        patch.object(agent_moves, "refusal", blind),
        patch.object(agent_moves, "meanwhile", lambda _, state: state),
        patch.object(agent_moves, "afterwards", running),
    ]


def _no_wake_up() -> Sequence[Any]:
    return [patch.object(WaitingQueues, "changed", lambda *_: None)]


def _reports_of_any_attempt() -> Sequence[Any]:
    step = core_step.step

    def trusting(build: Any, event: Any, now: float, limits: Any, courses: Any) -> Any:
        is_old = isinstance(event, AgentReported) and build is not None and build.status != "held"
        if is_old and event.attempt != build.attempt:
            event = replace(event, attempt=build.attempt, root=build.host.root)
        return step(build, event, now, limits, courses)

    return [patch.object(module, "step", trusting) for module in (applying, builds)]


def _void_attempts_built() -> Sequence[Any]:
    return [patch.object(AgentBuilds, "is_void", lambda *_: False)]


def _acknowledged_first() -> Sequence[Any]:
    handle = ServedRow.handle

    async def acknowledge_and_handle(row: ServedRow, readable: Any, spawn: Any = None) -> Any:
        for delivery, _ in readable:
            delivery.done()
        return await handle(row, readable, spawn)

    return [patch.object(ServedRow, "handle", acknowledge_and_handle)]


def _unconfirmed_results() -> Sequence[Any]:
    emit = Emitter.emit

    async def emit_once(emitter: Emitter, made: Any, declared: Any) -> None:
        with suppress(Unavailable):
            await emit(emitter, made, declared)

    return [patch.object(Emitter, "emit", emit_once)]


def _ends_not_fenced() -> Sequence[Any]:
    async def released(_: Ending, of_each: Sequence[Sequence[Fence]]) -> list[FenceAnswers]:
        return [FenceAnswers(tuple((fence.instance, Released()) for fence in fences)) for fences in of_each]

    return [patch.object(Ending, "fence", released)]


def _reported_before_on_disk() -> Sequence[Any]:
    async def at_once(_: AgentDisk) -> None:
        pass

    return [patch.object(AgentDisk, "settled", at_once)]


def _orders_not_repeated() -> Sequence[Any]:
    async def nothing(_: Builds) -> Sequence[Any]:
        return []

    return [patch.object(Builds, "resume", nothing)]


def _guests_started_unasked() -> Sequence[Any]:
    def begin(agent: SimulatedAgent) -> None:
        agent.disk.asleep.clear()
        agent.confirm_guests()

    return [patch.object(SimulatedAgent, "_begin", begin)]


def _lost_commits_unnoticed() -> Sequence[Any]:
    return [
        patch.object(Placement, "_forget", lambda _: None),
        patch.object(Builds, "_forget", lambda _: None),
    ]


def _handed_over_and_forgotten() -> Sequence[Any]:
    async def forget(self: DirectTransport, awaited: Sequence[Handed], receipt: Receipt) -> None:
        pass

    return [patch.object(DirectTransport, "_until_handled", forget)]


def _reports_in_memory() -> Sequence[Any]:
    in_memory = dataclasses.replace(topics.AGENT_REPORT, direct="handled")
    return [patch.dict(topics.TOPIC_NAMED, {AgentReported.__name__: in_memory})]


def _slots_anywhere() -> Sequence[Any]:
    def lacks(counts: Any, domain: str) -> bool:
        return bool(counts.total < counts.needed[domain])

    return [patch.object(headroom._ClassCounts, "lacks", lacks)]


def _changes_unnoticed() -> Sequence[Any]:
    return [patch.object(HeadroomController, "_note_change", lambda _: None)]


def _reasons_stored_first() -> Sequence[Any]:
    """Return patches to the order of an earlier version: the reasons of waiting requests are stored before
    results are published, and after an error in between nothing is tried again.
    """
    become = WaitingQueue._become

    async def stored_first(
        queue: WaitingQueue, evaluator: WaitEvaluator, results: Results, seen: int
    ) -> None:
        async def nothing(*_: Any) -> None:
            pass

        with patch.object(queue, "_publish", nothing):
            await become(queue, evaluator, results, seen)
        await queue._publish(evaluator, results)

    return [
        patch.object(WaitingQueue, "_become", stored_first),
        patch.object(WaitingQueue, "_put_back", lambda *_: None),
    ]


def _deletions_not_repeated() -> Sequence[Any]:
    drop = WaitingStore.drop

    async def drop_once(store: WaitingStore, requests: Any) -> None:
        with suppress(Unavailable, Conflict):
            await drop(store, requests)

    return [patch.object(WaitingStore, "drop", drop_once)]


_OFTEN = "statements,failing_statements=0.8,crashes=0"  # a restart repairs what these bugs leave behind

PLANTED: Mapping[str, PlantedBug] = {
    "claim-generation": PlantedBug(
        "placement_worker.core.capacity.fence: the generation that a claim expects", _unfenced_claims
    ),
    "retired-consumer": PlantedBug(
        "placement_worker.core.capacity.fence: no claim for a retired consumer", _claims_of_retired
    ),
    "release-generation": PlantedBug(
        "placement_worker.core.capacity.release: the generation that a release expects", _unfenced_releases
    ),
    "capacity": PlantedBug(
        "placement_worker.core.capacity._refusal: no more than the capacity", _no_capacity_check
    ),
    "node-class": PlantedBug(
        "placement_worker.core.trees.withheld_node: a held node has no other class to claim",
        _node_classes_offered, metal=True, complaint="a node with two holders",
    ),
    "server-group": PlantedBug(
        "features.groups.places.GroupPlaces.refusal: policies of server groups", _no_group_check
    ),
    "leftover": PlantedBug(
        "cell_conductor.core.leftovers.add: resources of a guest that may still exist are held",
        _leftovers_released,
    ),
    "handed-over": PlantedBug(
        "bus.direct.DirectTransport: a message is published when its reader in the process has handled it",
        _handed_over_and_forgotten, moves=False,
    ),
    "report-in-memory": PlantedBug(
        "bus.topics.AGENT_REPORT: a report stays at the broker until the build's end is published",
        _reports_in_memory, faults="crashes=20", moves=False, complaint="never ended",
    ),
    "move-source": PlantedBug(
        "placement_worker.core.capacity.ClaimWorld.leave: a move holds its source",
        _source_released, moves=True,
    ),
    "source-stopped": PlantedBug(
        "features.moves.core.guest_phases: a guest starts after its source has stopped", _source_not_stopped,
        moves=True, complaint="runs twice",
    ),
    "wake-up": PlantedBug(
        "features.waiting.core.waiting_queues.changed: released capacity wakes requests", _no_wake_up,
        complaint="waits, and would fit",
    ),
    "attempt-number": PlantedBug(
        "cell_conductor.core.step: reports of an older attempt do not decide", _reports_of_any_attempt
    ),
    "void-attempt": PlantedBug(
        "bus.agent_builds.AgentBuilds.is_void: no build after its destruction", _void_attempts_built
    ),
    "acknowledged-first": PlantedBug(
        "bus.delivery.settling.ServedRow: a message is acknowledged after its results are confirmed",
        _acknowledged_first,
    ),
    "unconfirmed": PlantedBug(
        "bus.delivery.settling.Emitter.emit: unconfirmed results are published again", _unconfirmed_results,
        faults="leader",
    ),
    "fenced-ends": PlantedBug(
        "scheduler_worker.dependencies.Ending.fence: a request fails after its instances are retired",
        _ends_not_fenced,
    ),
    "reported-before-disk": PlantedBug(
        "compute_sim.agent_disk.AgentDisk.settled: reports wait until the agent's file is on disk",
        _reported_before_on_disk, faults="file",
    ),
    "orders-repeated": PlantedBug(
        "cell_conductor.builds.Builds.resume: unanswered orders are repeated", _orders_not_repeated,
        faults="queue",
    ),
    "guests-confirmed": PlantedBug(
        "compute_sim.agent.SimulatedAgent._begin: guests start after placement has confirmed them",
        _guests_started_unasked, moves=True,
    ),
    "fail-over": PlantedBug(
        "Placement._forget, Builds._forget: a fail-over clears what is remembered of lost commits",
        _lost_commits_unnoticed, faults="commits",
    ),
    "evaluated-again": PlantedBug(
        "features.waiting.queue._put_back: after an error a claimed request is evaluated again",
        _reasons_stored_first, faults=_OFTEN, moves=False, complaint="ended",
    ),
    "deleted-again": PlantedBug(
        "features.waiting.queue._publish: a published request not deleted is tried again",
        _deletions_not_repeated, faults=_OFTEN, moves=False,
    ),
    "headroom-outside": PlantedBug(
        "features.headroom.plan: slots on the lost hosts do not count", _slots_anywhere,
        headroom=True, complaint="does not evacuate",
    ),
    "headroom-changes": PlantedBug(
        "features.headroom.controller.HeadroomController: slots are adjusted after a change",
        _changes_unnoticed,
        headroom=True, complaint="is reported as kept",
    ),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[PlantedBug]:
    """Plant a bug for the time of a `with` block."""
    bug = PLANTED[name]
    patches = bug.patches()
    for each in patches:
        each.start()
    try:
        yield bug
    finally:
        for each in reversed(patches):
            each.stop()
