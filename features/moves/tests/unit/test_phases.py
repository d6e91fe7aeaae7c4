"""Guests after each phase of a move, and obsolete orders: tables."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import Choice, holder_consumer
from bus.messages import Selection
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Message
from features.moves.core.guest_phases import MoveSteps, afterwards, meanwhile, refusal
from features.moves.core.handover import Handover, HandoverState, begins, judged, messages_of, release_of
from features.moves.core.start import undoing
from features.moves.messages import SHELVED, HandoverProgress, HandoverReported, MovePlaced, MoveReported
from features.moves.tests.support.moving_agent import DESTINATION, SOURCE, an_order
from tests.support.ids import uid

PREPARE, START = an_order("prepare", 1, 2, DESTINATION), an_order("start", 3, 2, DESTINATION)
SEND, LIVE = an_order("send", 2, 1), an_order("send", 2, 1, kind="live")
RESUME, REBUILD = an_order("resume", 4, 3, was=1), an_order("rebuild", 1, 2, was=1)


@pytest.mark.parametrize(
    ("order", "here", "why"),
    [
        (PREPARE, {}, ""),
        (PREPARE, {1: "running"}, ""),  # one agent has both hosts
        (SEND, {1: "running"}, ""),
        (SEND, {1: "stopped"}, ""),
        (SEND, {1: "running", 2: "arriving"}, ""),
        (SEND, {}, "there is no guest of attempt 1 here"),
        (SEND, {1: "arriving"}, "the guest of attempt 1 has never run here"),
        (START, {2: "arriving", 1: "stopped"}, ""),
        (START, {2: "running"}, ""),
        (START, {}, "there is no guest of attempt 2 here"),
        (START, {2: "arriving", 1: "running"}, "its guest of attempt 1 runs here"),
        (RESUME, {1: "stopped"}, ""),
        (RESUME, {1: "running", 2: "stopped"}, ""),  # it never stopped
        (RESUME, {3: "stopped"}, ""),
        (RESUME, {2: "arriving"}, "there is no guest of attempt 1 here"),
        (RESUME, {1: "stopped", 2: "running"}, "its guest of attempt 2 runs here"),
        (REBUILD, {1: "running"}, ""),
        (REBUILD, {2: "running"}, ""),
        (REBUILD, {}, "there is no guest of attempt 1 here"),
    ],
)
def test_a_phase_begins_with_the_guest_it_is_about(order: Any, here: Any, why: str) -> None:
    assert refusal(order, here) == why


@pytest.mark.parametrize(
    ("order", "before", "during", "done", "failed", "hung", "lost"),
    [
        (PREPARE, "arriving", "arriving", "arriving", None, "arriving", "arriving"),
        (SEND, "running", "stopped", "stopped", "running", "running", "stopped"),
        (SEND, "stopped", "stopped", "stopped", "running", "running", "stopped"),
        (LIVE, "running", "running", "stopped", "running", "running", "running"),
        (LIVE, "stopped", "stopped", "stopped", "running", "running", "stopped"),
        (START, "arriving", "arriving", "running", None, "arriving", "arriving"),
        (RESUME, "stopped", "stopped", "running", "stopped", "stopped", "stopped"),
        (RESUME, "running", "running", "running", "running", "running", "running"),
        (REBUILD, "running", "running", "running", "running", "running", "running"),
    ],
)
def test_a_guest_is_in_one_state_at_any_time(
    order: Any, before: Any, during: str, done: str, failed: str, hung: str, lost: str
) -> None:
    now = meanwhile(order, before)
    assert now == during
    ends = [afterwards(order, now, end) for end in ("done", "failed", "hung", "lost")]
    assert ends == [done, failed, hung, lost]


def reply(order: Any) -> MoveReported:
    return MoveReported(
        move=order.move, build=order.build, phase=order.phase, step=order.step, attempt=order.attempt,
        cell="c1", agent="a1", root=order.root, host=order.host, outcome="done",
    )  # fmt: skip


def test_the_highest_step_of_a_move_counts() -> None:
    steps = MoveSteps()
    assert steps.ordered(SEND) == "go on"
    steps.started(SEND)
    assert steps.ordered(SEND) == "go on"
    steps.finished(reply(SEND))
    assert steps.ordered(SEND) == reply(SEND)
    steps.started(RESUME)
    assert (steps.ordered(SEND), steps.ordered(RESUME)) == ("void", "go on")
    assert steps.entries(SEND.build) == [reply(SEND)]  # what a restarted agent recalls
    steps.finished(reply(SEND))  # too late to count
    assert (steps.ordered(SEND), steps.ordered(RESUME)) == ("void", "go on")
    assert steps.ordered(PREPARE) == "go on"  # on another host
    assert steps.ordered(an_order("send", 1, 1, build=uid(2, "b"))) == "go on"


def test_the_oldest_steps_are_forgotten_first() -> None:
    dropped: list[str] = []
    steps = MoveSteps(remembered=2, dropped=dropped.append)
    orders = [an_order("send", 5, 1, SOURCE, build=uid(number, "b")) for number in range(3)]
    for order in orders:
        steps.finished(reply(order))
    assert [steps.ordered(order) for order in orders] == ["go on", reply(orders[1]), reply(orders[2])]
    assert dropped == [orders[0].build]


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


def a_handover_order(state: HandoverState) -> Handover:
    by = None if state in ("leaving", "arriving") else a_report("arriving", "back", above=4, end="aborted")
    return Handover(placed=PLACED, state=state, by=by)


def a_report(half: str, outcome: str, cell: str = "", **fields: Any) -> HandoverReported:
    own = {"leaving": "c1", "arriving": "c2"}[half]
    return HandoverReported(
        move=PLACED.move, build=PLACED.build, cell=cell or own, half=half, outcome=outcome, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def in_short(found: Handover | str | None) -> str:
    return found.state if isinstance(found, Handover) else found or "nothing"


EVERY = ("arrived", "back", "deleted", "delete", "ready", "failed")
# state, half, outcome → what the order is then, or what has to be done first
TABLE: list[tuple[HandoverState, str, str, str]] = [
    ("leaving", "leaving", "ready", "arriving"),
    ("leaving", "leaving", "failed", "take back"),
    ("leaving", "leaving", "deleted", "end build"),
    ("leaving", "leaving", "delete", "retry"),
    *[("leaving", "arriving", outcome, "nothing") for outcome in EVERY],
    ("arriving", "arriving", "ready", "nothing"),
    ("arriving", "arriving", "failed", "nothing"),
    ("arriving", "arriving", "arrived", "done"),
    ("arriving", "arriving", "back", "take back"),
    ("arriving", "arriving", "deleted", "deleted"),
    ("arriving", "arriving", "delete", "retry"),
    *[("arriving", "leaving", outcome, "nothing") for outcome in ("arrived", "back")],
    *[("arriving", "leaving", outcome, "arriving") for outcome in ("ready", "failed", "deleted", "delete")],
    *[
        (state, half, outcome, state)
        for state in ("done", "back", "deleted")
        for half, outcomes in (("leaving", "ready failed deleted"), ("arriving", "arrived back deleted"))
        for outcome in outcomes.split()
    ],
]


@pytest.mark.parametrize(("state", "half", "outcome", "then"), TABLE)
def test_a_handover_is_decided_by_the_reports_of_both_halves(
    state: HandoverState, half: str, outcome: str, then: str
) -> None:
    assert in_short(judged(a_handover_order(state), a_report(half, outcome))) == then


@pytest.mark.parametrize(("state", "half", "outcome", "then"), TABLE)
def test_reports_of_the_other_cells_half_are_ignored(
    state: HandoverState, half: str, outcome: str, then: str
) -> None:
    for cell in {"c1", "c2", "c3"} - {a_report(half, outcome).cell}:
        assert judged(a_handover_order(state), a_report(half, outcome, cell)) is None


def sent(messages: tuple[Message, ...]) -> list[str]:
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
def test_each_state_of_a_handover_informs_one_cell(state: HandoverState, says_so: list[str]) -> None:
    assert sent(messages_of(a_handover_order(state))) == says_so
    assert sent(begins(a_handover_order(state))) == (says_so if state == "leaving" else [])


def test_undoing_a_handover_takes_the_allocations_back() -> None:
    claim = undoing(a_handover_order("arriving").placed, 7)
    assert (claim.consumer, claim.generation, claim.take_over) == (
        PLACED.build,
        7,
        holder_consumer(PLACED.build, 1),
    )
    again = undoing(a_handover_order("arriving").placed, None)
    assert claim.begins and claim.begins == again.begins != PLACED.move
    shelved = Handover(placed=replace(PLACED, attempt=0, kind="unshelve"))
    assert undoing(shelved.placed, 7).take_over is None
    assert release_of(shelved, deleted=False).retire == SHELVED
    assert release_of(shelved, deleted=True).retire == "deleted"
