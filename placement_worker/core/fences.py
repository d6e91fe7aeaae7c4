"""Checks of claims and releases before capacity: generations, retired consumers, the restrictions of
cells.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from bus.claims import (
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    Held,
    NothingHeld,
    OutsideCell,
    Refusal,
    Refused,
    ReleaseRequested,
)
from bus.moves import SHELVED
from bus.vocabulary import Allocations
from placement_worker.core.claim_world import ClaimWorld, Holder, Unread, as_held


def fence(claim: ConsumerClaim, world: ClaimWorld) -> ClaimResult | None:
    """Return the refusal of a claim by generation, retirement or cell, whatever the capacity, or None."""
    for name in (claim.begins, claim.consumer, claim.keep):
        if name and name in world.retired and not (name == claim.consumer and wakes(claim, world)):
            return world.retired[name]
    for name in (claim.begins, claim.keep):
        if name and name not in world.holders:
            raise Unread
    if why := _bars_claim(claim, world):
        return _refused(claim, OutsideCell(why=why))
    holder = world.holders.get(claim.consumer)
    if holder is None:
        if claim.generation is None or not claim.fenced:
            raise Unread
        return Held(generation=0, allocations={})
    if claim.fenced and claim.generation != (holder.generation or None):
        return as_held(holder, world)
    if claim.begins and claim.keep and world.holds(claim.keep):
        return as_held(holder, world)  # the leftovers of that attempt must be deleted first
    if claim.take_over and not world.holds(claim.take_over):
        return _refused(claim, NothingHeld(consumer=claim.take_over))
    return None


def wakes(claim: ConsumerClaim, world: ClaimWorld) -> bool:
    """Return whether a claim begins a move of a shelved instance, the only way to reactivate it."""
    ended = world.retired.get(claim.consumer)
    return claim.begins is not None and ended is not None and ended.why == SHELVED


def fenced_off(
    order: ClaimRequested, world: ClaimWorld, fences: Sequence[ClaimResult | None]
) -> list[ClaimResult]:
    """Return the refusals of fenced claims and of duplicate consumers; other claims are not judged here."""
    results: list[ClaimResult] = []
    beside = Counter(name for claim in order.claims for name in _further_consumers(claim))
    seen = {*beside}
    for claim, behind in zip(order.claims, fences, strict=True):
        twice = claim.consumer in seen or any(beside[name] > 1 for name in _further_consumers(claim))
        if behind is None and twice:
            behind = as_held(world.holders[claim.consumer], world)
        seen.add(claim.consumer)
        results.append(behind or Refused(refusals=()))
    return results


def named_twice(order: ClaimRequested) -> bool:
    named = [name for claim in order.claims for name in (claim.consumer, *_further_consumers(claim))]
    return len(set(named)) < len(named)


def _further_consumers(claim: ConsumerClaim) -> Iterator[str]:
    return (name for name in (claim.keep, claim.begins, claim.take_over) if name)


def _bars_claim(claim: ConsumerClaim, world: ClaimWorld) -> str:
    if claim.begins and world.holds(claim.begins):
        return f"move {claim.begins}: a consumer has that name, and holds something"
    if world.wall is None:
        return ""
    if claim.group is not None:
        return f"consumer {claim.consumer}: a cell puts nobody into a server group"
    if claim.begins:
        return f"consumer {claim.consumer}: a cell begins no moves"
    holder = world.holders.get(claim.consumer)
    if (holder is None or not holder.generation) and claim.fenced and claim.generation is not None:
        return ""  # the answer is that it holds nothing
    if why := _bars_holder(holder, claim.consumer, claim.keep, world):
        return why
    if claim.take_over is None:
        return ""
    if why := world.wall.refuses_holder(claim.consumer, claim.take_over):
        return why
    held = world.holders[claim.take_over].held if world.holds(claim.take_over) else {}
    return world.wall.bars_holder(claim.take_over, _places(world, held)) if held else ""


def bars_release(order: ReleaseRequested, holder: Holder | None, world: ClaimWorld) -> str:
    """Return why the asking cell can neither release nor retire this consumer, or an empty text."""
    if world.wall is None or (not order.retire and (holder is None or not holder.generation)):
        return ""
    return _bars_holder(holder, order.consumer, order.keep, world)


def _bars_holder(holder: Holder | None, consumer: str, keep: str | None, world: ClaimWorld) -> str:
    wall = world.wall
    assert wall is not None
    if why := wall.bars_holder(consumer, _places(world, holder.held if holder else {})):
        return why
    if not keep:
        return ""
    holder_consumer = world.holders.get(keep)
    if holder_consumer is not None and holder_consumer.held:
        return wall.bars_holder(keep, _places(world, holder_consumer.held))
    return wall.refuses_holder(consumer, keep)


def _places(world: ClaimWorld, allocations: Allocations) -> list[tuple[str, str]]:
    return [(provider, world.provider(provider).root) for provider in allocations]


def _refused(claim: ConsumerClaim, why: Refusal) -> Refused:
    return Refused(refusals=(why,) * len(claim.choices))
