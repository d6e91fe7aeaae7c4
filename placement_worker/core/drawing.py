"""Moves allocations between the slots of reservations and the consumers that draw from them."""

from bus.amounts import joined, without
from bus.claims import Choice, ConsumerClaim, RuleRefused
from bus.vocabulary import Allocations
from placement_worker.core.claim_world import ClaimWorld
from placement_worker.core.reservations import reservation_refusal


def draw(claim: ConsumerClaim, choice: Choice, world: ClaimWorld) -> RuleRefused | None:
    """Release the allocations of a choice from the slot of a reservation that it names (`draws_on`), so that
    the claim can get them. Return a refusal if the slot does not hold all of them, or if the claim may not
    draw from the slot. Return None after success, or if the choice names no slot.
    """
    slot = choice.draws_on
    if slot is None:
        return None
    holder = world.holders.get(slot)
    held = {} if holder is None else holder.held
    if why := world.reserved.bars_draw(slot, held, claim, choice.allocations):
        return reservation_refusal(why)
    assert holder is not None  # the slot's consumer holds the allocations
    left = without(held, choice.allocations)
    by = world.reserved.slots[slot].claim() if left else None
    world.hold(holder, holder.generation + 1 if left else 0, left, by, None)
    world.journal.set(world.holders[claim.consumer], "draws_on", slot)
    return None


def can_return(slot: str, world: ClaimWorld) -> bool:
    """Return whether the slot's record was read, so that released allocations can return to the slot. If it
    was not, add the slot to the slots that must be read.
    """
    if slot in world.reserved.read:
        return True
    world.reserved.unread.add(slot)
    return False


def give_back(slot: str, released: Allocations, world: ClaimWorld) -> None:
    holder = world.holders.get(slot)
    if holder is None:
        return
    if back := world.reserved.returned(slot, holder.held, released):
        by = world.placeholders.get(slot) or world.reserved.slots[slot].claim()
        world.hold(holder, holder.generation + 1, joined(holder.held, back), by, None)
