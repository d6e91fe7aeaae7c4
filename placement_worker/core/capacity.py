"""Decides claims and releases from data in memory, and records the changes to write. Each claim is checked
against the capacity that earlier claims have left; a refused claim changes nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from bus import amounts, claims
from bus.moves import BEGUN
from bus.vocabulary import Allocations
from placement_worker.core import drawing
from placement_worker.core import shared_pools as pools
from placement_worker.core.charging import charge_request
from placement_worker.core.claim_world import (
    ClaimWorld,
    Holder,
    Unread,
    as_held,
    bars_release,
    fence,
    fenced_off,
    named_twice,
    wakes,
)
from placement_worker.core.group_places import no_group
from placement_worker.core.preempting import preempt, record, victims_of
from placement_worker.core.reservations import reservation_refusal

# (provider, resource class) → usage before the consumers of a request released their allocations.
_Before = dict[tuple[str, str], int]


class Former(NamedTuple):
    """A consumer's generation and allocations before a claim replaces them, and the usage of providers before
    the consumers of the request released their allocations.
    """

    generation: int
    held: Allocations
    used: _Before


def claim(order: claims.ClaimRequested, world: ClaimWorld) -> tuple[claims.ClaimResult, ...] | None:
    """Decide a request for claims on the data in `world`, and record the changes there. Return a result for
    each claim: all are `Claimed`, or none is. Return None if more data must be read. First all consumers
    release their allocations, so that two of them can exchange places on full providers.
    """
    mark = world.journal.mark()
    results: Sequence[claims.ClaimResult] | None = None
    with suppress(Unread):
        results = _judge(order, world)
    if results is None or not all(type(result) is claims.Claimed for result in results):
        world.journal.undo(mark)
        if results is None:
            return None
        return tuple(
            claims.Refused(refusals=()) if type(each) is claims.Claimed else each for each in results
        )
    named: set[str] = set()
    holder_consumers = {claim.keep for claim in order.claims}
    holder_consumers.update(victim.holder for victim in victims_of(order.claims))
    for holder, before in world.accept():
        # The generation grows only for providers from which a consumer claims, as in the Placement API.
        if holder.uuid not in holder_consumers:
            named.update(holder.held or before)
    for provider in named:
        world.touched[provider].generation += 1
    for claim in order.claims:
        if claim.reserves:
            world.reserved.make(claim, world.holders[claim.consumer].held)
        if claim.preempts is not None:
            record(claim, claim.preempts, world)
        if claim.begins:
            world.retire(claim.begins, claims.Retired(why=BEGUN))
        if wakes(claim, world):
            world.wake(claim.consumer)
    return tuple(results)


def release(order: claims.ReleaseRequested, world: ClaimWorld) -> claims.ReleaseResult | None:
    """Release a consumer's allocations in `world` or, if the request names a holder consumer in `keep`, give
    the allocations to this holder consumer.

    With `retire`, also retire the consumer. Return `Released` or a refusal; None if more data must be read.
    """
    ended = world.retired.get(order.consumer)
    ends = order.retire and not order.unplaceable and not order.revivable
    if ended is not None and not (ended.revivable and ends):
        return ended  # only a shelved instance may be retired again, for another reason than a missing host
    holder = world.holders.get(order.consumer)
    # A shelved instance is not checked: it was in this cell.
    if ended is None and (why := bars_release(order, holder, world)):
        return claims.OutsideCell(why=why)
    if holder is not None and holder.generation:
        if order.fenced and order.generation != holder.generation:
            return as_held(holder, world)
        if order.keep and order.keep in world.retired:
            return claims.Retired(why=f"{order.keep}: {world.retired[order.keep].why}")
        if holder.draws_on and not order.keep and not drawing.can_return(holder.draws_on, world):
            return None
        if order.keep:
            _leave_to(world, holder, world.holders[order.keep], claims.CLEANUP)
        else:
            released, slot = holder.held, holder.draws_on
            world.hold(holder, 0, {}, None, holder.group)
            if slot:
                drawing.give_back(slot, released, world)
        world.accept()  # changes the usage of providers, not their generation, as in the Placement API
        world.stirred[holder.uuid] = holder  # deletes a consumer without allocations, too
    if order.retire:
        if ended is not None:
            world.wake(order.consumer)
        retired = claims.Retired(
            why=order.retire, unplaceable=order.unplaceable, cell=order.cell, revivable=order.revivable
        )
        world.retire(order.consumer, retired)
    return claims.Released()


def _judge(order: claims.ClaimRequested, world: ClaimWorld) -> list[claims.ClaimResult]:
    fences = [fence(claim, world) for claim in order.claims]
    if any(fences) or named_twice(order):
        return fenced_off(order, world, fences)
    holders = [world.holders[claim.consumer] for claim in order.claims]
    former = [holder.held for holder in holders]
    generations = [holder.generation for holder in holders]
    before: _Before = {}
    for claim, holder in zip(order.claims, holders, strict=True):
        for provider, resources in holder.held.items():
            for name in resources:
                before.setdefault((provider, name), world.provider(provider).stocks[name].used)
        if holder.held and claim.keep:
            _leave_to(
                world, holder, world.holders[claim.keep], claims.MIGRATION if claim.begins else claims.CLEANUP
            )
        elif holder.held:
            world.hold(holder, 0, {}, None, holder.group)
    results: list[claims.ClaimResult] = []
    for claim, holder, generation, held in zip(order.claims, holders, generations, former, strict=True):
        results.append(_take(claim, holder, Former(generation, held, before), world))
    if not world.budgets and not any(claim.client for claim in order.claims):
        return results  # only API clients move instances without consumer types, which `mark_moves` detects
    formerly = {holder.uuid: held for holder, held in zip(holders, former, strict=True)}
    charge_request(order, results, formerly, world)
    return results


def _take(
    claim: claims.ConsumerClaim, holder: Holder, former: Former, world: ClaimWorld
) -> claims.Claimed | claims.Refused:
    """Claim the first of the claim's alternative sets of allocations (`choices`) that fits; return its
    position, or why none fits. Allocations taken over from a holder consumer are not checked.
    """
    generation = former.generation
    held_for = world.holders[claim.take_over] if claim.take_over else None
    if claim.reserves and (why := world.reserved.bars_slot(claim)):
        return claims.Refused(refusals=(reservation_refusal(why),) * len(claim.choices))
    group = held_for.group if held_for is not None and holder.group is None else holder.group
    if claim.group is not None:
        group = world.named.get(claim.group)
        if group is None or world.groups[group].project != claim.project:
            return claims.Refused(refusals=(no_group(claim.group),) * len(claim.choices))
    if held_for is not None:
        kept = pools.kept_on_return(former.held, held_for.held, claim.choices[0].allocations, world.sharing)
        if claim.keep:
            _reduce_holder(world, world.holders[claim.keep], kept)
        held = amounts.joined(held_for.held, kept)
        world.journal.set(holder, "draws_on", held_for.draws_on)
        world.hold(held_for, 0, {}, None, held_for.group)
        world.hold(holder, generation + 1, held, claim, group)
        return claims.Claimed(choice=0, generation=holder.generation, number=0)
    refusals: list[claims.Refusal] = []
    for position, choice in enumerate(claim.choices):
        shared: Allocations = {}
        if claim.begins and claim.keep:
            shared = pools.shared_by(former.held, choice.allocations, world.sharing)
        mark = world.journal.mark()
        refusal = _capacity_refusal(claim, choice, shared, former.used, world)
        # The group may have been deleted since the consumer joined it.
        if refusal is None and group is not None and group in world.groups:
            refusal = world.groups[group].refusal(world.roots(choice.allocations), holder.uuid)
        if refusal is not None:
            world.journal.undo(mark)
            refusals.append(refusal)
            continue
        if shared and claim.keep:
            _reduce_holder(world, world.holders[claim.keep], shared)
        if choice.allocations:
            world.hold(holder, generation + 1, choice.allocations, claim, group)
        else:  # a consumer without allocations is in no server group
            world.journal.set(holder, "group", None)
        return claims.Claimed(
            choice=position, generation=holder.generation, number=0, refused=tuple(refusals)
        )
    return claims.Refused(refusals=tuple(refusals))


def _capacity_refusal(
    claim: claims.ConsumerClaim,
    choice: claims.Choice,
    shared: Allocations,
    before: _Before,
    world: ClaimWorld,
) -> claims.Refusal | None:
    """For one choice of a claim, draw its allocations from a reservation, preempt victims, and check the
    capacity; return the first refusal, or None. The amounts in `shared` are not counted, because the consumer
    holds them already. `before` is the usage before the consumers of the request released their allocations.
    """
    refusal: claims.Refusal | None = drawing.draw(claim, choice, world)
    if refusal is None and claim.preempts is not None:
        refusal = preempt(claim, choice, world, _leave_to)
    if refusal is None:
        world.count(shared, -1)
        refusal = _refusal(choice, before, world)
        world.count(shared, +1)
    return refusal


def _refusal(choice: claims.Choice, before: _Before, world: ClaimWorld) -> claims.Refusal | None:
    shapes = choice.shapes
    if world.wall is not None:
        if any(uuid not in world.providers for uuid in choice.allocations):
            raise Unread
        chosen = [found for uuid in choice.allocations if (found := world.providers[uuid]) is not None]
        places = [(found.uuid, found.root) for found in chosen]
        if len(chosen) == len(choice.allocations) and (why := world.wall.bars_choice(places)):
            return claims.OutsideCell(why=why)
    for provider, resources in choice.allocations.items():
        if provider not in world.providers:
            raise Unread
        claimed = world.providers[provider]
        if claimed is None:
            return claims.NoSuchProvider(provider=provider)
        if shapes and shapes.get(provider, claimed.shape) != claimed.shape:
            return claims.Moved(provider=provider)
        is_excluded = any(_is_taken(sibling, choice, world) for sibling in claimed.excludes)
        for name, asked in resources.items():
            stock = claimed.stocks.get(name)
            if stock is None:
                return claims.Full(
                    provider=provider, resource_class=name, asked=asked, free=0, limit="inventory"
                )
            after = stock.used + asked
            # On an overcommitted provider a consumer may still claim as much as it had before.
            if (is_excluded or after > stock.capacity) and after > before.get((provider, name), 0):
                free = 0 if is_excluded else max(stock.capacity - stock.used, 0)
                return claims.Full(provider=provider, resource_class=name, asked=asked, free=free)
            if limit := broken_limit(asked, stock.min_unit, stock.max_unit, stock.step_size):
                free = max(stock.capacity - stock.used, 0)
                return claims.Full(
                    provider=provider, resource_class=name, asked=asked, free=free, limit=limit
                )
    return None


def _is_taken(sibling: str, choice: claims.Choice, world: ClaimWorld) -> bool:
    if sibling not in world.providers:
        raise Unread
    claimed = world.providers[sibling]
    return sibling in choice.allocations or (claimed is not None and claimed.in_use)


def broken_limit(asked: int, min_unit: int, max_unit: int, step_size: int) -> str:
    """Return which inventory limit (min_unit, max_unit or step_size) this amount violates, or ""."""
    if asked < min_unit:
        return "min_unit"
    if asked > max_unit:
        return "max_unit"
    return "step_size" if asked % step_size else ""


def _leave_to(world: ClaimWorld, holder: Holder, holder_consumer: Holder, type_: str) -> None:
    both = amounts.joined(holder_consumer.held, holder.held)
    group = holder_consumer.group if holder.group is None else holder.group
    world.hold(holder, 0, {}, None, holder.group)
    journal = world.journal
    journal.set(holder_consumer, "heir_of", holder)
    journal.set(holder_consumer, "heir_type", type_)
    journal.set(holder_consumer, "keeps_for", holder.keeps_for or holder.uuid)
    journal.set(holder_consumer, "draws_on", holder.draws_on or holder_consumer.draws_on)
    journal.set(holder, "draws_on", None)
    world.hold(holder_consumer, holder_consumer.generation + 1, both, None, group)


def _reduce_holder(world: ClaimWorld, holder: Holder, shared: Allocations) -> None:
    """Remove from a holder consumer's allocations the amounts at sharing providers (`shared`) that the
    instance holds instead.
    """
    left = amounts.without(holder.held, shared)
    if left != holder.held:
        world.hold(holder, holder.generation if left else 0, left, None, holder.group)


def providers_of(orders: Sequence[claims.ClaimRequested], *, all_choices: bool) -> set[str]:
    """Return the uuids of the providers in the first choice of each claim; with `all_choices`, in all choices
    of each claim. A choice is a set of allocations.
    """
    return {
        provider
        for order in orders
        for claim in order.claims
        for choice in (claim.choices if all_choices else claim.choices[:1])
        for provider in choice.allocations
    }
