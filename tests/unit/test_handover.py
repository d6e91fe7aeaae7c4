"""The state of a move between two cells for every report."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import Choice, holder_consumer
from bus.messages import BuildDeleteRequested, Selection
from bus.moves import SHELVED, HandoverProgress, HandoverReported, MovePlaced
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Message
from scheduler_worker.core.move_state import (
    EndBuild,
    Handover,
    HandoverState,
    SayAgain,
    TakeBack,
    begins,
    holding_nothing,
    judged,
    messages_of,
    taking_back,
)
from tests.support.ids import uid

ROOT = uid(3, "a")
PLACED = MovePlaced(
    move=uid(1, "e"),
    build=uid(1, "b"),
    kind="migrate",
    cell="c2",
    attempt=1,
    generation=2,
    chosen=Selection(root=ROOT, host="host-3", agent="a", choice=Choice({ROOT: {"VCPU": 1}})),
    spec=BuildSpec(flavor=Flavor(name="small", vcpus=1), project="p", user="u"),
    out_of="c1",
)


def an_order(state: HandoverState) -> Handover:
    by = None if state in ("leaving", "arriving") else a_report("arriving", "back", above=4, end="aborted")
    return Handover(placed=PLACED, state=state, by=by)


def a_report(half: str, outcome: str, cell: str = "", **fields: Any) -> HandoverReported:
    own = {"leaving": "c1", "arriving": "c2"}[half]
    return HandoverReported(
        move=PLACED.move, build=PLACED.build, cell=cell or own, half=half, outcome=outcome, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def in_short(found: object) -> str:
    match found:
        case Handover():
            return found.state
        case TakeBack() | EndBuild() | SayAgain():
            return {TakeBack: "take back", EndBuild: "end it", SayAgain: "later"}[type(found)]
        case _:
            return "nothing"


# state, half, outcome → what the order is then, or what has to be done first
TABLE: list[tuple[HandoverState, str, str, str]] = [
    ("leaving", "leaving", "ready", "arriving"),
    ("leaving", "leaving", "failed", "take back"),
    ("leaving", "leaving", "deleted", "end it"),
    ("leaving", "leaving", "delete", "later"),
    ("leaving", "arriving", "arrived", "nothing"),
    ("leaving", "arriving", "back", "nothing"),
    ("leaving", "arriving", "deleted", "nothing"),
    ("leaving", "arriving", "delete", "nothing"),
    ("leaving", "arriving", "ready", "nothing"),
    ("leaving", "arriving", "failed", "nothing"),
    ("arriving", "arriving", "ready", "nothing"),
    ("arriving", "arriving", "failed", "nothing"),
    ("arriving", "leaving", "arrived", "nothing"),
    ("arriving", "leaving", "back", "nothing"),
    ("arriving", "leaving", "ready", "arriving"),
    ("arriving", "leaving", "failed", "arriving"),
    ("arriving", "leaving", "deleted", "arriving"),
    ("arriving", "leaving", "delete", "arriving"),
    ("arriving", "arriving", "arrived", "done"),
    ("arriving", "arriving", "back", "take back"),
    ("arriving", "arriving", "deleted", "deleted"),
    ("arriving", "arriving", "delete", "later"),
    *[
        (state, half, outcome, state)
        for state in ("done", "back", "deleted")
        for half, outcomes in (("leaving", "ready failed deleted"), ("arriving", "arrived back deleted"))
        for outcome in outcomes.split()
    ],
]


@pytest.mark.parametrize(("state", "half", "outcome", "then"), TABLE)
def test_it_is_decided_once_by_what_each_half_says_of_itself(
    state: HandoverState, half: str, outcome: str, then: str
) -> None:
    assert in_short(judged(an_order(state), a_report(half, outcome))) == then


@pytest.mark.parametrize(("state", "half", "outcome", "then"), TABLE)
def test_what_one_cell_says_of_the_others_half_changes_nothing(
    state: HandoverState, half: str, outcome: str, then: str
) -> None:
    for cell in {"c1", "c2", "c3"} - {a_report(half, outcome).cell}:
        assert judged(an_order(state), a_report(half, outcome, cell)) is None


def told(messages: tuple[Message, ...]) -> list[str]:
    return [
        f"{message.say} to {message.cell}" if isinstance(message, HandoverProgress)
        else f"{type(message).__name__} to {message.cell}"  # type: ignore[attr-defined]
        for message in messages
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "says_so"),
    [
        ("leaving", ["leave to c1"]),
        ("arriving", ["MovePlaced to c2"]),
        ("done", ["done to c1"]),
        ("back", ["back to c1"]),
        ("deleted", ["deleted to c1"]),
    ],
)
def test_each_state_has_one_cell_to_tell(state: HandoverState, says_so: list[str]) -> None:
    assert told(messages_of(an_order(state))) == says_so
    assert told(begins(an_order(state))) == (says_so if state == "leaving" else [])


@pytest.mark.parametrize(
    ("state", "who", "says_so"),
    [
        ("arriving", "leaving", ["BuildDeleteRequested to c2"]),
        ("done", "leaving", ["BuildDeleteRequested to c2"]),
        ("back", "arriving", ["back to c1", "BuildDeleteRequested to c1"]),
        ("back", "leaving", ["back to c1", "BuildDeleteRequested to c1"]),
        ("deleted", "leaving", ["deleted to c1", "BuildDeleteRequested to c1"]),
    ],
)
def test_a_delete_is_handed_to_whose_it_is(state: HandoverState, who: str, says_so: list[str]) -> None:
    report = a_report(who, "delete", reply_to="me")
    found = judged(an_order(state), report)
    assert isinstance(found, Handover)
    said = messages_of(found, report)
    assert told(said) == says_so
    assert isinstance(said[-1], BuildDeleteRequested) and said[-1].reply_to == "me"


def test_who_takes_it_in_counts_on_from_where_the_other_stopped() -> None:
    found = judged(an_order("leaving"), a_report("leaving", "ready", above=6, steps=9))
    assert isinstance(found, Handover)
    [placed] = messages_of(found)
    assert isinstance(placed, MovePlaced) and (placed.above, placed.steps) == (6, 9)
    [back] = messages_of(an_order("back"))
    assert isinstance(back, HandoverProgress) and (back.above, back.end) == (4, "aborted")


def test_what_it_held_is_taken_back_from_its_keeper_once_and_a_shelved_one_is_fenced_again() -> None:
    claim = taking_back(an_order("arriving"), 7)
    assert claim is not None
    assert (claim.consumer, claim.generation, claim.take_over) == (
        PLACED.build,
        7,
        holder_consumer(PLACED.build, 1),
    )
    again = taking_back(an_order("arriving"), None)
    assert again is not None and claim.begins and claim.begins == again.begins != PLACED.move
    shelved = Handover(placed=replace(PLACED, attempt=0, kind="unshelve"))
    assert taking_back(shelved, 7) is None
    assert holding_nothing(shelved, deleted=False).retire == SHELVED
    assert holding_nothing(shelved, deleted=True).retire == "deleted"
