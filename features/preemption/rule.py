"""The rule of preemption: a claim of higher priority takes the allocations of victims.

The claim gets the amounts that are not free on its providers. A CLEANUP consumer holds the remaining
allocations of each victim, because its guest uses them until its agent confirms the deletion.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Counter

from bus.claims import CLEANUP, Choice, ClaimRequested, ConsumerClaim, Retired, RuleRefused
from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Allocations, common, without
from features.preemption import store as preemptions
from features.preemption.messages import SHELVED, Preemption, Preempts, Victim
from placement_worker.extension import Book, ClaimRule, ClaimScope, ClaimWorld, Holder, Unread

VICTIMS = Counter(
    "berth_preempted_instances", "instances that claims of higher priority have preempted", ["priority"]
)


@dataclass(slots=True)
class PreemptionWorld:
    """Numbers of victims of projects within the period of their budgets, and the records to store."""

    used: dict[str, int]  # project → victims
    records: list[Preemption] = field(default_factory=list)


class PreemptionRule(ClaimRule):
    """Judges whether a claim may replace its victims, whose allocations pass to CLEANUP holders in the same
    transaction.
    """

    name = "preemption"
    locks = "projects"

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book

    async def prepare(self, scope: ClaimScope, now: float) -> None:
        if any(victims_of(scope.claims)):
            await self._book.types.ensure(self._database, (CLEANUP,), now)

    def needs(self, scope: ClaimScope) -> bool:
        victims = [*victims_of(scope.claims)]
        if victims:
            scope.other_consumers.update(victim.build for victim in victims)
            for victim in victims:
                scope.new_consumers.setdefault(victim.holder, None)
            scope.projects.update(_preempting(scope))
            scope.locks.add(self.locks)
        return bool(victims)

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        state = PreemptionWorld(await preemptions.used(tx, _preempting(scope), world.now))
        world.state[PreemptionRule] = state
        tx.after_commit(lambda: _count(state.records))

    def before(self, claim: ConsumerClaim, choice: Choice, world: ClaimWorld) -> RuleRefused | None:
        """Release, from the victims of a claim, the amounts by which a choice exceeds the free capacity."""
        preempts = claim.parts.get(Preempts)
        if preempts is None:
            return None
        state: PreemptionWorld = world.state[PreemptionRule]
        used = state.used.get(claim.project, 0)
        needs = max(len(preempts.victims), preempts.together)
        if 0 < preempts.budget < used + needs:
            return _over_budget(claim.project, used, preempts.budget, needs)
        for victim in preempts.victims:
            if why := _bars_victim(victim, claim, world):
                why = f"{victim.build} cannot be preempted: {why}"
                return RuleRefused(rule="preemption", code="not_preemptible", why=why)
        lacking = _lacking(choice.allocations, world)
        for victim in preempts.victims:
            holder, rest = world.holders[victim.build], world.holders[victim.holder]
            if holder.held:  # if not, an earlier claim of the request has preempted this victim
                world.leave(holder, rest, CLEANUP)
            taken = common(rest.held, lacking)
            lacking = without(lacking, taken)
            left = without(rest.held, taken)
            world.hold(rest, rest.generation if left else 0, left, None)
        return None

    def accepted(self, request: ClaimRequested, world: ClaimWorld) -> None:
        for claim in request.claims:
            if (preempts := claim.parts.get(Preempts)) is not None:
                _record(claim, preempts, world)

    def write(self, world: ClaimWorld) -> Iterable[BoundStatement]:
        state: PreemptionWorld = world.state[PreemptionRule]
        if state.records:
            yield preemptions.INSERT.of(preemptions.rows(state.records))


def victims_of(claims: Iterable[ConsumerClaim]) -> Iterator[Victim]:
    """Yield the victims of claims."""
    found = [claim.parts.get(Preempts) for claim in claims]
    return (victim for preempts in found if preempts is not None for victim in preempts.victims)


def _preempting(scope: ClaimScope) -> set[str]:
    return {claim.project for claim in scope.claims if Preempts in claim.parts}


def _count(records: Iterable[Preemption]) -> None:
    for victim in {record.victim.build: record.victim for record in records}.values():
        VICTIMS.labels(victim.priority).inc()


def _record(claim: ConsumerClaim, preempts: Preempts, world: ClaimWorld) -> None:
    """Retire the victims of a successful claim, and record the preemption."""
    state: PreemptionWorld = world.state[PreemptionRule]
    why = f"preempted by {claim.consumer}, which has priority {preempts.priority}"
    new = [victim for victim in preempts.victims if victim.build not in world.to_retire]
    state.used[claim.project] = state.used.get(claim.project, 0) + len(new)
    for victim in preempts.victims:
        reason = SHELVED if victim.requeue else why
        world.retire(victim.build, Retired(why=reason, cell=preempts.cell, revivable=victim.requeue))
        record = Preemption(
            victim=victim, by=claim.consumer, project=claim.project, priority=preempts.priority, at=world.now
        )
        state.records.append(record)


def _over_budget(project: str, used: int, budget: int, needs: int) -> RuleRefused:
    used_up = f"project {project} has preempted {used} instances in one hour, at most {budget}"
    why = f"{used_up}, and the request needs {needs}"
    return RuleRefused(rule="preemption", code="preemption_budget", why=why, final=True)


def _bars_victim(victim: Victim, claim: ConsumerClaim, world: ClaimWorld) -> str:
    for name in (victim.build, victim.holder):
        if name in world.retired:
            return f"it has ended ({world.retired[name].why})"
    if victim.holder not in world.holders:
        raise Unread
    holder = world.holders.get(victim.build)
    if holder is not None and _is_shared(holder, world.holders[victim.holder]):
        return ""
    if holder is None or not holder.held or holder.generation != victim.generation:
        return "what it holds has changed"
    if why := world.why_protected(holder):
        return why
    if holder.keeps_for or victim.build == claim.consumer or world.holds(victim.holder):
        return "its resources are being cleaned up"
    return ""


def _is_shared(holder: Holder, rest: Holder) -> bool:
    """Return whether the claim of another instance of the preemptor's request has already preempted the
    victim `holder`; `rest` is the victim's CLEANUP consumer.
    """
    return not holder.held and rest.heir_of is holder


def _lacking(asked: Allocations, world: ClaimWorld) -> Allocations:
    """Return by how much the requested amounts exceed the free capacity, by provider and resource class."""
    lacking: Allocations = {}
    for uuid, resources in asked.items():
        if (provider := world.providers.get(uuid)) is not None:
            for name, amount in resources.items():
                stock = provider.stocks.get(name)
                if stock is not None and (lack := stock.used + amount - stock.capacity) > 0:
                    lacking.setdefault(uuid, {})[name] = lack
    return lacking
