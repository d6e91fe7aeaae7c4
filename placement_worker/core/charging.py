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


def charge_all(
    order: claims.ClaimRequested,
    former: HeldBefore,
    charges: Charges,
    results: list[claims.ClaimResult],
    world: ClaimWorld,
) -> None:
    """Charge the claims of a request that are `Claimed` in `results`; replace the results of those that
    exceed a limit by refusals. The figures of a refusal are those of the whole request: what the project uses
    without it, and what all its claims ask.
    """
    refused: list[tuple[int, str, quotas.Amounts]] = []
    for at in charging_order([world.holders[claim.consumer] for claim in order.claims]):
        if type(results[at]) is claims.Claimed:
            growth: dict[str, int] = {}
            if (refusal := _charge(order.claims[at], former, charges, growth, world)) is not None:
                results[at] = refusal
                refused.append((at, order.claims[at].project, growth))
    for at, project, _ in refused:
        result = results[at]
        if not isinstance(result, claims.Refused):
            continue
        charged = [each.growth for each in charges if each.budget.project == project]
        asked = [*charged, *(growth for _, of, growth in refused if of == project)]
        results[at] = claims.Refused(
            refusals=tuple([_of_all(refusal, charged, asked) for refusal in result.refusals])
        )


def _of_all(
    refusal: claims.Refusal, charged: Sequence[quotas.Amounts], asked: Sequence[quotas.Amounts]
) -> claims.Refusal:
    if not isinstance(refusal, OverQuota) or refusal.resource == GROUP_MEMBERS:
        return refusal
    name = refusal.resource
    before = refusal.used - sum(growth.get(name, 0) for growth in charged)
    return structs.replace(refusal, used=max(before, 0), asked=sum(growth.get(name, 0) for growth in asked))


def _charge(
    claim: claims.ConsumerClaim,
    former: HeldBefore,
    charges: Charges,
    grown: dict[str, int],
    world: ClaimWorld,
) -> claims.Refused | None:
    """Add the resources of a claim to the usage of its project, or return a refusal if a limit is exceeded.
    In both cases, set `grown` to the addition.

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
    grown.update(growth)
    if (refusal := budget.refusal(growth, members)) is not None:
        return claims.Refused(refusals=(refusal,) * len(claim.choices))
    budget.take(growth)
    charges.append(Charge(budget, growth, holder, holder.project, instance, parts))
    holder.project = claim.project
    if is_moved:
        budget.usage.parts[instance] = after
    return None


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
