"""Claims of moves whose instances are members of server groups."""

from typing import Any

from bus.claims import Refused
from features.groups.places import GroupPlaces, no_group
from features.groups.rule import GROUP
from features.groups.tests.support.group_parts import joining
from features.groups.tests.support.group_worlds import join
from placement_worker.extension import ClaimWorld
from placement_worker.testing import claim
from tests.support.claim_worlds import A, B, X, Y, order, wants
from tests.support.moved_claims import DONE, KEEP, LEFT, a_world, five, held, moves, takes_over


def grouped(there: ClaimWorld, policy: Any = "anti-affinity") -> GroupPlaces:
    group = GroupPlaces(7, "g", "web", "p", policy, 1)
    join(there, group)
    for name in (X, KEEP):
        holder = there.holders[name]
        if holder.held:
            holder.marks[GROUP] = 7
            holder.keeps_for = X if name == KEEP else None
            group.put(name, frozenset(holder.held), holder.keeps_for)
    return group


def test_a_move_to_the_same_host_is_allowed_in_an_anti_affinity_group() -> None:
    there = a_world(capacity=15)
    group = grouped(there)
    assert claim(order(moves(A)), there) == (DONE,)
    assert group.places == {X: {A}, KEEP: {A}} and group.holder_consumers == {KEEP: X}
    assert list(group.breaches()) == []
    there.holders[Y].marks[GROUP] = 7
    assert [type(result) for result in claim(order(wants(Y, five(A))), there) or ()] == [Refused]
    assert claim(order(takes_over(generation=5, keep=LEFT)), there)
    assert group.places == {X: {A}, LEFT: {A}} and list(group.breaches()) == []


def test_taking_over_into_an_unknown_group_is_refused() -> None:
    there = a_world({X: B, KEEP: A}, capacity=10)
    join(there)
    refused = Refused(refusals=(no_group("none"),))
    assert claim(order(takes_over(parts=joining("none"))), there) == (refused,)
    assert held(there) == {X: B, KEEP: A}
