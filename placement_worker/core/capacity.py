"""Does it fit? Judges claims and releases against a world that was read, and leaves in it what to write.

The world holds what the orders concern: rooms (providers with their stocks), holders (consumers with what
they hold) and the retired. Judging changes it in memory only, so a later order sees what an earlier one took;
an order that fails leaves no trace.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bus.claims import (
    Choice,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    Full,
    Gone,
    Held,
    Moved,
    NoGroup,
    Refusal,
    Refused,
    Released,
    ReleaseRequested,
    ReleaseResult,
    Retired,
    Walled,
)
from bus.vocabulary import Allocations
from placement_worker.core.server_groups import GroupPlaces, roots_of
from placement_worker.core.walls import CellWall


@dataclass(slots=True)
class Stock:
    """What a provider has of one class."""

    class_id: int
    capacity: int
    used: int
    was: int  # what was used when it was read
    min_unit: int
    max_unit: int
    step_size: int


@dataclass(slots=True)
class Room:
    """A provider as claims see it."""

    id: int
    uuid: str
    root: str
    shape: int
    generation: int
    was: int  # its generation when it was read
    stocks: dict[str, Stock] = field(default_factory=dict)


@dataclass(slots=True)
class Holder:
    """A consumer; `generation` 0 is one that holds nothing."""

    uuid: str
    id: int
    generation: int = 0
    held: Allocations = field(default_factory=dict)
    by: ConsumerClaim | None = None  # the claim that gave it what it holds now
    heir_of: "Holder | None" = None  # or who left it to it: a clean-up is of its project and user
    clean_up: bool = False  # it keeps the room of a guest that may still be there
    group: int | None = None  # the number of its server group, which may have been dropped since
    group_was: int | None = None  # when it was read


@dataclass(slots=True)
class ClaimWorld:
    """What was read, then what it becomes. A provider that is None was looked for and is gone."""

    rooms: dict[str, Room | None]
    holders: dict[str, Holder]
    retired: dict[str, Retired]
    groups: dict[int, GroupPlaces] = field(
        default_factory=dict
    )  # that claims name, or their consumers are in
    named: dict[str, int] = field(default_factory=dict)  # those that are named → their numbers
    sharing: set[str] = field(default_factory=set)  # providers that share with other trees; read with groups
    wall: CellWall | None = None  # around the cell that asks; None: it is not asked from within one
    touched: dict[str, Room] = field(default_factory=dict)  # whose usage or generation moved
    stirred: dict[str, Holder] = field(default_factory=dict)  # who claimed or gave back
    tombstones: dict[str, Retired] = field(default_factory=dict)  # who is retired from now on


class _Unread(Exception):
    """The world holds no answer: something that matters was not read."""


# What an order's claims replaced: holder, and its generation, holdings, claim and group before.
_Steps = list[tuple[Holder, int, Allocations, ConsumerClaim | None, int | None]]

# What was in use of (provider, class) before an order's consumers gave it back.
_Before = dict[tuple[str, str], int]


def claim(order: ClaimRequested, world: ClaimWorld) -> tuple[ClaimResult, ...] | None:
    """One result for each claim of the order, all Claimed or none; None when more of the world must be read.

    All consumers of the order first give back what they hold, then each takes in turn: so two can change
    places on full providers. `Claimed.number` is for the writer to fill in.
    """
    steps: _Steps = []
    try:
        results = _judge(order, world, steps)
    except _Unread:
        _take_back(world, steps)
        return None
    if not all(type(one) is Claimed for one in results):
        _take_back(world, steps)
        return tuple(Refused(refusals=()) if type(one) is Claimed else one for one in results)
    named: set[str] = set()
    keepers = {one.keep for one in order.claims}
    for holder, _, before, *_ in steps:
        if holder.uuid not in keepers:  # a provider merely left behind keeps its generation, as in the API
            named.update(holder.held or before)
        _touch(world, before)
        if before or holder.held:
            world.stirred[holder.uuid] = holder
    _touch(world, named)
    for provider in named:
        world.touched[provider].generation += 1
    return tuple(results)


def release(order: ReleaseRequested, world: ClaimWorld) -> ReleaseResult:
    """Give back, and retire when told to. `Released.number` is for the writer to fill in."""
    ended = world.retired.get(order.consumer)
    if ended is not None:
        return ended
    holder = world.holders.get(order.consumer)
    if why := _bars_release(order, holder, world):
        return Walled(why=why)
    if holder is not None and holder.generation:
        if order.fenced and order.generation != holder.generation:
            return _held(holder, world)
        if order.keep and order.keep in world.retired:
            return Retired(why=f"{order.keep}: {world.retired[order.keep].why}")
        _touch(world, holder.held)  # whose generation stays, as in the API
        if order.keep:
            keeper = world.holders[order.keep]
            _leave_to(world, holder, keeper)
            _touch(world, keeper.held)  # it may have kept something before
            world.stirred[keeper.uuid] = keeper
        else:
            _hold(world, holder, 0, {}, None, holder.group)
        world.stirred[holder.uuid] = holder
    if order.retire:
        ended = Retired(why=order.retire, unplaceable=order.unplaceable)
        world.retired[order.consumer] = world.tombstones[order.consumer] = ended
    return Released()


def _judge(order: ClaimRequested, world: ClaimWorld, steps: _Steps) -> list[ClaimResult]:
    """The results; what was taken and given back is in `steps`."""
    fences = [_fence(one, world) for one in order.claims]
    named = [name for one in order.claims for name in (one.consumer, one.keep) if name]
    if any(fences) or len(set(named)) < len(named):
        return _fenced_off(order, world, fences)
    holders = [world.holders[one.consumer] for one in order.claims]
    generations = [holder.generation for holder in holders]
    before: _Before = {}
    for one, holder in zip(order.claims, holders, strict=True):
        steps.append((holder, holder.generation, holder.held, holder.by, holder.group))
        for provider, resources in holder.held.items():
            for name in resources:
                before.setdefault((provider, name), _room(world, provider).stocks[name].used)
        if holder.held and one.keep:
            keeper = world.holders[one.keep]
            steps.append((keeper, keeper.generation, keeper.held, keeper.by, keeper.group))
            _leave_to(world, holder, keeper)
        elif holder.held:
            _hold(world, holder, 0, {}, None, holder.group)
    return [
        _take(one, holder, generation, before, world)
        for one, holder, generation in zip(order.claims, holders, generations, strict=True)
    ]


def _fence(one: ConsumerClaim, world: ClaimWorld) -> ClaimResult | None:
    """Why this consumer cannot claim whatever there is room for; None when it can."""
    for name in (one.consumer, one.keep):
        if name and name in world.retired:
            return world.retired[name]
    if one.keep and one.keep not in world.holders:
        raise _Unread
    if why := _bars_claim(one, world):
        return Refused(refusals=(Walled(why=why),) * len(one.choices))
    holder = world.holders.get(one.consumer)
    if holder is None:
        if one.generation is None or not one.fenced:
            raise _Unread
        return Held(generation=0, allocations={})
    if one.fenced and one.generation != (holder.generation or None):
        return _held(holder, world)
    return None


def _bars_claim(one: ConsumerClaim, world: ClaimWorld) -> str:
    """Why the cell that asks cannot claim for this consumer, wherever it is to go; empty when it can."""
    if world.wall is None:
        return ""
    if one.group is not None:
        return f"consumer {one.consumer}: a cell puts nobody into a server group"
    holder = world.holders.get(one.consumer)
    if (holder is None or not holder.generation) and one.fenced and one.generation is not None:
        return ""  # it is told that it holds nothing
    return _bars_holder(holder, one.consumer, one.keep, world)


def _bars_release(order: ReleaseRequested, holder: Holder | None, world: ClaimWorld) -> str:
    """Why the cell that asks can neither give back nor end this; empty when it can.

    Of who holds nothing there is nothing to give back; but nobody ends him who never was in the cell.
    """
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
    keeper = world.holders.get(keep)
    if keeper is not None and keeper.held:
        return wall.bars_holder(keep, _places(world, keeper.held))
    return wall.bars_keeper(consumer, keep)


def _places(world: ClaimWorld, allocations: Allocations) -> list[tuple[str, str]]:
    """Each provider with its root."""
    return [(provider, _room(world, provider).root) for provider in allocations]


def _fenced_off(
    order: ClaimRequested, world: ClaimWorld, fences: Sequence[ClaimResult | None]
) -> list[ClaimResult]:
    """Those behind their fence say why, as does who comes twice in one order; the others are not judged."""
    results: list[ClaimResult] = []
    seen: set[str | None] = {one.keep for one in order.claims}
    for one, fence in zip(order.claims, fences, strict=True):
        if fence is None and one.consumer in seen:
            holder = world.holders[one.consumer]
            fence = _held(holder, world)
        seen.add(one.consumer)
        results.append(fence or Refused(refusals=()))
    return results


def _take(
    one: ConsumerClaim, holder: Holder, generation: int, before: _Before, world: ClaimWorld
) -> Claimed | Refused:
    """The first choice that fits, for a consumer that holds nothing any more."""
    refusals: list[Refusal] = []
    group = holder.group
    if one.group is not None:
        group = world.named.get(one.group)
        if group is None or world.groups[group].project != one.project:
            return Refused(refusals=(NoGroup(group=one.group),) * len(one.choices))
    for position, choice in enumerate(one.choices):
        refusal = _refusal(choice, before, world)
        if refusal is None and group is not None:
            refusal = _crowded(choice, group, world)
        if refusal is not None:
            refusals.append(refusal)
            continue
        if choice.allocations:
            _hold(world, holder, generation + 1, choice.allocations, one, group)
        else:  # it holds nothing from now on, and is in no group
            holder.group = None
        return Claimed(choice=position, generation=holder.generation, number=0, refused=tuple(refusals))
    return Refused(refusals=tuple(refusals))


def _refusal(choice: Choice, before: _Before, world: ClaimWorld) -> Refusal | None:
    """Why this choice cannot be had; None when it can."""
    shapes = choice.shapes
    if world.wall is not None and (why := _bars_choice(choice, world.wall, world)):
        return Walled(why=why)
    for provider, resources in choice.allocations.items():
        try:
            room = world.rooms[provider]
        except KeyError:
            raise _Unread from None
        if room is None:
            return Gone(provider=provider)
        if shapes and shapes.get(provider, room.shape) != room.shape:
            return Moved(provider=provider)
        for name, asked in resources.items():
            stock = room.stocks.get(name)
            if stock is None:
                return Full(provider=provider, resource_class=name, asked=asked, free=0, limit="inventory")
            after = stock.used + asked
            # Where more is in use than there is, after capacity was taken away, as much as before is allowed.
            if after > stock.capacity and after > before.get((provider, name), 0):
                free = max(stock.capacity - stock.used, 0)
                return Full(provider=provider, resource_class=name, asked=asked, free=free)
            if limit := broken_limit(asked, stock.min_unit, stock.max_unit, stock.step_size):
                free = max(stock.capacity - stock.used, 0)
                return Full(provider=provider, resource_class=name, asked=asked, free=free, limit=limit)
    return None


def _bars_choice(choice: Choice, wall: CellWall, world: ClaimWorld) -> str:
    """Why nobody of the cell that asks can be there; empty when he can, or when a provider has gone."""
    rooms = [world.rooms.get(provider) for provider in choice.allocations]
    if any(provider not in world.rooms for provider in choice.allocations):
        raise _Unread
    if any(room is None for room in rooms):
        return ""
    return wall.bars_choice([(room.uuid, room.root) for room in rooms if room is not None])


def _crowded(choice: Choice, number: int, world: ClaimWorld) -> Refusal | None:
    """Why its server group does not let it be there. All that the choice names has been read."""
    group = world.groups.get(number)  # none: dropped since the consumer joined it
    return None if group is None else group.refusal(_roots(world, choice.allocations))


def _roots(world: ClaimWorld, allocations: Allocations) -> frozenset[str]:
    return roots_of((_room(world, provider).root, provider in world.sharing) for provider in allocations)


def broken_limit(asked: int, min_unit: int, max_unit: int, step_size: int) -> str:
    """The unit rule this amount breaks; empty when none."""
    if asked < min_unit:
        return "min_unit"
    if asked > max_unit:
        return "max_unit"
    return "step_size" if asked % step_size else ""


def _held(holder: Holder, world: ClaimWorld) -> Held:
    rooms = [world.rooms.get(provider) for provider in holder.held]
    roots = {room.root for room in rooms if room is not None}
    return Held(generation=holder.generation, allocations=holder.held, roots=tuple(sorted(roots)))


def _leave_to(world: ClaimWorld, holder: Holder, keeper: Holder) -> None:
    """What is held goes to another, who may hold something already: of nothing more is in use, nor less."""
    left = holder.held
    group = keeper.group if holder.group is None else holder.group
    _hold(world, holder, 0, {}, None, holder.group)
    both = {provider: dict(resources) for provider, resources in keeper.held.items()}
    for provider, resources in left.items():
        there = both.setdefault(provider, {})
        for name, amount in resources.items():
            there[name] = there.get(name, 0) + amount
    keeper.heir_of, keeper.clean_up = holder, True
    _hold(world, keeper, keeper.generation + 1, both, None, group)


def _hold(
    world: ClaimWorld,
    holder: Holder,
    generation: int,
    allocations: Allocations,
    by: ConsumerClaim | None,
    group: int | None,
) -> None:
    """Give back what is held and take this instead, as one of this group."""
    _count(world, holder.held, -1)
    _count(world, allocations, +1)
    if holder.group is not None and holder.group in world.groups:
        world.groups[holder.group].drop(holder.uuid)
    holder.generation, holder.held, holder.by, holder.group = generation, allocations, by, group
    if group is not None and group in world.groups and allocations:
        world.groups[group].put(holder.uuid, _roots(world, allocations), clean_up=holder.clean_up)


def _count(world: ClaimWorld, allocations: Allocations, sign: int) -> None:
    for provider, resources in allocations.items():
        stocks = _room(world, provider).stocks
        for name, amount in resources.items():
            stocks[name].used += sign * amount


def _take_back(world: ClaimWorld, steps: _Steps) -> None:
    """Backwards, so that a consumer claimed twice in one order ends where it began."""
    for holder, generation, held, by, group in reversed(steps):
        _hold(world, holder, generation, held, by, group)


def _touch(world: ClaimWorld, providers: Iterable[str]) -> None:
    for provider in providers:
        world.touched[provider] = _room(world, provider)


def _room(world: ClaimWorld, provider: str) -> Room:
    room = world.rooms[provider]
    assert room is not None  # it has been claimed from, or holds something
    return room


def providers_of(orders: Sequence[ClaimRequested], *, all_choices: bool) -> set[str]:
    """The providers these orders name: in their first choices, or in all."""
    return {
        provider
        for order in orders
        for one in order.claims
        for choice in (one.choices if all_choices else one.choices[:1])
        for provider in choice.allocations
    }
