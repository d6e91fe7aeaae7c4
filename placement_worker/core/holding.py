"""Changes the allocations of consumers in the data by which claims and releases are decided, and undoes such
changes.
"""

from typing import NamedTuple

from bus import claims
from bus.vocabulary import Allocations
from placement_worker.core.claim_world import ClaimWorld, Holder, roots_of


class HolderState(NamedTuple):
    """A consumer, and its state before a change of its allocations."""

    holder: Holder
    generation: int
    held: Allocations
    by: claims.ConsumerClaim | None
    group: int | None
    keeps_for: str | None
    move_of: str | None
    draws_on: str | None


Steps = list[HolderState]  # the states before each change by the claims of a request, in order


def remember(steps: Steps, holder: Holder) -> None:
    steps.append(
        HolderState(
            holder, holder.generation, holder.held, holder.by, holder.group, holder.keeps_for, holder.move_of,
            holder.draws_on,
        )
    )  # fmt: skip


def undo(world: ClaimWorld, steps: Steps, after: int = 0) -> None:
    """Undo all changes in `steps` except the first `after`: restore the earlier states of the consumers."""
    for state in reversed(steps[after:]):  # so that the oldest state of a consumer is restored last
        state.holder.keeps_for, state.holder.move_of = state.keeps_for, state.move_of
        state.holder.draws_on = state.draws_on
        hold(world, state.holder, state.generation, state.held, state.by, state.group)
    del steps[after:]


def hold(
    world: ClaimWorld,
    holder: Holder,
    generation: int,
    allocations: Allocations,
    by: claims.ConsumerClaim | None,
    group: int | None,
) -> None:
    """Replace a consumer's allocations, generation, claim (`by`) and server group; adapt the usage of the
    providers, and the hosts of the server groups' members.
    """
    count(world, holder.held, -1)
    count(world, allocations, +1)
    if holder.group is not None and holder.group in world.groups:
        world.groups[holder.group].drop(holder.uuid)
    holder.generation, holder.held, holder.by, holder.group = generation, allocations, by, group
    if group is not None and group in world.groups and allocations:
        world.groups[group].put(holder.uuid, roots(world, allocations), holder.keeps_for)


def count(world: ClaimWorld, allocations: Allocations, sign: int) -> None:
    for provider, resources in allocations.items():
        stocks = world.provider(provider).stocks
        for name, amount in resources.items():
            stocks[name].used += sign * amount


def roots(world: ClaimWorld, allocations: Allocations) -> frozenset[str]:
    return roots_of((world.provider(provider).root, provider in world.sharing) for provider in allocations)
