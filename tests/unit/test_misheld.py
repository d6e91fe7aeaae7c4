"""Active builds with wrong allocations in placement, and what prevents a repair."""

from typing import Any

import pytest

from berth.operations.wrong_allocations import Misheld, Wrong, doubt, misheld
from bus.claims import Choice
from bus.guests import ReportedGuest
from bus.messages import Selection
from bus.vocabulary import Allocations
from cell_conductor import PlaceByCell
from placement_worker import TreesOfConsumer
from tests.support.ids import uid

BUILD = uid(1)
A, B, CHILD = uid(1, "a"), uid(2, "a"), uid(3, "a")
TREE = {A: A, B: B, CHILD: A}
HERE = {A: {"VCPU": 2, "MEMORY_MB": 512}}
PLACE = PlaceByCell(
    BUILD, "c1", 7, 2, 3, Selection(root=A, host="host-1", agent="agent-1", choice=Choice(HERE))
)


def found(held: Allocations, generation: int = 3, *, moving: bool = False) -> list[Misheld]:
    trees = TreesOfConsumer("INSTANCE", 0.0, False, {TREE[one]: None for one in held}, [])
    return [
        *misheld(
            {BUILD: PLACE},
            {BUILD: trees} if held else {},
            {BUILD: (generation, held, 0.0)} if held else {},
            {BUILD} if moving else set(),
        )
    ]


AT = f"{BUILD}: active on {A}"


@pytest.mark.parametrize(
    ("held", "generation", "wrong", "sentence"),
    [
        ({}, 0, "missing", f"{AT} in cell c1, and holds nothing"),
        ({B: HERE[A]}, 3, "elsewhere", f"{AT}, but holds resources of {B}"),
        ({A: {"VCPU": 4}}, 3, "amounts", f"{AT} with 512 MEMORY_MB, 2 VCPU, but holds 4 VCPU"),
        (HERE, 5, "outdated", f"{AT}: its cell knows generation 3 of it, placement 5"),
    ],
)
def test_each_way_to_be_held_wrongly_is_named(
    held: Allocations, generation: int, wrong: Wrong, sentence: str
) -> None:
    [one] = found(held, generation)
    assert (one.wrong, str(one), one.begun) == (wrong, sentence, False)


@pytest.mark.parametrize("held", [HERE, {CHILD: {"VCPU": 2}, A: {"MEMORY_MB": 512}}])
def test_what_has_gone_elsewhere_within_its_tree_is_held_rightly(held: Allocations) -> None:
    assert found(held) == []


def test_while_a_move_has_begun_what_is_held_is_the_moves_affair() -> None:
    assert found({A: {"VCPU": 4}}, moving=True) == found(HERE, 5, moving=True) == []
    [one] = found({B: HERE[A]}, 5, moving=True)
    assert "has begun that its cell has not heard of" in doubt(one, [a_guest()], {"host-2": []})


# Witnesses


def a_guest(attempt: int = 2, root: str = A, held: Allocations = HERE) -> ReportedGuest:
    return ReportedGuest(BUILD, attempt, root, "running", held)


def wrongly(wrong: Wrong) -> Misheld:
    held: dict[Wrong, Allocations] = {
        "missing": {}, "elsewhere": {B: HERE[A]}, "amounts": {A: {"VCPU": 4}}, "outdated": HERE,
    }  # fmt: skip
    [one] = found(held[wrong], 5)
    return one


@pytest.mark.parametrize(
    ("wrong", "here", "there", "why"),
    [
        ("missing", [a_guest()], {}, ""),
        ("elsewhere", [a_guest()], {"host-2": []}, ""),
        ("elsewhere", [a_guest()], {"host-2": [a_guest()]}, ""),  # one agent has both hosts
        ("amounts", [a_guest()], {}, ""),
        ("amounts", [a_guest(held={CHILD: {"VCPU": 2}, A: {"MEMORY_MB": 512}})], {}, ""),
        ("missing", None, {}, ""),
        ("outdated", None, {}, ""),
        ("elsewhere", None, {"host-2": []}, "agent agent-1 of host-1 does not say what it has"),
        ("amounts", None, {}, "agent agent-1 of host-1 does not say what it has"),
        ("elsewhere", [a_guest()], {"host-2": None}, "nobody says what runs on host-2, where it is held"),
        ("missing", [], {}, "agent agent-1 has no guest of its attempt 2 on host-1"),
        ("amounts", [a_guest(attempt=1)], {}, "agent agent-1 has no guest of its attempt 2 on host-1"),
        ("elsewhere", [a_guest(root=B)], {"host-2": []}, "has no guest of its attempt 2 on host-1"),
        ("elsewhere", [a_guest(), a_guest(3, B)], {"host-2": []}, "has more than one guest of it"),
        ("amounts", [a_guest(held={A: {"VCPU": 4}})], {}, "agent agent-1 has it with 4 VCPU"),
        ("missing", [a_guest(held={A: {"VCPU": 4}})], {}, "agent agent-1 has it with 4 VCPU"),
        ("elsewhere", [a_guest()], {"host-2": [a_guest(1, B)]}, "there is a guest of it on host-2, too"),
    ],
)
def test_what_is_held_moves_only_by_two_witnesses_and_against_nobodys_word(
    wrong: Wrong, here: Any, there: Any, why: str
) -> None:
    said = doubt(wrongly(wrong), here, there)
    assert why in said and bool(why) == bool(said)
