"""Decides claims and releases from data in memory, and records the changes to write. Each claim is checked
against the capacity that earlier claims have left; a refused claim changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bus import amounts, claims
from bus.claims import BEGUN
from bus.vocabulary import Allocations
from placement_worker.core import shared_pools as pools
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
    try:
        results = _judge(order, world)
    except Unread:
        world.journal.undo(mark)
        return None
    if all(type(result) is claims.Claimed for result in results):
        _accept(order, world)
        return tuple(results)
    world.journal.undo(mark)
    return tuple(claims.Refused(refusals=()) if type(each) is claims.Claimed else each for each in results)


def _accept(order: claims.ClaimRequested, world: ClaimWorld) -> None:
    """Record the effects of a request whose claims have all succeeded."""
    heirs = world.heirs
    # The generation grows only for providers from which a consumer claims, as in the Placement API.
    claimed: set[str] = set()
    for holder, before in world.accept():
        if holder.uuid not in heirs:
            claimed.update(holder.held or before)
    for provider in claimed:
        world.touched[provider].generation += 1
    for rule in world.rules:
        rule.accepted(order, world)
    for claim in order.claims:
        if claim.begins:
            world.retire(claim.begins, claims.Retired(why=BEGUN))
        if wakes(claim, world):
            world.wake(claim.consumer)


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
        mark = world.journal.mark()
        try:
            _release(order, holder, world)
        except Unread:
            world.journal.undo(mark)
            return None
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


def _release(order: claims.ReleaseRequested, holder: Holder, world: ClaimWorld) -> None:
    if order.keep:
        world.leave(holder, world.holders[order.keep], claims.CLEANUP)
        return
    released = holder.held
    world.hold(holder, 0, {}, None)
    for rule in world.rules:
        rule.released(holder, released, world)


def _judge(order: claims.ClaimRequested, world: ClaimWorld) -> Sequence[claims.ClaimResult]:
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
            type_ = claims.MIGRATION if claim.begins else claims.CLEANUP
            world.leave(holder, world.holders[claim.keep], type_)
        elif holder.held:
            world.hold(holder, 0, {}, None)
    results: Sequence[claims.ClaimResult] = [
        _take(claim, holder, Former(generation, held, before), world)
        for claim, holder, generation, held in zip(order.claims, holders, generations, former, strict=True)
    ]
    for rule in world.rules:
        results = rule.judge_request(order, results, world)
    return results


def _take(
    claim: claims.ConsumerClaim, holder: Holder, former: Former, world: ClaimWorld
) -> claims.Claimed | claims.Refused:
    """Claim the first of the claim's alternative sets of allocations (`choices`) that is possible; return its
    position, or why none is.
    """
    for rule in world.rules:
        if (barred := rule.bars(claim, world)) is not None:
            return claims.Refused(refusals=(barred,) * len(claim.choices))
    if claim.take_over:
        return _take_over(claim, holder, world.holders[claim.take_over], former, world)
    refusals: list[claims.Refusal] = []
    for position, choice in enumerate(claim.choices):
        shared: Allocations = {}
        if claim.begins and claim.keep:
            shared = pools.shared_by(former.held, choice.allocations, world.sharing)
        mark = world.journal.mark()
        refusal = _choice_refusal(claim, choice, shared, former.used, world)
        if refusal is not None:
            world.journal.undo(mark)
            refusals.append(refusal)
            continue
        if shared and claim.keep:
            _reduce_holder(world, world.holders[claim.keep], shared)
        if choice.allocations:
            world.hold(holder, former.generation + 1, choice.allocations, claim)
        return claims.Claimed(
            choice=position, generation=holder.generation, number=0, refused=tuple(refusals)
        )
    return claims.Refused(refusals=tuple(refusals))


def _take_over(
    claim: claims.ConsumerClaim, holder: Holder, source: Holder, former: Former, world: ClaimWorld
) -> claims.Claimed:
    """Give the allocations of another consumer to the claim's consumer. Their capacity is not checked."""
    kept = pools.kept_on_return(former.held, source.held, claim.choices[0].allocations, world.sharing)
    if claim.keep:
        _reduce_holder(world, world.holders[claim.keep], kept)
    held = amounts.joined(source.held, kept)
    for rule in world.rules:
        rule.inherited(source, holder, claim, world)
    world.hold(source, 0, {}, None)
    world.hold(holder, former.generation + 1, held, claim)
    return claims.Claimed(choice=0, generation=holder.generation, number=0)


def _choice_refusal(
    claim: claims.ConsumerClaim,
    choice: claims.Choice,
    shared: Allocations,
    before: _Before,
    world: ClaimWorld,
) -> claims.Refusal | None:
    """Return the first refusal of a choice: by the rules that provide capacity, by the capacity, by the other
    rules; None if the choice is possible. The amounts in `shared` are not counted, because the consumer holds
    them already. `before` is the usage before the consumers of the request released their allocations.
    """
    refusal: claims.Refusal | None
    for rule in world.rules:
        if (refusal := rule.before(claim, choice, world)) is not None:
            return refusal
    mark = world.journal.mark()
    world.journal.note(world.count, shared, +1)
    world.count(shared, -1)
    refusal = _refusal(choice, before, world)
    world.journal.undo(mark)
    if refusal is not None:
        return refusal
    for rule in world.rules:
        if (refusal := rule.after(claim, choice, world)) is not None:
            return refusal
    return None


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


def _reduce_holder(world: ClaimWorld, holder: Holder, shared: Allocations) -> None:
    """Remove from a holder consumer's allocations the amounts at sharing providers (`shared`) that the
    instance holds instead.
    """
    left = amounts.without(holder.held, shared)
    if left != holder.held:
        world.hold(holder, holder.generation if left else 0, left, None)


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
