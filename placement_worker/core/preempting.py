"""Takes the allocations of victims for a claim of higher priority, in the data by which claims are decided.

The claim gets the amounts that are not free on its providers. A CLEANUP consumer holds the remaining
allocations of each victim, because its guest uses them until its agent confirms the deletion.
"""

from collections.abc import Callable, Iterable, Iterator

from bus import amounts
from bus.claims import CLEANUP, Choice, ConsumerClaim, Retired, RuleRefused
from bus.moves import SHELVED
from bus.preemption import Preemption, Preempts, Victim
from bus.vocabulary import Allocations
from placement_worker.core.claim_world import ClaimWorld, Holder, Unread

LeaveTo = Callable[[ClaimWorld, Holder, Holder, str], None]


def preempt(claim: ConsumerClaim, choice: Choice, world: ClaimWorld, leave_to: LeaveTo) -> RuleRefused | None:
    """Release, from the victims of a claim, the amounts by which a choice exceeds the free capacity. Return
    None after success, or the refusal of the claim. `leave_to` moves a victim's allocations to its CLEANUP
    consumer, from which the amounts are released.
    """
    preempts = claim.preempts
    if preempts is None:
        return None
    used = world.preempted.get(claim.project, 0)
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
            leave_to(world, holder, rest, CLEANUP)
        taken = amounts.common(rest.held, lacking)
        lacking = amounts.without(lacking, taken)
        left = amounts.without(rest.held, taken)
        world.hold(rest, rest.generation if left else 0, left, None, None)
    return None


def _over_budget(project: str, used: int, budget: int, needs: int) -> RuleRefused:
    used_up = f"project {project} has preempted {used} instances in one hour, at most {budget}"
    why = f"{used_up}, and the request needs {needs}"
    return RuleRefused(rule="preemption", code="preemption_budget", why=why, final=True)


def victims_of(claims: Iterable[ConsumerClaim]) -> Iterator[Victim]:
    return (victim for claim in claims if claim.preempts is not None for victim in claim.preempts.victims)


def record(claim: ConsumerClaim, preempts: Preempts, world: ClaimWorld) -> None:
    """Retire the victims of a successful claim, and record the preemption."""
    why = f"preempted by {claim.consumer}, which has priority {preempts.priority}"
    new = [victim for victim in preempts.victims if victim.build not in world.tombstones]
    world.preempted[claim.project] = world.preempted.get(claim.project, 0) + len(new)
    for victim in preempts.victims:
        reason = SHELVED if victim.requeue else why
        world.retire(victim.build, Retired(why=reason, cell=preempts.cell, revivable=victim.requeue))
        world.preemptions.append(
            Preemption(
                victim=victim,
                by=claim.consumer,
                project=claim.project,
                priority=preempts.priority,
                at=world.now,
            )
        )


def _bars_victim(victim: Victim, claim: ConsumerClaim, world: ClaimWorld) -> str:
    if world.wall is not None:
        return "a cell preempts no instances"
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
    if holder.draws_on:
        return "it draws from a reservation"
    if holder.group is not None:
        return "it is in a server group"
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
