"""A move between hosts that use one pool: the share of the pool is counted once, on the way and back."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import Choice, Claimed, ConsumerClaim, Refused
from bus.vocabulary import Allocations, joined, without
from placement_worker.core.capacity import ClaimWorld, Holder, claim
from tests.support.claim_worlds import A, B, X, Y, full, order, room, stock, wants, world

POOL, LOCAL = "pool", "local"
SOURCE, DESTINATION, MOVE = "source", "destination", "move"  # holders, and the id of the move


def on(host: str, disk: int, pool: str = POOL) -> Allocations:
    return {host: {"VCPU": 2}, **({pool: {"DISK_GB": disk}} if disk else {})}


def a_world(held: Allocations, *, pool: int = 100, others: int = 0) -> ClaimWorld:
    """An instance X with these allocations on host A, and a consumer Y with a share of the pool."""
    names = (X, Y, SOURCE, DESTINATION, MOVE)
    there = world(
        *(room(name, VCPU=stock(8), DISK_GB=stock(8)) for name in (A, B)),
        room(POOL, DISK_GB=stock(pool)),
        room(LOCAL, DISK_GB=stock(100)),
        holders={name: Holder(name, number) for number, name in enumerate(names)},
    )
    there.sharing = {POOL, LOCAL}
    hold(there, X, held, 4)
    if others:
        hold(there, Y, {POOL: {"DISK_GB": others}}, 1)
    return there


def hold(there: ClaimWorld, name: str, allocations: Allocations, generation: int) -> None:
    there.holders[name].generation, there.holders[name].held = generation, allocations
    for provider, resources in allocations.items():
        for class_, amount in resources.items():
            there.provider(provider).stocks[class_].used += amount


def held(there: ClaimWorld) -> Mapping[str, Allocations]:
    for provider in there.providers.values():
        assert provider is not None
        for class_, has in provider.stocks.items():
            sums = [each.held.get(provider.uuid, {}).get(class_, 0) for each in there.holders.values()]
            assert has.used == sum(sums), (provider.uuid, class_)
    return {each.uuid: each.held for each in there.holders.values() if each.held}


def begins(*to: Allocations, keep: str = SOURCE) -> ConsumerClaim:
    return replace(wants(X, *to, generation=4), keep=keep, begins=MOVE)


def returns(source: Allocations, **more: Any) -> ConsumerClaim:
    return replace(wants(X, Choice(source), generation=5), take_over=SOURCE, **more)


DONE = Claimed(choice=0, generation=5, number=0)


@pytest.mark.parametrize(
    ("had", "gets", "source_keeps"),
    [
        (on(A, 20), on(B, 20), on(A, 0)),  # a migration
        (on(A, 20), on(B, 50), on(A, 0)),  # a resize to a larger disk
        (on(A, 50), on(B, 20), on(A, 30)),  # a resize to a smaller disk
        (on(A, 20), on(B, 20, LOCAL), on(A, 20)),  # to another pool
        (on(A, 0), on(B, 20), on(A, 0)),  # from a host with local disk
        (on(A, 20), on(B, 0), on(A, 20)),  # to a host with local disk
    ],
)
def test_the_share_of_a_pool_is_counted_once_and_is_restored_by_the_way_back(
    had: Allocations, gets: Allocations, source_keeps: Allocations
) -> None:
    there = a_world(had)
    assert claim(order(begins(gets)), there) == (DONE,)
    assert held(there) == {X: gets, SOURCE: source_keeps}
    assert claim(order(returns(had)), there) == (replace(DONE, generation=6),)
    assert held(there) == {X: had}


@pytest.mark.parametrize(("disk", "is_claimed"), [(20, True), (50, True), (51, False)])
def test_a_move_fits_a_pool_that_has_only_the_difference_free(disk: int, is_claimed: bool) -> None:
    there = a_world(on(A, 20), others=50)
    [result] = claim(order(begins(on(B, disk))), there) or ()
    if is_claimed:
        assert result == DONE
        assert held(there)[X] == on(B, disk)
    else:
        assert result == Refused(refusals=(full(51, 50, name="DISK_GB", provider=POOL),))
        assert held(there)[X] == on(A, 20)


def test_a_guest_left_at_the_destination_leaves_the_share_to_the_instance() -> None:
    there = a_world(on(A, 20))
    claim(order(begins(on(B, 50))), there)
    claim(order(returns(on(A, 20), keep=DESTINATION)), there)
    assert held(there) == {X: on(A, 20), DESTINATION: on(B, 30)}


def test_a_return_that_names_no_amounts_takes_over_only_what_the_holder_has() -> None:
    """As conductors of an earlier version do, whose moves began with the whole share at the holder."""
    there = a_world(on(B, 20))
    hold(there, SOURCE, on(A, 20), 1)
    claim(order(replace(returns({}), generation=4)), there)
    assert held(there) == {X: on(A, 20)}


def test_sums_and_differences_of_allocations() -> None:
    assert joined({A: {"VCPU": 1}}, {A: {"VCPU": 2}, B: {"VCPU": 1}}) == {A: {"VCPU": 3}, B: {"VCPU": 1}}
    assert without({A: {"VCPU": 3}, B: {"VCPU": 1}}, {A: {"VCPU": 1}, B: {"VCPU": 1}}) == {A: {"VCPU": 2}}
