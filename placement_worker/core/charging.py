"""Charges claims to the quotas of their projects, on the data that was read for a batch of claims."""

from bus import claims
from bus.vocabulary import Allocations
from placement_worker.core import quotas
from placement_worker.core.claim_world import ClaimWorld, Holder

# What an order's claims have added to the usage of a project, with the consumer and its former project
Charges = list[tuple[quotas.ProjectBudget, quotas.Amounts, Holder, str]]


def charge(
    claim: claims.ConsumerClaim, holder: Holder, before: Allocations, charges: Charges, world: ClaimWorld
) -> claims.Refused | None:
    """Add the resources of a claim to the usage of its project, or return a refusal if a limit is exceeded.

    Only growth beyond the consumer's former allocations `before` is refused. The addition is recorded in
    `charges`, so that a later refusal in the request can undo it.
    """
    budget = world.budgets.get(claim.project)
    if budget is None or claim.take_over or not quotas.is_counted(claim):
        return None
    growth = quotas.growth_of(holder.held, before if holder.project == claim.project else {})
    members = 0
    if claim.group is not None and holder.group is not None and holder.held:
        members = world.groups[holder.group].size
    if (refusal := budget.refusal(growth, members)) is not None:
        return claims.Refused(refusals=(refusal,) * len(claim.choices))
    budget.take(growth)
    charges.append((budget, growth, holder, holder.project))
    holder.project = claim.project
    return None


def undo_charges(charges: Charges) -> None:
    for budget, growth, holder, project in reversed(charges):
        budget.take(growth, -1)
        holder.project = project
