"""Guests after each phase of a move, and obsolete orders: tables."""

from typing import Any

import pytest

from bus.moves import MoveReported
from compute_sim.core.phases import NOTHING, MoveSteps, afterwards, meanwhile, ownership, refusal
from tests.support.ids import uid
from tests.support.moving_agent import DESTINATION, SOURCE, an_order

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
def test_a_guest_is_in_one_state_at_every_moment(
    order: Any, before: Any, during: str, done: str, failed: str, hung: str, lost: str
) -> None:
    now = meanwhile(order, before)
    assert now == during
    ends = [afterwards(order, now, end) for end in ("done", "failed", "hung", "lost")]
    assert ends == [done, failed, hung, lost]


def said(order: Any) -> MoveReported:
    return MoveReported(
        move=order.move, build=order.build, phase=order.phase, step=order.step, attempt=order.attempt,
        cell="c1", agent="a1", root=order.root, host=order.host, outcome="done",
    )  # fmt: skip


def test_of_a_build_on_a_host_the_highest_step_counts_and_says_again_what_it_said() -> None:
    steps = MoveSteps()
    assert steps.ordered(SEND) == "go on"
    steps.begun(SEND)
    assert steps.ordered(SEND) == "go on"
    steps.finished(said(SEND))
    assert steps.ordered(SEND) == said(SEND)
    steps.begun(RESUME)
    assert (steps.ordered(SEND), steps.ordered(RESUME)) == ("void", "go on")
    steps.finished(said(SEND))  # too late to count
    assert (steps.ordered(SEND), steps.ordered(RESUME)) == ("void", "go on")
    assert steps.ordered(PREPARE) == "go on"  # on another host
    assert steps.ordered(an_order("send", 1, 1, build=uid(2, "b"))) == "go on"


def test_the_oldest_steps_are_forgotten_first() -> None:
    steps = MoveSteps(remembered=2)
    orders = [an_order("send", 5, 1, SOURCE, build=uid(number, "b")) for number in range(3)]
    for order in orders:
        steps.finished(said(order))
    assert [steps.ordered(order) for order in orders] == ["go on", said(orders[1]), said(orders[2])]


@pytest.mark.parametrize(
    ("build_here", "holder_type", "whose"),
    [
        (True, NOTHING, "ours"),
        (False, NOTHING, "unknown"),  # placement has nothing here: it may have had something, and lost it
        (False, "MIGRATION", "kept"),  # moved, or on its way: it may run elsewhere
        (True, "MIGRATION", "kept"),
        (False, "CLEANUP", "gone"),
        (True, "CLEANUP", "gone"),  # the build has come back here, as another guest
        (False, None, "gone"),
    ],
)
def test_whose_a_guest_is_placement_knows(build_here: bool, holder_type: str | None, whose: str) -> None:
    assert ownership(build_here, holder_type) == whose


@pytest.mark.parametrize(
    ("build_here", "holder_type", "whose"),
    [(True, NOTHING, "ours"), (False, NOTHING, "kept"), (False, "CLEANUP", "gone")],
)
def test_whose_room_is_kept_by_another_number_is_left_alone(
    build_here: bool, holder_type: str, whose: str
) -> None:
    assert ownership(build_here, holder_type, kept_otherwise=True) == whose
