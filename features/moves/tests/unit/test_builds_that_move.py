"""A moving build: the next state and the effects for every phase and event."""

from typing import Any, Literal

import pytest
from msgspec.structs import replace

from bus.claims import Claimed, Full, Held, NothingHeld, OutsideCell, Refused, Released, Retired
from bus.messages import AgentReported, BuildEndRequested, HostFailed
from bus.vocabulary import Contended, Message
from cell_conductor.extension import AttemptLimits, Build, Event
from cell_conductor.extension import events as build_events
from features.moves.core.beginning import postpone_reason
from features.moves.core.phases import BuildMove, MoveImpossible, last_move, move_in_progress, overdue_report
from features.moves.messages import MoveEnded, MovePlaced, MoveReported, MoveSteered, Steering
from features.moves.tests.support.conductor_moves import a_move, a_report_of, an_answer_in, in_short
from tests.support.conductor_builders import (
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    a_selection,
    an_agent_report,
    step,
)


def a_steering(placed: MovePlaced, to: Steering, reply_to: str = "") -> MoveSteered:
    return MoveSteered(move=placed.move, build=placed.build, cell=placed.cell, to=to, reply_to=reply_to)


LIMITS = AttemptLimits(max_attempts=3, build_timeout=100.0, delete_timeout=600.0, cleanup_timeout=5000.0)
PLACED = a_placed(generation=1, hosts=1)
BUILT = an_agent_report(a_build_order(PLACED), "built")
MOVE = a_move()
VERIFIED = a_move(verify=True)
EVACUATE = a_move("evacuate")
SHELVE = a_move("shelve")
UNSHELVE = a_move("unshelve", number=2)
REBUILD = a_move("rebuild", hosts=(0,))
CLAIMED = Claimed(choice=0, generation=3, number=9)
FULL = Full(provider="p", resource_class="VCPU", asked=4, free=2)


def agent_says(attempt: int, host: int, outcome: str, **more: object) -> AgentReported:
    reply = an_agent_report(a_destroy_order(a_placed(hosts=9), attempt, host), "built")
    return replace(reply, outcome=outcome, **more)


def done(phase: str, number: int) -> MoveReported:
    return a_report_of(MOVE, phase, number, "done")  # type: ignore[arg-type]


def failed(phase: str, number: int, **more: object) -> MoveReported:
    return a_report_of(MOVE, phase, number, "failed", cause="no", **more)  # type: ignore[arg-type]


Dated = Event | tuple[float, Event]


def steps(*events: Dated) -> tuple[Build, list[Message]]:
    """Return a build after these events, and the effects of the last one."""
    build: Build | None = None
    effects: tuple[Message, ...] = ()
    now = 0.0
    for event in events:
        now, event = event if isinstance(event, tuple) else (now, event)
        build, effects = step(build, event, now, LIMITS)
    assert build is not None
    return build, [effect for effect in effects if not isinstance(effect, HostFailed)]


def came(*events: Dated) -> tuple[Build, list[str]]:
    build, effects = steps(*events)
    return build, [in_short(effect) for effect in effects]


def after(*events: Dated) -> Build:
    return came(*events)[0]


def move_of(build: Build) -> BuildMove:
    move = last_move(build)
    assert move is not None
    return move


ACTIVE: list[Dated] = [PLACED, BUILT]
PREPARED: list[Dated] = [*ACTIVE, MOVE, done("prepare", 1)]
SENT: list[Dated] = [*PREPARED, done("send", 2)]
VERIFYING: list[Dated] = [*ACTIVE, VERIFIED, done("prepare", 1), done("send", 2), done("start", 3)]
STATES: dict[str, list[Dated]] = {
    "prepare": [*ACTIVE, MOVE],
    "send": PREPARED,
    "start": SENT,
    "verify": VERIFYING,
    "swap": [*ACTIVE, MOVE, failed("prepare", 1, leftover=True)],
    "undo": [*VERIFYING, a_steering(VERIFIED, "revert")],
    "back": [*PREPARED, failed("send", 2)],
    "resume": [*PREPARED, failed("send", 2), an_answer_in("back", 2, CLAIMED)],
    "build": [*ACTIVE, EVACUATE],
    "undo, then the next": [*ACTIVE, (-2000.0, EVACUATE), (-200.0, overdue_report(after(*ACTIVE, EVACUATE)))],
    "rebuild": [*ACTIVE, REBUILD],
    "destroy": [*ACTIVE, SHELVE, done("send", 1)],
    "release": [*ACTIVE, SHELVE, done("send", 1), agent_says(1, 0, "destroyed")],
}
SAID = object()  # by an agent, of the phase as it is
EVENTS: dict[str, object] = {
    "its end asked": BuildEndRequested(build=PLACED.build, cell=PLACED.cell),
    "placed": MOVE,
    "the build placed": PLACED,
    "done": SAID,
    "failed": SAID,
    "leftover": SAID,
    "half": SAID,
    "old report": failed("prepare", 9),
    "overdue": SAID,
    "source built": BUILT,
    "built": agent_says(2, 5, "built"),
    "not built": agent_says(2, 5, "failed", cause="no"),
    "destroyed": agent_says(2, 5, "destroyed"),
    "source failed": agent_says(1, 0, "failed"),
    "source alive": agent_says(1, 0, "progress"),
    "source destroyed": agent_says(1, 0, "destroyed"),
    "confirm": a_steering(MOVE, "confirm"),
    "revert": a_steering(MOVE, "revert"),
    "abort": a_steering(MOVE, "abort"),
    "force": a_steering(MOVE, "force"),
    "delete": a_delete(PLACED),
    "claimed": an_answer_in("swap", 2, CLAIMED),
    "taken over": an_answer_in("back", 2, CLAIMED),
    "no claim": an_answer_in("swap", 2, "no such class"),
    "given back": build_events.ReleaseAnswer("held", Released()),
    "stalled": build_events.Stalled(),
}


def event_in(state: Build, event: str) -> Event:
    move = move_in_progress(state.parts)
    assert move is not None
    if event == "overdue":
        return overdue_report(state)
    if EVENTS[event] is not SAID:
        return EVENTS[event]
    phase = move.phase if move.phase in ("prepare", "send", "start", "resume", "rebuild") else "prepare"
    reply = a_report_of(MOVE, phase, max(move.step, 1), "done")
    match event:
        case "half":
            return replace(reply, outcome="progress", percent=50)
        case "done":
            return reply
        case _:
            return replace(reply, outcome="failed", cause="no", leftover=event != "failed")


TABLE: dict[str, dict[str, str]] = {
    "prepare": {
        "placed | old report | built | not built | stalled": "prepare: prepare 2 at host5",
        "done": "send: progress send; send 1 at host0",
        "failed | destroyed": "swap: progress swap; swap 2 to 1",
        "leftover | overdue": "swap: progress swap; swap 2 to 1 keeping 2",
        "half": "prepare: progress prepare",
        "abort": "back: destroy 2 at host5 above 1; progress back; back 2 to 1 keeping 2",
        "delete": "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted",
    },
    "send": {
        "placed | old report | built | not built | stalled": "send: send 1 at host0",
        "done": "start: progress start; start 2 at host5",
        "failed | leftover | overdue | abort":
            "back: destroy 2 at host5 above 1; progress back; back 2 to 1 keeping 2",
        "half": "send: progress send",
        "delete": "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted",
    },
    "start": {
        "placed | old report | built | not built | stalled": "start: start 2 at host5",
        "done": "done: destroy 1 at host0; ended done at host5",
        "failed | destroyed": "back: progress back; back 2 to 1",
        "leftover": "undo: progress undo; destroy 2 at host5 above 1",
        "half": "start: progress start",
        "overdue": "error: destroy 1 at host0; ended error at host5",
        "delete": "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted",
    },
    "verify": {
        "confirm": "done: destroy 1 at host0; ended done at host5",
        "revert": "revert: progress revert; destroy 2 at host5 above 1",
        "delete": "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted",
    },
    "swap": {
        "placed | done | failed | leftover | old report | overdue | source destroyed":
            "swap: swap 2 to 1 keeping 2",
        "built | not built": "swap: destroy 2 at host5 above 1; swap 2 to 1 keeping 2",
        "destroyed": "swap: swap 2 to 1",
        "abort | no claim": "back: destroy 2 at host5 above 1; progress back; back 2 to 1 keeping 2",
        "delete":
            "deleting: destroy 2 at host5; destroy 2 at host5 above 1; destroy 1 at host0; ended deleted",
        "claimed": "prepare: destroy 2 at host5 above 1; progress prepare; prepare 3 at host6",
        "stalled": "swap: overdue",
    },
    "undo": {
        "placed | done | failed | leftover | old report | built | not built | stalled":
            "revert: destroy 2 at host5 above 1",
        "overdue": 
            "revert: progress revert: host5: no reply; the order is repeated; destroy 2 at host5 above 1",
        "destroyed": "back: progress back; back 2 to 1",
        "revert": "revert: progress revert; destroy 2 at host5 above 1",
        "delete":
            "deleting: destroy 2 at host5; destroy 2 at host5 above 1; destroy 1 at host0; ended deleted",
    },
    "back": {
        "placed | done | failed | leftover | old report | overdue | source destroyed":
            "back: back 2 to 1 keeping 2",
        "built | not built": "back: destroy 2 at host5 above 1; back 2 to 1 keeping 2",
        "destroyed": "back: back 2 to 1",
        "delete":
            "deleting: destroy 2 at host5; destroy 2 at host5 above 1; destroy 1 at host0; ended deleted",
        "taken over": "resume: progress resume; resume 3 (was 1) at host0",
        "stalled": "back: overdue",
    },
    "resume": {
        "placed | old report | stalled": "resume: resume 3 (was 1) at host0",
        "done | failed | leftover | overdue": "error: destroy 2 at host5 above 1; ended error at host0",
        "half": "resume: progress resume",
        "built | not built": "resume: destroy 2 at host5 above 1; resume 3 (was 1) at host0",
        "destroyed": "resume: resume 3 (was 1) at host0; free 2",
        "delete": "deleting: destroy 3 at host0; destroy 2 at host5 above 1; ended deleted",
    },
    "build": {
        "placed | done | failed | leftover | old report | stalled": "build: build 2 at host5",
        "overdue": "swap: progress swap; destroy 2 at host5 above 1",
        "built": "done: destroy 1 at host0; ended done at host5",
        "not built | destroyed": "swap: progress swap; swap 2 to 1",
        "abort": "abort: progress abort; destroy 2 at host5 above 1",
        "delete": "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted",
    },
    "undo, then the next": {
        "placed | done | failed | leftover | old report | built | not built | stalled":
            "swap: destroy 2 at host5 above 1",
        "overdue": "swap: progress swap; swap 2 to 1 keeping 2",
        "destroyed": "swap: progress swap; swap 2 to 1",
        "abort": "abort: progress abort; destroy 2 at host5 above 1",
        "delete":
            "deleting: destroy 2 at host5; destroy 2 at host5 above 1; destroy 1 at host0; ended deleted",
    },
    "rebuild": {
        "placed | old report | built | not built | stalled": "rebuild: rebuild 2 (was 1) at host0",
        "done": "done: ended done at host0",
        "failed | leftover | overdue": "error: ended error at host0",
        "half": "rebuild: progress rebuild",
        "delete": "deleting: destroy 2 at host0; ended deleted",
    },
    "destroy": {
        "placed | done | failed | leftover | old report | stalled": "destroy: destroy 1 at host0",
        "overdue": "release: progress release; release 1 as shelved keeping 1",
        "source destroyed": "release: progress release; release 1 as shelved",
        "delete": "deleting: destroy 1 at host0; ended deleted",
    },
    "release": {
        "placed | done | failed | leftover | old report | overdue | destroyed | source destroyed":
            "release: release 1 as shelved",
        "delete": "deleting: destroy 1 at host0; ended deleted",
        "given back": "done: ended done",
        "stalled": "release: overdue",
    },
}  # fmt: skip

# What a move refuses in every phase that does not name the event above; {} is the phase
REFUSED = {
    "confirm": "it does not wait to be confirmed: {}",
    "revert": "it does not wait to be reverted: {}",
    "abort": "it is too late for that: {}",
    "force": "only the copying of a live migration ends sooner: {}",
}


def expected_of(state: str, before: Build, event: str) -> str | None:
    """Return what is shown after an event, and its effects; None if the event changes nothing."""
    move = move_in_progress(before.parts)
    assert move is not None
    for events, then in TABLE[state].items():
        if event in events.split(" | "):
            return then
    if event in ("the build placed", "its end asked"):
        return f"{move.shown}: end active"
    if event in REFUSED:
        why = "it is being reverted already" if move.goal else REFUSED[event].format(move.phase)
        return f"{move.shown}: progress {move.shown}: {why}"
    return None


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TABLE)
def test_every_event_in_every_phase_of_a_move(state: str, event: str) -> None:
    before = after(*STATES[state])
    build, effects = step(before, event_in(before, event), 1000.0, LIMITS)
    assert build is not None and last_move(build) is not None
    reply = [in_short(effect) for effect in effects if not isinstance(effect, HostFailed)]
    expected = expected_of(state, before, event)
    if expected is None:
        assert (build, reply) == (before, [])
        return
    shown = build.status if build.status == "deleting" else move_of(build).shown
    assert f"{shown}: {'; '.join(reply)}" == expected
    assert move_in_progress(build.parts) is not None or move_of(build).end


def held(host: int, generation: int) -> Held:
    allocations = a_selection(host).choice.allocations
    return Held(generation=generation, allocations=allocations, roots=tuple(allocations))


GONE = Refused(refusals=(NothingHeld(consumer="k"),))
TO_THE_SOURCE = STATES["back"]
ANSWERS: dict[str, tuple[Any, ...]] = {
    "contended": (Contended(), "back: back 2 to 1 keeping 2"),
    "asked before": (held(0, 3), "resume: progress resume; resume 3 (was 1) at host0"),
    "touched by somebody": (held(5, 4), "back: back 4 to 1 keeping 2"),
    "a swap was on its way": (held(6, 3), "back: back 3 to 1"),
    "nobody keeps it: claimed again": (GONE, "back: swap 2 to 1 keeping 2"),
    "it cannot be had": (Refused(refusals=(FULL,)), "resume: progress resume; resume 3 (was 1) at host0"),
    "retired": (Retired(why="x"), "resume: progress resume; resume 3 (was 1) at host0"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "then"), ANSWERS.values(), ids=ANSWERS)
def test_answers_of_placement_while_a_move_is_reverted(answer: Any, then: str) -> None:
    build, reply = came(*TO_THE_SOURCE, an_answer_in("back", 2, answer))
    assert f"{move_of(build).phase}: {'; '.join(reply)}" == then


@pytest.mark.parametrize(
    ("before", "answer", "end"),
    [
        pytest.param(
            STATES["release"], build_events.ReleaseAnswer("held", Released()), "ended done", id="given back",
        ),
        pytest.param(
            [*STATES["prepare"], a_steering(MOVE, "abort")], an_answer_in("back", 2, CLAIMED),
            "ended aborted at host0", id="taken over",
        ),
    ],
)  # fmt: skip
def test_an_answer_that_ended_a_move_repeats_its_end(before: list[Dated], answer: Event, end: str) -> None:
    ended, reply = came(*before, answer)
    assert move_in_progress(ended.parts) is None and end in reply
    again, reply = came(*before, answer, answer)
    assert again == ended and end in reply


TO_THE_NEXT = STATES["swap"]
NEXT: dict[str, tuple[Any, ...]] = {
    "before": (held(6, 3), ["destroy 2 at host5 above 1", "progress prepare", "prepare 3 at host6"]),
    "touched by somebody": (held(5, 4), ["swap 4 to 1 keeping 2"]),
    "it is elsewhere": (held(9, 4), ["destroy 2 at host5 above 1", "progress back", "back 4 to 1 keeping 2"]),
    "no room": (
        Refused(refusals=(FULL,)), ["destroy 2 at host5 above 1", "progress back", "back 2 to 1 keeping 2"],
    ),
    "contended": (Contended(), ["swap 2 to 1 keeping 2"]),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "says"), NEXT.values(), ids=NEXT)
def test_answers_of_placement_for_the_next_alternate(answer: Any, says: list[str]) -> None:
    assert came(*TO_THE_NEXT, an_answer_in("swap", 2, answer))[1] == says


def test_a_missing_holder_is_not_an_answer_to_the_new_claim() -> None:
    """Ended by that, it would not know the generation that its claim has made."""
    claiming = [*TO_THE_SOURCE, an_answer_in("back", 2, GONE)]
    assert came(*claiming, an_answer_in("back", 2, GONE)) == (after(*claiming), [])
    build, _ = came(*claiming, an_answer_in("back", 2, CLAIMED, afresh=True))
    assert build.generation == CLAIMED.generation


def test_a_delete_during_a_revert_holds_the_source_until_it_is_destroyed() -> None:
    deleting = [*TO_THE_SOURCE, a_delete(PLACED), agent_says(2, 5, "destroyed")]
    build, reply = came(*deleting, build_events.ReleaseAnswer("deleting", held(0, 3)))
    assert reply == ["release 3 for good keeping 1"]
    build, reply = came(
        *deleting,
        build_events.ReleaseAnswer("deleting", held(0, 3)),
        build_events.ReleaseAnswer("deleting", Released()),
    )
    assert build.status == "deleted" and [
        left.attempt for left in build.leftovers if not left.is_destroyed
    ] == [1]


def test_a_guest_that_did_not_resume_is_not_destroyed() -> None:
    not_resumed = [*STATES["resume"], failed("resume", 3)]
    build = after(*not_resumed)
    assert (build.status, build.attempt) == ("active", 3)
    assert came(*not_resumed, BUILT)[1] == []


# A move that is placed at the wrong moment

DELETING: list[Dated] = [*ACTIVE, a_delete(PLACED)]
DELETED: list[Dated] = [
    *DELETING,
    agent_says(1, 0, "destroyed"),
    build_events.ReleaseAnswer("deleting", Released()),
]
SHELVED: list[Dated] = [*STATES["release"], build_events.ReleaseAnswer("held", Released())]
OTHER = a_move(number=7)
LOST = a_move(number=7, hosts=(), generation=None)
PLACES: dict[str, tuple[Any, ...]] = {
    "deleting": (DELETING, MOVE, "deleting: destroy 2 at host5; destroy 1 at host0; ended deleted"),
    "deleted": (DELETED, MOVE, "deleted: destroy 1 at host0; ended deleted"),
    "unshelved, deleted": (DELETED, UNSHELVE, "deleted: ended deleted"),
    "shelved": (SHELVED, OTHER, "shelved: destroy 1 at host0; ended error"),
    "unshelved": (SHELVED, UNSHELVE, "moving: ended done; progress build; build 2 at host5"),
    "not shelved": (ACTIVE, UNSHELVE, "active: ended error"),
    "of another attempt": (ACTIVE, a_move(attempt=4), "moving: progress back; back 2 to 4"),
    "impossible": (ACTIVE, MoveImpossible(MOVE, "metal"), "moving: progress back; back 2 to 1"),
    "nor shelved": (ACTIVE, MoveImpossible(SHELVE, "metal"), "active: ended error at host0"),
    "in another move": (STATES["send"], a_move("shelve", number=7), "moving: ended error"),
    "without claim": (ACTIVE, LOST, "active: ended error"),
    "without claim, shelved": (SHELVED, LOST, "shelved: destroy 1 at host0; ended error"),
    "without claim, deleted": (DELETED, LOST, "deleted: destroy 1 at host0; ended deleted"),
    "without claim, to unshelve": (SHELVED, replace(UNSHELVE, chosen=None), "shelved: ended error"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "event", "then"), PLACES.values(), ids=PLACES)
def test_a_move_in_an_unexpected_state(before: list[Dated], event: Event, then: str) -> None:
    build, reply = came(*before, event)
    assert f"{build.shown}: {'; '.join(reply)}" == then
    if move_in_progress(build.parts) is None:
        assert came(*before, event, event)[1] == reply


@pytest.mark.parametrize(
    ("before", "placed", "why"),
    [
        ([PLACED], MOVE, "its build is building"),
        (STATES["send"], OTHER, f"its build is in the move {MOVE.move}"),
        (STATES["send"], MOVE, ""),
        (STATES["send"], a_move("rebuild", number=7, hosts=(0,)), ""),
        (SHELVED, UNSHELVE, ""),
        (DELETED, MOVE, ""),
        (DELETING, MOVE, ""),
        (DELETING, LOST, "its build is being deleted"),
        (DELETED, LOST, ""),
    ],
)
def test_a_move_placed_too_early_is_postponed(before: list[Dated], placed: object, why: str) -> None:
    assert postpone_reason(after(*before), placed) == why  # type: ignore[arg-type]


def test_a_move_of_an_unknown_build_ends_in_error() -> None:
    build, (end,) = step(None, MOVE, 0.0, LIMITS)
    assert build is None and isinstance(end, MoveEnded) and end.end == "error"
    assert [in_short(message) for message in step(None, a_steering(MOVE, "abort"), 0.0, LIMITS)[1]] == [
        "progress : the instance is in no such move"
    ]


# Time


def late(build: list[Dated], now: float) -> tuple[float, Event]:
    return now, overdue_report(after(*build))


def test_a_guest_that_could_not_be_shelved_is_resumed() -> None:
    """Its agent has stopped it first, and may have lost power then."""
    shelving: list[Dated] = [*ACTIVE, SHELVE, a_report_of(SHELVE, "send", 1, "failed", cause="no power")]
    build, reply = came(*shelving)
    assert (build.shown, reply) == ("moving", ["progress resume", "resume 2 (was 1) at host0"])
    build, reply = came(*shelving, a_report_of(SHELVE, "resume", 2, "done"))
    assert (build.status, build.attempt, reply) == ("active", 2, ["ended error at host0"])


@pytest.mark.parametrize(("outcome", "attempt"), [("failed", 1), ("done", 2), ("progress", 2)])
def test_a_late_report_of_a_timed_out_rebuild(
    outcome: Literal["failed", "done", "progress"], attempt: int
) -> None:
    rebuilding = STATES["rebuild"]
    given_up = [*rebuilding, late(rebuilding, 1800.0)]
    assert (after(*given_up).status, after(*given_up).attempt) == ("active", 2)
    build, _ = came(*given_up, a_report_of(REBUILD, "rebuild", 1, outcome))
    assert (build.attempt, build.spec == PLACED.spec) == (attempt, attempt == 1)
    again, reply = came(*given_up, *[a_report_of(REBUILD, "rebuild", 1, outcome)] * 2)
    assert again == build
    assert reply == ([] if outcome == "progress" else ["ended error at host0"])


def test_a_possibly_running_guest_is_waited_for_while_its_allocations_are_held() -> None:
    reverting = STATES["undo"]
    assert came(*reverting, late(reverting, 599.0)) == (after(*reverting), [])
    build, reply = came(*reverting, late(reverting, 600.0))
    assert build.deadline == 1200.0
    assert reply == ["progress revert: host5: no reply; the order is repeated", "destroy 2 at host5 above 1"]
    build, reply = came(*reverting, late(reverting, 5000.0))
    assert reply == ["progress back", "back 2 to 1 keeping 2"]


def test_a_move_is_confirmed_when_its_time_expires() -> None:
    hour = a_move(verify=True, verify_for="1h")
    verifying = [*ACTIVE, hour, done("prepare", 1), done("send", 2), done("start", 3)]
    assert came(*verifying, late(verifying, 3599.0))[1] == []
    assert came(*verifying, late(verifying, 3600.0))[1] == ["destroy 1 at host0", "ended done at host5"]
    assert after(*VERIFYING).deadline == 0.0


def test_progress_extends_the_time_limit_and_is_published() -> None:
    build, reply = came(*PREPARED, (90.0, a_report_of(MOVE, "send", 2, "progress", percent=40)))
    assert build.deadline == 190.0 and reply == ["progress send"]


# The end


def test_a_reverted_resize_restores_the_old_flavor() -> None:
    resized = after(*SENT, done("start", 3))
    assert resized.spec.flavor.name == "large" and resized.host.host == "host5"
    assert after(*STATES["resume"]).spec == PLACED.spec


def test_a_failed_release_is_the_cause_of_a_shelved_instance() -> None:
    build, reply = came(*STATES["release"], build_events.ReleaseAnswer("held", OutsideCell(why="not yours")))
    assert (build.shown, reply) == ("shelved", ["ended error"])
    assert "not yours" in move_of(build).cause


@pytest.mark.parametrize("answer", [Contended(), held(5, 2)])
def test_allocations_of_a_shelved_instance_are_released_in_any_case(answer: object) -> None:
    _, reply = came(*STATES["release"], build_events.ReleaseAnswer("held", answer))  # type: ignore[arg-type]
    assert reply == [f"release {2 if isinstance(answer, Held) else 1} as shelved"]


def test_a_shelved_instance_is_deleted_without_an_agent() -> None:
    _, reply = came(*SHELVED, a_delete(PLACED))
    assert reply == ["release None for good", "ended done"]
    assert (
        came(*SHELVED, a_delete(PLACED), build_events.ReleaseAnswer("deleting", Released()))[0].status
        == "deleted"
    )
    assert came(*SHELVED, agent_says(1, 0, "progress"))[1] == ["destroy 1 at host0"]
