"""Charges claims to the quotas of their projects, on the data that was read for a batch of claims.

Clients such as Nova move an instance by several requests, without consumer types. Either a consumer for
the migration takes over the allocations of the instance, which then claims its destination. Or the instance
claims the destination in addition to its source. Such consumers are marked as parts of the instance's move.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from bus import claims
from bus.decisions import OVER_QUOTA
from bus.quotas import GROUP_MEMBERS, OverQuota
from bus.vocabulary import Allocations
from placement_worker.core import quotas
from placement_worker.core.claim_world import ClaimWorld, Holder

HeldBefore = Mapping[str, Allocations]  # consumer → its allocations before the request


Charges = list[tuple[str, quotas.Amounts]]  # project and growth of its usage, for the claims of a request


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
                world.journal.set(holder, "move_of", holder.move_of or holder.uuid)
            continue
        for giver, given in emptied.items():
            if former[giver] == holder.held and given.project == claim.project:
                world.journal.set(holder, "move_of", world.holders[giver].move_of or giver)
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


def charge_request(
    order: claims.ClaimRequested, results: list[claims.ClaimResult], former: HeldBefore, world: ClaimWorld
) -> None:
    """Charge the claims of a request to the quotas of their projects; replace the result of each claim that a
    quota refuses.
    """
    mark_moves(order, former, world)
    charges: Charges = []
    overs: dict[int, OverQuota] = {}
    for at in charging_order([world.holders[claim.consumer] for claim in order.claims]):
        claimed = type(results[at]) is claims.Claimed
        if claimed and (over := _charge(order.claims[at], former, charges, world)) is not None:
            overs[at] = over
    for at, over in overs.items():
        refusal = _refusal(_with_whole_growth(over, overs.values(), charges))
        results[at] = claims.Refused(refusals=(refusal,) * len(order.claims[at].choices))


def _refusal(over: OverQuota) -> claims.RuleRefused:
    return claims.RuleRefused(rule="quotas", code=OVER_QUOTA, why=str(over), wakes_on=f"quota:{over.project}")


def _charge(
    claim: claims.ConsumerClaim, former: HeldBefore, charges: Charges, world: ClaimWorld
) -> OverQuota | None:
    """Add the resources of a claim to the usage of its project, or return which limit the claim exceeds.

    Only growth beyond what the instance counted before is refused. The addition is recorded in `charges`.
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
    if (over := budget.over(growth, members)) is not None:
        if over.resource == GROUP_MEMBERS:
            joined = _joined(holder.group, former, world)
            return structs.replace(over, used=members - joined, asked=joined)
        return structs.replace(over, used=over.used - _charged(over, charges))
    budget.take(growth)
    world.journal.note(budget.take, growth, -1)
    charges.append((claim.project, growth))
    world.journal.set(holder, "project", claim.project)
    if is_moved:
        world.journal.set_item(budget.usage.parts, instance, after)
    return None


def _with_whole_growth(over: OverQuota, overs: Iterable[OverQuota], charges: Charges) -> OverQuota:
    """Return how a request exceeds a limit of a resource, with the amount that its consumers ask together:
    those that were charged, and those that the quota refused (`overs`).
    """
    if over.resource == GROUP_MEMBERS:
        return over
    refused = sum(each.asked for each in overs if _names(each) == _names(over))
    return structs.replace(over, asked=max(_charged(over, charges) + refused, over.asked))


def _names(over: OverQuota) -> tuple[str, str]:
    return over.project, over.resource


def _charged(over: OverQuota, charges: Charges) -> int:
    """Return how much of the resource of a refusal the request was charged before."""
    return sum(growth.get(over.resource, 0) for project, growth in charges if project == over.project)


def _joined(group: int | None, former: HeldBefore, world: ClaimWorld) -> int:
    """Return how many consumers of the request are new members of a server group."""
    return sum(world.holders[each].group == group for each, before in former.items() if not before)


def _held_in_project(consumer: str, project: str, former: HeldBefore, world: ClaimWorld) -> Allocations:
    holder = world.holders.get(consumer)
    return former.get(consumer, {}) if holder is not None and holder.project == project else {}


def _in_a_move(allocations: Allocations, world: ClaimWorld) -> Counter[str]:
    """Return what a consumer of a moved instance counts: for each resource the largest amount in a tree."""
    trees: dict[str, Allocations] = {}
    for uuid, resources in allocations.items():
        trees.setdefault(world.provider(uuid).root, {})[uuid] = resources
    return quotas.largest(quotas.amounts(tree) for tree in trees.values())
