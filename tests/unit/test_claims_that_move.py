"""Claims that begin a move, at most once, and claims that take over held allocations."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import (
    MIGRATION,
    Choice,
    Claimed,
    ConsumerClaim,
    Held,
    NothingHeld,
    OutsideCell,
    Refused,
    Released,
    ReleaseRequested,
    Retired,
    holder_consumer,
)
from placement_worker.core.capacity import ClaimWorld, Holder, claim, release
from placement_worker.core.cell_limits import CellLimits
from tests.support.claim_worlds import A, B, C, X, Y, Z, full, order, room, stock, wants, world
from tests.support.ids import uid
from tests.support.moved_claims import (
    ASLEEP,
    BEGAN,
    DONE,
    KEEP,
    LEFT,
    MOVE,
    OTHER,
    a_world,
    five,
    held,
    moved,
    moves,
    takes_over,
)

# Started once


def test_a_move_begins_with_its_claim_and_the_old_place_is_a_migrations() -> None:
    there = a_world()
    assert claim(order(moves()), there) == (DONE,)
    assert held(there) == {X: B, KEEP: A}
    assert there.to_retire == {MOVE: BEGAN}
    assert there.holders[KEEP].heir_type == MIGRATION and there.holders[KEEP].heir_of is there.holders[X]
    assert there.changed_holders.keys() == {X, KEEP} and there.touched.keys() == {A, B}
    assert (there.provider(A).generation, there.provider(B).generation) == (10, 11)


def test_a_fenced_move_does_not_begin() -> None:
    there = a_world()
    fence = ReleaseRequested(consumer=MOVE, generation=None, retire="no host", unplaceable=True)
    assert release(fence, there) == Released()
    assert claim(order(moves()), there) == (Retired(why="no host", unplaceable=True),)
    assert held(there) == {X: A}
    assert there.changed_holders == {}


def is_held(provider: str, generation: int = 4) -> Held:
    return Held(generation=generation, allocations=five(provider), roots=(provider,))


ARRIVES = replace(wants(Y, five(B)), begins=MOVE)  # Y holds nothing
STRANGER = OutsideCell(why=f"move {MOVE}: a consumer has that name, and holds something")
# what is held, the claims of one order after the other, and the answers
BEGINNINGS: dict[str, tuple[dict[str, str], list[list[ConsumerClaim]], list[Any], dict[str, str]]] = {
    "again": ({}, [[moves()], [moves()]], [DONE, BEGAN], {X: B, KEEP: A}),
    "again, with the new generation": (
        {}, [[moves()], [moves(generation=5, keep=LEFT)]], [DONE, BEGAN], {X: B, KEEP: A}
    ),
    "another move of the same consumer": (
        {}, [[moves()], [moves(move=OTHER)]], [DONE, is_held(B, 5)], {X: B, KEEP: A}
    ),
    "the same move of another consumer": (
        {}, [[moves()], [replace(wants(Y, five(C)), begins=MOVE)]], [DONE, BEGAN], {X: B, KEEP: A}
    ),
    "no room": ({Y: B}, [[moves()]], [Refused(refusals=(full(5, 3, provider=B),))], {X: A, Y: B}),
    "another generation": ({}, [[moves(generation=3)]], [is_held(A)], {X: A}),
    "something is left of that attempt": ({KEEP: C}, [[moves()]], [is_held(A)], {X: A, KEEP: C}),
    "the name of one that holds something": (
        {MOVE: C}, [[moves()]], [Refused(refusals=(STRANGER,))], {X: A, MOVE: C}
    ),
    "with a claim that fails, then alone": (
        {}, [[moves(), wants(Y, five(B))], [moves()]],
        [Refused(refusals=()), Refused(refusals=(full(5, 3, provider=B),)), DONE], {X: B, KEEP: A},
    ),
    "two claims of one move": (
        {Y: B}, [[moves(C), replace(wants(Y, five(C), generation=4), begins=MOVE)]],
        [is_held(A), is_held(B)], {X: A, Y: B},
    ),
    "a consumer without allocations": (
        {}, [[ARRIVES], [ARRIVES]], [Claimed(choice=0, generation=1, number=0), BEGAN], {X: A, Y: B}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "orders", "answers", "then"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_move_begins_at_most_once_and_completely(
    before: dict[str, str], orders: list[list[ConsumerClaim]], answers: list[Any], then: dict[str, str]
) -> None:
    there = a_world(before)
    assert [answer for claims in orders for answer in claim(order(*claims), there) or ()] == answers
    assert held(there) == then
    started = any(isinstance(answer, Claimed) for answer in answers)
    assert there.to_retire == ({MOVE: BEGAN} if started else {})
    assert started or not (there.changed_holders or there.touched or MOVE in there.retired)


def a_shelved_world() -> ClaimWorld:
    there = a_world()
    assert (
        release(ReleaseRequested(consumer=X, generation=4, retire=ASLEEP.why, revivable=True), there)
        == Released()
    )
    return there


def test_a_redelivered_boot_does_not_place_a_shelved_instance() -> None:
    there = a_shelved_world()
    assert claim(order(wants(X, five(B))), there) == (ASLEEP,)
    assert held(there) == {}
    assert there.to_retire == {X: ASLEEP}


def test_an_unshelve_revives_the_consumer() -> None:
    there = a_shelved_world()
    assert claim(order(replace(wants(X, five(B)), begins=MOVE)), there) == (
        Claimed(choice=0, generation=1, number=0),
    )
    assert there.woken == {X} and there.to_retire == {MOVE: BEGAN}
    assert claim(order(wants(X, five(C))), there) == (Held(generation=1, allocations=five(B), roots=(B,)),)
    assert held(there) == {X: B}


@pytest.mark.parametrize("name", [MOVE, KEEP])
def test_a_name_that_was_not_read_leaves_the_order_unjudged(name: str) -> None:
    there = a_world()
    del there.holders[name]
    assert claim(order(moves()), there) is None


# Taken over again


TAKEN: dict[str, tuple[ConsumerClaim, dict[str, str], Any, dict[str, str]]] = {
    "given back": (takes_over(), {}, DONE, {X: A}),
    "left to another": (takes_over(keep=LEFT), {}, DONE, {X: A, LEFT: B}),
    "whatever was chosen": (replace(takes_over(), choices=(Choice(five(C)),)), {}, DONE, {X: A}),
    "next to others": (takes_over(keep=LEFT), {Y: C, Z: C}, DONE, {X: A, LEFT: B, Y: C, Z: C}),
    "on one host": (takes_over(keep=LEFT), {X: A}, DONE, {X: A, LEFT: A}),
    "another generation": (takes_over(generation=3), {}, is_held(B), {X: B, KEEP: A}),
    "of a holder of nothing": (
        takes_over(LEFT), {}, Refused(refusals=(NothingHeld(consumer=LEFT),)), {X: B, KEEP: A}
    ),
    "of an unknown holder": (
        takes_over("nobody"), {}, Refused(refusals=(NothingHeld(consumer="nobody"),)), {X: B, KEEP: A}
    ),
    "of itself": (takes_over(X), {}, is_held(B), {X: B, KEEP: A}),
    "kept by the same holder": (takes_over(keep=KEEP), {}, is_held(B), {X: B, KEEP: A}),
}  # fmt: skip


@pytest.mark.parametrize(("one", "more", "answer", "then"), TAKEN.values(), ids=TAKEN)
def test_taking_over_moves_all_allocations_of_the_holder_or_none(
    one: ConsumerClaim, more: dict[str, str], answer: object, then: dict[str, str]
) -> None:
    there = a_world({X: B, KEEP: A} | more, capacity=10)
    assert claim(order(one), there) == (answer,)
    assert held(there) == then and there.to_retire == {}
    if answer != DONE:
        assert not (there.changed_holders or there.touched)
        return
    assert there.holders[KEEP].generation == 0
    assert there.changed_holders.keys() == {X, KEEP, *({LEFT} & then.keys())}
    assert there.touched.keys() == {A, (more.get(X) or B)}
    assert (there.provider(A).generation, there.provider(B).generation) == (11, 10)
    assert claim(order(one), there) == (is_held(A, 5),)  # repeated


def test_taking_allocations_back_needs_no_free_capacity() -> None:
    there = moved()
    there.provider(A).stocks["VCPU"].capacity = 0
    assert claim(order(takes_over()), there) == (DONE,)


# From within a cell


BUILD, ANOTHER = uid(1), uid(2)


def limited_to_cell(cells: dict[str, str], **held_: str) -> ClaimWorld:
    there = a_world()
    names = {BUILD: B, holder_consumer(BUILD, 1): A} | held_
    for name in (
        BUILD,
        ANOTHER,
        *(holder_consumer(one, index) for one in (BUILD, ANOTHER) for index in (1, 2)),
    ):
        there.holders[name] = Holder(name, len(there.holders))
    for name, provider in names.items():
        there.holders[name].generation, there.holders[name].held = 4, five(provider)
        there.provider(provider).stocks["VCPU"].used += 5
    there.cell_limits = CellLimits("c1", cells, ())
    return there


def back(other: str, **more: Any) -> ConsumerClaim:
    return replace(wants(BUILD, {}, generation=4), take_over=other, **more)


OWN = {A: "c1", B: "c1", C: "c2"}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (back(holder_consumer(BUILD, 1)), ""),
        (back(holder_consumer(BUILD, 1), keep=holder_consumer(BUILD, 2)), ""),
        (back(holder_consumer(ANOTHER, 1)), "is no clean-up of"),
        (back(ANOTHER), "is no clean-up of"),
        (back(holder_consumer(BUILD, 1), keep=holder_consumer(ANOTHER, 2)), "is no clean-up of"),
        (replace(back(holder_consumer(BUILD, 1)), begins=MOVE), "begins no moves"),
        (replace(wants(BUILD, five(A), generation=4), begins=MOVE), "begins no moves"),
    ],
)
def test_a_cell_can_take_over_allocations_of_its_builds(one: ConsumerClaim, why: str) -> None:
    there = limited_to_cell(OWN)
    [result] = claim(order(one), there) or ()
    if not why:
        assert result == DONE
    else:
        assert isinstance(result, Refused) and isinstance(refusal := result.refusals[0], OutsideCell)
        assert why in refusal.why
        assert there.changed_holders == {} and there.to_retire == {}


@pytest.mark.parametrize("cells", [{A: "c2", B: "c1"}, {A: "c1", B: "c2"}, {A: "c2", B: "c2"}])
def test_a_takeover_must_stay_within_the_cell(cells: dict[str, str]) -> None:
    [result] = claim(order(back(holder_consumer(BUILD, 1))), limited_to_cell(cells)) or ()
    assert isinstance(result, Refused) and isinstance(result.refusals[0], OutsideCell)


# Whatever comes


@pytest.mark.parametrize("seed", range(4))
def test_random_moves_and_returns_hold_every_allocation_once(seed: int) -> None:
    chance = random.Random(seed)
    there = world(*(room(one, VCPU=stock(12)) for one in (A, B, C)))
    builds = [X, Y, Z]
    kept = {build: [f"{build} {index}" for index in range(4)] for build in builds}
    for name in [*builds, *(one for each in kept.values() for one in each), *map(str, range(60))]:
        there.holders[name] = Holder(name, len(there.holders))
    started: dict[str, int] = {}
    for step in range(150):
        build, move = chance.choice(builds), str(chance.randrange(60))
        holder = there.holders[build]
        generation = holder.generation - (chance.random() < 0.1) or None
        keep = chance.choice([None, *kept[build]])
        one: ConsumerClaim = replace(
            wants(build, {chance.choice((A, B, C)): {"VCPU": chance.randrange(1, 8)}}, generation=generation),
            keep=keep,
        )
        what = chance.random()
        if what < 0.4:
            one = replace(one, begins=move)
        elif what < 0.7:
            one = replace(one, take_over=chance.choice(kept[build]))
        elif what < 0.8:
            gone = chance.choice(kept[build])
            release(ReleaseRequested(consumer=gone, generation="any"), there)
            continue
        before = {name: (found.generation, found.held) for name, found in there.holders.items()}
        [result] = claim(order(one), there) or ()
        after = {name: (found.generation, found.held) for name, found in there.holders.items()}
        if not isinstance(result, Claimed):
            assert after == before, (step, one, result)
        else:
            assert before[build][0] == (generation or 0)
            if one.begins:
                started[one.begins] = started.get(one.begins, 0) + 1
            if one.take_over:
                assert after[build][1] == before[one.take_over][1] and not after[one.take_over][1]
            if keep:
                assert _sum(after[keep][1]) == _sum(before[keep][1]) + _sum(before[build][1])
        for room_ in there.providers.values():
            assert room_ is not None
            used = sum(_sum({room_.uuid: found.held.get(room_.uuid, {})}) for found in there.holders.values())
            assert room_.stocks["VCPU"].used == used <= 12
    assert started.keys() == there.to_retire.keys() and set(started.values()) == {1}


def _sum(held_: Mapping[str, Mapping[str, int]]) -> int:
    return sum(resources.get("VCPU", 0) for resources in held_.values())
