"""Plans that empty hosts: for drains, evacuations and maintenance windows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.parts import PlanParts
from bus.queries import PRESENT, FindInstances, Instance
from bus.resources import FindAllocations
from bus.vocabulary import Id, portions
from features.moves.core.emptying import CHANGED, next_step
from features.moves.core.plan_moves import DONE, MovesOfPlan, StoredMove, move_id
from features.moves.host_traits import cause_trait
from features.moves.messages import Emptying, MoveOfPlan, MovePlan, MoveRequested, PlanOfMoves, PlanStands
from features.moves.plans import MovePlans, PlanKind, PlanStep
from scheduler_worker.extension import CellQueries, PlacementQueries

LIST_SECONDS = 2.0  # between two reads of the instances of up to HOSTS_A_LIST hosts
HOSTS_A_LIST = 50
MOST_SHOWN = 1000  # instances that stay, with the reason


@dataclass(frozen=True)
class HostDeparture:
    """The instances that are still on a host, why moves of some of them failed, and how many moves from the
    host are in progress: a moving instance may return to the host.
    """

    memory_mb: Mapping[Id, int] = field(default_factory=dict)  # instance → its memory
    failed: Mapping[Id, str] = field(default_factory=dict)  # instance → why its last move failed
    in_progress: int = 0


@dataclass(frozen=True)
class _Listing:
    """The instances that were on the hosts of a plan, and the moves that had ended before."""

    at: float
    hosts: frozenset[Id]
    instances: Sequence[Instance]
    memory_mb: Mapping[Id, int]
    ended: frozenset[Id]


class HostEmptying(PlanKind):
    """Carries out plans with the part Emptying."""

    def __init__(
        self, placement: PlacementQueries, cells: CellQueries, source: CandidateSource, clock: Clock
    ) -> None:
        self._placement = placement
        self._cells = cells
        self._source = source
        self._clock = clock
        self._listings: dict[Id, _Listing] = {}

    def carries_out(self, plan: PlanOfMoves) -> bool:
        return Emptying in plan.parts

    def same(self, plan: PlanOfMoves, other: PlanOfMoves) -> bool:
        """Return whether a running plan empties the hosts of another plan already."""
        running, asked = _goal(plan), _goal(other)
        ways = [(goal.kind, goal.to_cell, goal.because, goal.keeps_on) for goal in (running, asked)]
        return ways[0] == ways[1] and {*_roots(asked)} <= {*_roots(running)}

    async def step(self, stands: PlanStands, memo: dict[str, object], moves: MovesOfPlan) -> PlanStep:
        plan, goal, now = stands.plan, _goal(stands.plan), self._clock.now()
        listing = self._listings.get(plan.id)
        if listing is None or self._is_stale(listing, goal, moves):
            listing = await self._list(plan, goal, moves)
        since = {build for build in moves.of_builds if _ended_since(listing, moves.of_builds[build])}
        most = 0 if stands.stopping else plan.most - len(moves.in_progress)
        for _ in range(2):
            there = [instance for instance in listing.instances if instance.build not in since]
            step = next_step(goal, there, self._opened(goal), moves, most, now)
            if step.new or moves.in_progress or not since:
                break
            # Each instance of the list was handled. Only a new list shows which instances are still there.
            listing, since = await self._list(plan, goal, moves), set()
        stay = dict(sorted(step.stay.items())[:MOST_SHOWN])
        over = step.is_over or (stands.stopping and not moves.in_progress)
        code = "stopped" if over and not step.is_over else "stay" if over and stay else ""
        if over:
            self._listings.pop(plan.id, None)
        return PlanStep(
            counts={"total": step.total, "moved": step.moved, "gone": step.gone, "stay": stay},
            memo={"there": _by_host(listing)},
            new=[self._move(plan, goal, instance, listing, moves, now) for instance in step.new],
            over=over,
            code=code,
            why=f"{len(step.stay)} stay" if code == "stay" else "",
        )

    def forget(self, plans: Iterable[Id]) -> None:
        """Drop what is known of all plans except the given ones."""
        self._listings = {id_: self._listings[id_] for id_ in plans if id_ in self._listings}

    def _is_stale(self, listing: _Listing, goal: Emptying, moves: MovesOfPlan) -> bool:
        pause = LIST_SECONDS * max(1.0, len(goal.hosts) / HOSTS_A_LIST)
        changed = any(
            each.move.ended and each.move.code in CHANGED and each.move.move not in listing.ended
            for each in moves.stored
        )
        is_old = self._clock.now() - listing.at >= pause
        return is_old or changed or listing.hosts != frozenset(_roots(goal))

    def _opened(self, goal: Emptying) -> frozenset[Id]:
        """Return the hosts that are not closed any more for the cause of the plan."""
        if not goal.because:
            return frozenset()
        trait, roots = cause_trait(goal.because), {*_roots(goal)}
        closed = {host.uuid for host in self._source.hosts() if host.uuid in roots and trait in host.traits}
        return frozenset(roots - closed)

    async def _list(self, plan: PlanOfMoves, goal: Emptying, moves: MovesOfPlan) -> _Listing:
        now = self._clock.now()
        instances = [
            instance
            for host in goal.hosts
            if host.cell
            for instance in await instances_on(self._cells, host.cell, host.root)
        ]
        memory = await memory_of(self._placement, [instance.build for instance in instances])
        ended = frozenset(each.move.move for each in moves.stored if each.move.ended)
        made = _Listing(now, frozenset(_roots(goal)), instances, memory, ended)
        self._listings[plan.id] = made
        return made

    def _move(
        self,
        plan: PlanOfMoves,
        goal: Emptying,
        instance: Instance,
        listing: _Listing,
        moves: MovesOfPlan,
        now: float,
    ) -> StoredMove:
        build = instance.build
        id_ = move_id(plan.id, f"{build} {len(moves.of_builds.get(build, ()))}")
        request = MoveRequested(
            move=id_, build=build, kind=goal.kind, cell=instance.cell, to_cell=goal.to_cell, parts=goal.parts
        )
        move = MoveOfPlan(move=id_, build=build, plan=plan.id, root=instance.root, at=now)
        return StoredMove(move, request, listing.memory_mb.get(build, 0))


def _ended_since(listing: _Listing, tried: Sequence[MoveOfPlan]) -> bool:
    return any(move.ended and move.move not in listing.ended for move in tried)


def _by_host(listing: _Listing) -> dict[Id, dict[Id, int]]:
    found: dict[Id, dict[Id, int]] = {root: {} for root in sorted(listing.hosts)}
    for instance in listing.instances:
        found[instance.root][instance.build] = listing.memory_mb.get(instance.build, 0)
    return found


def _goal(plan: PlanOfMoves) -> Emptying:
    goal = plan.parts.get(Emptying)
    assert goal is not None, plan.id
    return goal


def _roots(goal: Emptying) -> list[Id]:
    return [host.root for host in goal.hosts]


async def kept_empty(
    plans: MovePlans, id_: Id, goal: Emptying, most: int, plan: MovePlan
) -> dict[Id, HostDeparture]:
    """Start the plan with this id and goal, or change its goal. Return the state of each host that it
    empties, by root, if the plan has read its instances.
    """
    await plans.set(PlanOfMoves(id=id_, parts=PlanParts(goal), most=most, plan=plan))
    found = await plans.stored(id_)
    if found is None:
        return {}
    there: dict[Id, dict[Id, int]] = found.memo.get("there", {})
    states = {}
    for root, memory in there.items():
        last = {build: found.moves.of_builds[build][-1] for build in memory if build in found.moves.of_builds}
        failed = {build: move.problem for build, move in last.items() if move.ended and move.result != DONE}
        in_progress = sum(not each.move.ended for each in found.moves.stored if each.move.root == root)
        states[root] = HostDeparture(memory, failed, in_progress)
    return states


async def instances_on(cells: CellQueries, cell: str, root: Id) -> list[Instance]:
    """Return the instances that are being built, active, being moved or being deleted on a host."""
    found: list[Instance] = []
    question, more = FindInstances(cell=cell, host=root, statuses=PRESENT), True
    while more:
        page = await cells.instances(question)
        found += [instance for instance in page.instances if instance.root == root]
        more = page.more
        question = FindInstances(cell=cell, host=root, statuses=PRESENT, after=page.last)
    return found


async def memory_of(placement: PlacementQueries, builds: Iterable[Id]) -> dict[Id, int]:
    """Return the memory of instances in MB, by id."""
    memory: dict[Id, int] = {}
    for some in portions(sorted(builds), 500):
        for consumer in (await placement.allocations(FindAllocations(consumers=some))).consumers:
            amounts = consumer.allocations.values()
            memory[consumer.id] = sum(each.get("MEMORY_MB", 0) for each in amounts)
    return memory
