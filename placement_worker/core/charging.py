"""Charges claims to the quotas of their projects, on the data that was read for a batch of claims.

Clients such as Nova move an instance by several requests, without consumer types. Either a consumer for
the migration takes over the allocations of the instance, which then claims its destination. Or the instance
claims the destination in addition to its source. Such consumers are marked as parts of the instance's move.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from bus import claims
from bus.quotas import GROUP_MEMBERS, OverQuota
from bus.vocabulary import Allocations
from placement_worker.core import quotas
from placement_worker.core.claim_world import ClaimWorld, Holder

HeldBefore = Mapping[str, Allocations]  # consumer → its allocations before the request


class Charge(NamedTuple):
    """The growth of a project's usage by a claim, and the state before the claim, to undo the growth."""

    budget: quotas.ProjectBudget
    growth: quotas.Amounts
    holder: Holder
    project: str  # project of the consumer
    instance: str
    parts: quotas.Parts | None  # parts of the instance; None: the instance is not moved


Charges = list[Charge]  # charges of the claims of a request


def mark_moves(order: claims.ClaimRequested, former: HeldBefore, world: ClaimWorld) -> None:
    """Mark the consumers of a client's request that are parts of a move of an instance.

    A consumer is marked if it had no allocations and receives exactly those that another consumer of the
    project gives up, or if it keeps all its allocations and claims from a further provider tree.
    """
    emptied = {
        claim.consumer: claim
        for claim in order.claims
        if claim.client and former[claim.consumer] and not world.holds(claim.consumer)
    }
    for claim in order.claims:
        holder, held = world.holders[claim.consumer], former[claim.consumer]
        if not (claim.client and holder.held and quotas.is_counted(claim)):
            continue
        if held:
            if _adds_a_tree(held, holder.held, world):
                holder.move_of = holder.move_of or holder.uuid
            continue
        for giver, given in emptied.items():
            if former[giver] == holder.held and given.project == claim.project:
                holder.move_of = world.holders[giver].move_of or giver
                del emptied[giver]
                break


def _adds_a_tree(before: Allocations, after: Allocations, world: ClaimWorld) -> bool:
    if len(after) <= len(before) or any(after.get(uuid) != before[uuid] for uuid in before):
        return False
    return not {world.provider(uuid).root for uuid in after} <= {world.provider(uuid).root for uuid in before}


def charging_order(holders: Sequence[Holder]) -> list[int]:
    """Return the positions of a request's consumers in the order in which their claims are charged.

    Consumers that only release allocations come first. But a consumer that gives them up in a move comes
    last: the instance keeps its quota until the other parts of its move are counted.
    """
    moved = {holder.move_of for holder in holders}

    def rank(at: int) -> int:
        holder = holders[at]
        if holder.held:
            return 1
        return 2 if holder.move_of is not None or holder.uuid in moved else 0

    return sorted(range(len(holders)), key=rank)


def charge(
    claim: claims.ConsumerClaim, former: HeldBefore, charges: Charges, world: ClaimWorld
) -> claims.Refused | None:
    """Add the resources of a claim to the usage of its project, or return a refusal if a limit is exceeded.

    Only growth beyond what the instance counted before is refused. The addition is recorded in `charges`, so
    that a later refusal in the request can undo it.
    """
    budget = world.budgets.get(claim.project)
    if budget is None or claim.take_over or not quotas.is_counted(claim):
        return None
    holder = world.holders[claim.consumer]
    instance = holder.move_of or holder.uuid
    parts = budget.usage.parts.get(instance)
    is_moved = parts is not None or holder.move_of is not None
    before = parts or {instance: quotas.amounts(_held_in_project(instance, claim.project, former, world))}
    now = _in_a_move(holder.held, world) if is_moved else quotas.amounts(holder.held)
    after = {**before, holder.uuid: now}
    growth = quotas.growth_of(quotas.largest(after.values()), quotas.largest(before.values()))
    members = 0
    if claim.group is not None and holder.group is not None and holder.held:
        members = world.groups[holder.group].size
    if (refusal := budget.refusal(growth, members)) is not None:
        if refusal.resource == GROUP_MEMBERS:
            joined = _joined(holder.group, former, world)
            refusal = structs.replace(refusal, used=members - joined, asked=joined)
        else:
            refusal = structs.replace(refusal, used=refusal.used - _charged(refusal, charges))
        return claims.Refused(refusals=(refusal,) * len(claim.choices))
    budget.take(growth)
    charges.append(Charge(budget, growth, holder, holder.project, instance, parts))
    holder.project = claim.project
    if is_moved:
        budget.usage.parts[instance] = after
    return None


def state_whole_growth(results: list[claims.ClaimResult], charges: Charges) -> None:
    """Let each refusal by a limit of a resource state what the consumers of the request ask together: those
    that were charged, and those that the quota refused. The usage that it states is that before the request.
    """
    overs = {at: over for at, result in enumerate(results) if (over := _over_quota(result)) is not None}
    for at, over in overs.items():
        if over.resource == GROUP_MEMBERS:
            continue
        equal = [each.asked for each in overs.values() if _names(each) == _names(over)]
        whole = structs.replace(over, asked=max(_charged(over, charges) + sum(equal), over.asked))
        results[at] = claims.Refused(refusals=(whole,) * len(_refusals(results[at])))


def _names(over: OverQuota) -> tuple[str, str]:
    return over.project, over.resource


def _charged(over: OverQuota, charges: Charges) -> int:
    """Return how much of the resource of a refusal the request was charged before."""
    mine = [each for each in charges if each.budget.project == over.project]
    return sum(each.growth.get(over.resource, 0) for each in mine)


def _joined(group: int | None, former: HeldBefore, world: ClaimWorld) -> int:
    """Return how many consumers of the request are new members of a server group."""
    return sum(world.holders[each].group == group for each, before in former.items() if not before)


def _over_quota(result: claims.ClaimResult) -> OverQuota | None:
    return next((each for each in _refusals(result) if isinstance(each, OverQuota)), None)


def _refusals(result: claims.ClaimResult) -> Sequence[claims.Refusal]:
    return result.refusals if isinstance(result, claims.Refused) else ()


def _held_in_project(consumer: str, project: str, former: HeldBefore, world: ClaimWorld) -> Allocations:
    holder = world.holders.get(consumer)
    return former.get(consumer, {}) if holder is not None and holder.project == project else {}


def _in_a_move(allocations: Allocations, world: ClaimWorld) -> Counter[str]:
    """Return what a consumer of a moved instance counts: for each resource the largest amount in a tree."""
    trees: dict[str, Allocations] = {}
    for uuid, resources in allocations.items():
        trees.setdefault(world.provider(uuid).root, {})[uuid] = resources
    return quotas.largest(quotas.amounts(tree) for tree in trees.values())


def undo_charges(charges: Charges) -> None:
    for each in reversed(charges):
        each.budget.take(each.growth, -1)
        each.holder.project = each.project
        if each.parts is None:
            each.budget.usage.parts.pop(each.instance, None)
        else:
            each.budget.usage.parts[each.instance] = each.parts
