"""Does it fit? Claims and releases judged in turn, as tables."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import (
    Choice,
    Claimed,
    ConsumerClaim,
    ExpectedGeneration,
    Full,
    Held,
    Moved,
    NoSuchProvider,
    Refused,
    Released,
    ReleaseRequested,
    Retired,
)
from placement_worker.core.capacity import ClaimWorld, Holder, Stock, claim, release
from tests.support.claim_worlds import A, B, C, X, Y, Z, full, order, room, stock, wants, world


def claimed(consumer: str, generation: int, held: dict[str, dict[str, int]]) -> dict[str, Holder]:
    return {consumer: Holder(consumer, 7, generation, held)}


def keeps(consumer: str, keep: str, *choices: Any, generation: int | None = 4) -> ConsumerClaim:
    return replace(wants(consumer, *choices, generation=generation), keep=keep)


@pytest.mark.parametrize(
    ("there", "asked", "refusal"),
    [
        (stock(8), 8, None),
        (stock(8), 9, full(9, 8)),
        (stock(8, used=7), 1, None),
        (stock(8, used=7), 2, full(2, 1)),
        (stock(8, used=9), 1, full(1, 0)),  # overcommitted: there is no negative room
        (stock(8, min_unit=2), 1, full(1, 8, "min_unit")),
        (stock(8, max_unit=4), 5, full(5, 8, "max_unit")),
        (stock(8, used=6, max_unit=4), 5, full(5, 2, "max_unit")),  # no release would help
        (stock(8, step_size=2), 3, full(3, 8, "step_size")),
        (stock(8, min_unit=2, max_unit=6, step_size=2), 6, None),
        (stock(0), 1, full(1, 0)),
    ],
)
def test_an_amount_fits_or_is_refused_with_the_reason(there: Stock, asked: int, refusal: Full | None) -> None:
    (result,) = claim(order(wants(X, {A: {"VCPU": asked}})), world(room(A, VCPU=there))) or ()
    if refusal is None:
        assert result == Claimed(choice=0, generation=1, number=0)
    else:
        assert result == Refused(refusals=(refusal,))


@pytest.mark.parametrize(
    ("used", "asked", "refused"),
    [
        (0, {A: {"VCPU": 1}}, False),
        (1, {A: {"VCPU": 1}}, True),
        (1, {B: {"VCPU": 1}}, False),
        (0, {A: {"VCPU": 1}, B: {"VCPU": 1}}, True),
    ],
)
def test_a_provider_is_full_while_a_sibling_that_it_excludes_is_in_use(
    used: int, asked: dict[str, dict[str, int]], refused: bool
) -> None:
    one, other = room(A, VCPU=stock(8)), room(B, VCPU=stock(8, used=used))
    one.excludes, other.excludes = (B,), (A,)
    (result,) = claim(order(wants(X, asked)), world(one, other)) or ()
    assert result == (
        Refused(refusals=(full(1, 0),)) if refused else Claimed(choice=0, generation=1, number=0)
    )


def test_a_consumer_can_swap_exclusive_siblings() -> None:
    one, other = room(A, VCPU=stock(8)), room(B, VCPU=stock(8, used=1))
    one.excludes, other.excludes = (B,), (A,)
    there = world(one, other, holders=claimed(X, 4, {B: {"VCPU": 1}}))
    (result,) = claim(order(wants(X, {A: {"VCPU": 1}}, generation=4)), there) or ()
    assert result == Claimed(choice=0, generation=5, number=0)


def test_a_claim_waits_for_siblings_that_were_not_read() -> None:
    one = room(A, VCPU=stock(8))
    one.excludes = (B,)
    assert claim(order(wants(X, {A: {"VCPU": 1}})), world(one)) is None


def test_the_first_fitting_choice_is_claimed_and_better_ones_have_reasons() -> None:
    there = world(room(A, VCPU=stock(1)), room(C, VCPU=stock(4)))
    there.providers[B] = None
    choices = ({A: {"VCPU": 2}}, {B: {"VCPU": 2}}, Choice({C: {"VCPU": 2}}, {C: 1}), {C: {"VCPU": 2}})
    (result,) = claim(order(wants(X, *choices)), there) or ()
    refused = (full(2, 1), NoSuchProvider(provider=B), Moved(provider=C))
    assert result == Claimed(choice=3, generation=1, number=0, refused=refused)
    assert there.holders[X].held == {C: {"VCPU": 2}}
    assert list(there.touched) == [C]


def test_an_order_sees_the_claims_of_earlier_orders() -> None:
    there = world(room(A, VCPU=stock(3)))
    first = claim(order(wants(X, {A: {"VCPU": 2}})), there)
    second = claim(order(wants(Y, {A: {"VCPU": 2}})), there)
    assert first == (Claimed(choice=0, generation=1, number=0),)
    assert second == (Refused(refusals=(full(2, 1),)),)


def test_the_claims_of_an_order_are_taken_together_or_not_at_all() -> None:
    there = world(room(A, VCPU=stock(3)), room(B, VCPU=stock(1)))
    failed = order(wants(X, {A: {"VCPU": 2}}), wants(Y, {A: {"VCPU": 2}}), wants(Z, {B: {"VCPU": 1}}))
    assert claim(failed, there) == (
        Refused(refusals=()),
        Refused(refusals=(full(2, 1),)),
        Refused(refusals=()),
    )
    assert there == world(room(A, VCPU=stock(3)), room(B, VCPU=stock(1)))
    again = claim(order(wants(X, {A: {"VCPU": 2}}), wants(Y, {A: {"VCPU": 1}})), there)
    assert again is not None and all(isinstance(result, Claimed) for result in again)


@pytest.mark.parametrize(
    ("generation", "held_generation", "fenced"),
    [(None, 2, True), (1, 2, True), (3, 2, True), (2, 2, False), (0, 2, True), ("any", 2, False)],
)
def test_a_claim_is_fenced_by_its_consumers_generation(
    generation: ExpectedGeneration, held_generation: int, fenced: bool
) -> None:
    holders = claimed(X, held_generation, {A: {"VCPU": 1}})
    there = world(room(A, VCPU=stock(8, used=1)), holders=holders)
    (result,) = claim(order(wants(X, {A: {"VCPU": 2}}, generation=generation)), there) or ()
    if fenced:
        assert result == Held(generation=2, allocations={A: {"VCPU": 1}}, roots=(A,))
    else:
        assert result == Claimed(choice=0, generation=3, number=0)


def test_the_same_claim_twice_in_a_batch_is_held_the_second_time() -> None:
    there = world(room(A, VCPU=stock(8)))
    one = order(wants(X, {A: {"VCPU": 2}}))
    claim(one, there)
    assert claim(one, there) == (Held(generation=1, allocations={A: {"VCPU": 2}}, roots=(A,)),)


@pytest.mark.parametrize(
    ("capacity", "used", "own", "asked", "fits"),
    [
        (4, 4, 4, 4, True),  # what it holds makes room for it
        (4, 4, 2, 3, False),
        (4, 4, 2, 2, True),
        (2, 6, 4, 3, True),  # overcommitted: less is allowed,
        (2, 6, 4, 4, True),  # as much too,
        (2, 6, 4, 5, False),  # more is not
    ],
)
def test_a_swap_on_one_provider_releases_first(
    capacity: int, used: int, own: int, asked: int, fits: bool
) -> None:
    there = world(room(A, VCPU=stock(capacity, used=used)), holders=claimed(X, 1, {A: {"VCPU": own}}))
    (result,) = claim(order(wants(X, {A: {"VCPU": asked}}, generation=1)), there) or ()
    assert isinstance(result, Claimed) == fits
    kept = there.providers[A]
    assert kept is not None and kept.stocks["VCPU"].used == (used - own + asked if fits else used)


def test_a_refused_swap_keeps_the_allocations() -> None:
    holders = claimed(X, 1, {A: {"VCPU": 4}})
    there = world(room(A, VCPU=stock(4, used=4)), room(B, VCPU=stock(3)), holders=holders)
    (result,) = claim(order(wants(X, {B: {"VCPU": 4}}, generation=1)), there) or ()
    assert result == Refused(refusals=(full(4, 3, provider=B),))
    assert there.holders[X].held == {A: {"VCPU": 4}}
    assert not there.touched


def test_a_retired_consumer_gets_no_allocations() -> None:
    there = world(room(A, VCPU=stock()), retired={X: Retired(why="its build ended")})
    assert claim(order(wants(X, {A: {"VCPU": 1}})), there) == (Retired(why="its build ended"),)


def let_go(generation: int | None, retire: str = "") -> ReleaseRequested:
    return ReleaseRequested(consumer=X, generation=generation, retire=retire)


HELD = {A: {"VCPU": 4}}


@pytest.mark.parametrize(
    ("generation", "retire", "result", "left", "retired_for"),
    [
        (1, "", Released(), 0, None),
        (1, "ended", Released(), 0, "ended"),
        (2, "ended", Held(generation=1, allocations=HELD, roots=(A,)), 4, None),
        (None, "ended", Held(generation=1, allocations=HELD, roots=(A,)), 4, None),
    ],
)
def test_a_release_requires_the_generation(
    generation: int | None, retire: str, result: object, left: int, retired_for: str | None
) -> None:
    there = world(room(A, VCPU=stock(8, used=4)), holders=claimed(X, 1, HELD))
    assert release(let_go(generation, retire), there) == result
    kept = there.providers[A]
    assert kept is not None and kept.stocks["VCPU"].used == left
    assert there.to_retire.get(X) == (None if retired_for is None else Retired(why=retired_for))


@pytest.mark.parametrize("generation", [None, 3])
def test_releasing_an_empty_consumer_succeeds_and_can_retire(generation: int | None) -> None:
    there = world(holders={Y: Holder(Y, 1)})
    assert release(let_go(generation), there) == Released()
    assert release(let_go(generation, "ended"), there) == Released()
    assert release(let_go(generation, "again"), there) == Retired(why="ended")
    assert there.to_retire == {X: Retired(why="ended")}


# What is kept of a guest that may still be there


def one_who_holds(amount: int, capacity: int = 8) -> ClaimWorld:
    """X holds that much of A; Y and Z hold nothing; B is empty."""
    there = world(room(A, VCPU=stock(capacity, used=amount)), room(B, VCPU=stock(capacity)))
    there.holders[X].generation, there.holders[X].held = 4, {A: {"VCPU": amount}}
    return there


KEPT: list[Any] = [
    pytest.param([keeps(X, Y, {B: {"VCPU": 5}})], {X: {B: 5}, Y: {A: 5}}, id="elsewhere"),
    pytest.param([keeps(X, Y, {A: {"VCPU": 3}})], {X: {A: 3}, Y: {A: 5}}, id="beside what is kept"),
    pytest.param([keeps(X, Y, {A: {"VCPU": 4}})], {X: {A: 5}}, id="no room beside it"),
    pytest.param([keeps(X, Y, {A: {"VCPU": 9}}, {B: {"VCPU": 8}})], {X: {B: 8}, Y: {A: 5}}, id="the second"),
    pytest.param([keeps(X, Y, {})], {Y: {A: 5}}, id="nothing instead"),
    pytest.param([keeps(X, Y, {B: {"VCPU": 1}}, generation=3)], {X: {A: 5}}, id="behind the fence"),
    pytest.param([keeps(X, X, {B: {"VCPU": 1}})], {X: {A: 5}}, id="by itself"),
    pytest.param(
        [keeps(X, Y, {B: {"VCPU": 1}}), wants(Y, {B: {"VCPU": 1}})], {X: {A: 5}}, id="by one who claims"
    ),
    pytest.param(
        [keeps(X, Y, {B: {"VCPU": 5}}), wants(Z, {B: {"VCPU": 4}})], {X: {A: 5}}, id="another does not fit"
    ),
]


@pytest.mark.parametrize(("claims", "then"), KEPT)
def test_a_swap_keeps_the_old_allocations_for_its_holder_or_changes_nothing(
    claims: list[ConsumerClaim], then: dict[str, dict[str, int]]
) -> None:
    there = one_who_holds(5)
    claim(order(*claims), there)
    held = {name: holder.held for name, holder in there.holders.items() if holder.held}
    assert held == {
        name: {provider: {"VCPU": amount} for provider, amount in amounts.items()}
        for name, amounts in then.items()
    }
    for provider in (A, B):
        used = sum(resources.get(provider, {}).get("VCPU", 0) for resources in held.values())
        found = there.providers[provider]
        assert found is not None and found.stocks["VCPU"].used == used


def test_an_order_with_an_unread_holder_is_postponed() -> None:
    there = one_who_holds(5)
    del there.holders[Y]
    assert claim(order(keeps(X, Y, {B: {"VCPU": 5}})), there) is None


def test_a_retired_holder_cannot_hold_allocations() -> None:
    there = one_who_holds(5)
    there.retired[Y] = Retired(why="gone")
    assert claim(order(keeps(X, Y, {B: {"VCPU": 5}})), there) == (Retired(why="gone"),)
    asked = ReleaseRequested(consumer=X, generation=4, keep=Y)
    assert isinstance(release(asked, there), Retired)
    assert there.holders[X].held == {A: {"VCPU": 5}}
