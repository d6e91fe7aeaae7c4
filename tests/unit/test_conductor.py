"""A build in the conductor: the next state and the effects for every status and event."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import (
    Claimed,
    Full,
    Held,
    Moved,
    OutsideCell,
    Refusal,
    Refused,
    Released,
    Retired,
    RuleRefused,
)
from bus.messages import BuildEnded, BuildEndRequested, DestroyOrdered, HostFailed
from bus.vocabulary import Contended, Message
from cell_conductor.core.build import Build, holder_consumer
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event, ReleaseAnswer, Stalled, SwapAnswered
from tests.support.conductor_builders import (
    a_build_order,
    a_delete,
    a_placed,
    a_selection,
    an_agent_report,
    in_short,
)
from tests.support.conductor_builders import kernel_step as step

LIMITS = AttemptLimits(max_attempts=3, build_timeout=100.0, delete_timeout=600.0, cleanup_timeout=5000.0)
PLACED = a_placed(generation=1)
FIRST, SECOND = a_build_order(PLACED, 1), a_build_order(PLACED, 2)


Dated = Event | tuple[float, Event]  # at 0 s where no time is given


def after(*events: Dated, limits: AttemptLimits = LIMITS) -> Build:
    build: Build | None = None
    for event in events:
        now, event = event if isinstance(event, tuple) else (0.0, event)
        build, _ = step(build, event, now, limits)
    assert build is not None
    return build


def reply(effects: Iterable[Message]) -> list[str]:
    return [in_short(effect) for effect in effects]


def in_short_of(build: Build, effects: Iterable[Message]) -> str:
    return f"{build.status}: {'; '.join(reply(effects))}"


def claimed(choice: int = 0, generation: int = 2, *refused: Refusal) -> Claimed:
    return Claimed(choice=choice, generation=generation, number=9, refused=refused)


def held(host: int, generation: int) -> Held:
    return Held(generation=generation, allocations=a_selection(host).choice.allocations)


FAILED = an_agent_report(FIRST, "failed", cause="no disk")
ABORTED = an_agent_report(FIRST, "failed", cause="bad image", retry=False)
SWAPPED = SwapAnswered(1, claimed())
RELEASED_IN_SWAP = ReleaseAnswer("swapping", Released())
FULL = Full(provider="p", resource_class="VCPU", asked=4, free=2)
CROWDED = RuleRefused(rule="groups", code="server_group", why="p: anti-affinity", provider="p")

BUILDING = after(PLACED)
SECOND_BUILDING = after(PLACED, FAILED, SWAPPED)
SWAPPING = after(PLACED, FAILED)
DOOMED = after(PLACED, ABORTED)
ACTIVE = after(PLACED, an_agent_report(FIRST, "built"))
ERROR = after(PLACED, ABORTED, RELEASED_IN_SWAP)
DELETING = after(PLACED, an_agent_report(FIRST, "built"), a_delete(PLACED))
CANCELLED = after(PLACED, a_delete(PLACED))
GONE = after(
    PLACED,
    an_agent_report(FIRST, "built"),
    a_delete(PLACED),
    an_agent_report(FIRST, "destroyed"),
    ReleaseAnswer("deleting", Released()),
)
CANCELLED_GONE = after(
    PLACED, a_delete(PLACED), an_agent_report(FIRST, "destroyed"), ReleaseAnswer("deleting", Released())
)
NEVER_PLACED = after(a_delete(PLACED))
STATES = {
    "building": BUILDING,
    "swapping": SWAPPING,
    "doomed": DOOMED,
    "active": ACTIVE,
    "error": ERROR,
    "deleting": DELETING,
    "cancelled": CANCELLED,
    "gone": GONE,
    "cancelled and gone": CANCELLED_GONE,
    "never placed": NEVER_PLACED,
}

EVENTS: dict[str, Event] = {
    "placed": PLACED,
    "built": an_agent_report(FIRST, "built"),
    "failed": FAILED,
    "aborted": ABORTED,
    "destroyed": an_agent_report(FIRST, "destroyed"),
    "progress": an_agent_report(FIRST, "progress"),
    "overdue": an_agent_report(FIRST, "overdue"),  # 100 s after the beginning
    "delete": a_delete(PLACED),
    "end": BuildEndRequested(build=PLACED.build, cell=PLACED.cell),
    "swapped": SWAPPED,
    "no swap": SwapAnswered(1, "no such class"),
    "released": RELEASED_IN_SWAP,
    "released at last": ReleaseAnswer("deleting", Released()),
    "cleaned up": CleanedUp(holder_consumer(BUILDING.id, 1), Released()),
    "stalled": Stalled(),
    "future": an_agent_report(replace(FIRST, attempt=7), "built"),
}  # fmt: skip

TABLE: dict[str, dict[str, str]] = {
    "building": {
        "placed | stalled": "building: build 1 at host0",
        "built": "active: end active",
        "failed": "swapping: host0 failed: no disk; swap 1 to 2",
        "aborted": "swapping: host0 failed: bad image, not its fault; release 1 for good",
        "destroyed": "swapping: swap 1 to 2",
        "overdue": "swapping: host0 failed: no result within 100 s; swap 1 to 2 keeping 1",
        "progress": "building: ",
        "delete": "deleting: destroy 1 at host0",
    },
    "swapping": {
        "placed | failed | aborted | destroyed | overdue": "swapping: swap 1 to 2",
        "delete": "deleting: destroy 1 at host0",
        "swapped": "building: destroy 1 at host0; build 2 at host1",
        "no swap": "swapping: release 1 for good",
        "stalled": "swapping: overdue",
    },
    "doomed": {
        "placed | failed | aborted | destroyed | overdue": "swapping: release 1 for good",
        "delete": "deleting: destroy 1 at host0",
        "released": "error: destroy 1 at host0; end error",
        "stalled": "swapping: overdue",
    },
    "active": {
        "placed | built | failed | aborted | overdue | end": "active: end active",
        "delete": "deleting: destroy 1 at host0",
    },
    "error": {
        "placed | end": "error: end error",
        "built | progress": "error: destroy 1 at host0",
        "failed | aborted | overdue | swapped | no swap | released": "error: destroy 1 at host0; end error",
        "delete": "deleted: deleted",
    },
    "deleting": {
        "placed | built | failed | aborted | overdue | end": "deleting: end active",
        "destroyed": "deleting: release 1 for good",
        "delete | stalled": "deleting: destroy 1 at host0",
        "released at last": "deleted: deleted",
    },
    "cancelled": {
        "destroyed": "deleting: release 1 for good",
        "delete | stalled": "deleting: destroy 1 at host0",
        "released at last": "deleted: end error; deleted",
    },
    "gone": {
        "placed": "deleted: end active",
        "end": "deleted: end active; deleted",
        "built | failed | aborted": "deleted: destroy 1 at host0; end active",
        "progress": "deleted: destroy 1 at host0",
        "overdue | destroyed | released at last | delete": "deleted: deleted",
    },
    "cancelled and gone": {
        "placed": "deleted: end error",
        "built | failed | aborted": "deleted: destroy 1 at host0; end error",
        "progress": "deleted: destroy 1 at host0",
        "overdue | destroyed | released at last | end": "deleted: end error; deleted",
        "delete": "deleted: deleted",
    },
    "never placed": {
        "placed": "swapping: release 1 for good",
        "delete | end": "deleted: deleted",
    },
}  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TABLE)
def test_every_event_in_every_state_of_a_build(state: str, event: str) -> None:
    before = STATES[state]
    build, effects = step(before, EVENTS[event], 100.0, LIMITS)
    assert build is not None
    expected = [then for events, then in TABLE[state].items() if event in events.split(" | ")]
    if expected:
        assert [in_short_of(build, effects)] == expected
    else:
        assert build is before and effects == ()


@pytest.mark.parametrize("event", [name for name in EVENTS if name not in ("placed", "delete")])
def test_events_of_an_unknown_build_are_ignored(event: str) -> None:
    assert step(None, EVENTS[event], 0.0, LIMITS) == (None, ())


def test_a_build_whose_record_was_lost_ends_when_its_request_is_repeated() -> None:
    asked = BuildEndRequested(
        build=PLACED.build, cell="c1", request=PLACED.request, why="error: no disk", reply_to="me"
    )
    build, effects = step(None, asked, 0.0, LIMITS)
    reason = "the cell has no record of it; its claim has ended: error: no disk"
    ended = BuildEnded(
        build=PLACED.build, request=PLACED.request, cell="c1", status="error", reason=reason, reply_to="me"
    )
    assert (build, effects) == (None, (ended,))


def test_a_deletion_that_overtook_the_placing_wins_and_nothing_stays_claimed() -> None:
    build: Build | None = after(a_delete(PLACED), PLACED)
    assert reply(step(build, PLACED, 0.0, LIMITS)[1]) == ["release 1 for good"]
    build, effects = step(build, RELEASED_IN_SWAP, 0.0, LIMITS)
    assert build is not None and build.doom == "deleted before it was built"
    assert reply(effects) == ["destroy 1 at host0", "end error"]


def test_a_report_of_an_earlier_attempt_changes_nothing_but_cleans_and_orders_again() -> None:
    for outcome in ("built", "failed", "overdue", "destroyed", "progress"):
        build, effects = step(SECOND_BUILDING, an_agent_report(FIRST, outcome), 1.0, LIMITS)
        assert build is SECOND_BUILDING
        again = outcome not in ("destroyed", "progress")
        assert reply(effects) == (["destroy 1 at host0", "build 2 at host1"] if again else [])


@pytest.mark.parametrize("build", [BUILDING, ACTIVE, GONE])
def test_a_report_about_another_host_than_that_of_the_attempt_counts_as_a_stray_guest(build: Build) -> None:
    """A fail-over lost the first placement: the attempt was placed again, on another host."""
    stray = replace(an_agent_report(FIRST, "built"), root=SECOND.root, host=SECOND.host, agent=SECOND.agent)
    changed, effects = step(build, stray, 9.0, LIMITS)
    assert changed == build
    destroyed = effects[0]
    assert isinstance(destroyed, DestroyOrdered)
    assert (destroyed.agent, destroyed.root, destroyed.attempt) == (SECOND.agent, SECOND.root, 1)
    assert [type(effect).__name__ for effect in effects[1:]] == ["BuildOrdered"] * (build is BUILDING)
    assert step(build, replace(stray, outcome="destroyed"), 9.0, LIMITS) == (build, ())


SWAPS: dict[str, tuple[Any, ...]] = {
    "first": (claimed(0), "building: destroy 1 at host0; build 2 at host1", []),
    "second, the first was full": (
        claimed(1, 2, FULL), "building: destroy 1 at host0; build 2 at host2",
        ["host1 refused: p: asked 4 VCPU, 2 free"],
    ),
    "second, its server group kept it from the first": (
        claimed(1, 2, CROWDED), "building: destroy 1 at host0; build 2 at host2",
        ["host1 refused: p: anti-affinity"],
    ),
    "had happened before a crash": (held(1, 2), "building: destroy 1 at host0; build 2 at host1", []),
    "had happened before a crash, the first was refused": (
        held(2, 2), "building: destroy 1 at host0; build 2 at host2",
        ["host1 refused: the reason was lost in a restart"],
    ),
    "somebody touched what we hold": (held(0, 5), "swapping: swap 5 to 2", []),
    "somebody moved it elsewhere": (held(7, 5), "swapping: release 5 for good", []),
    "somebody took it away": (Held(generation=0, allocations={}), "swapping: release None for good", []),
    "none has room": (
        Refused(refusals=(FULL, Moved(provider="q"))), "swapping: release 1 for good",
        ["host1 refused: p: asked 4 VCPU, 2 free", "host2 refused: q: changed since it was chosen"],
    ),
    "ask again": (Contended(), "swapping: swap 1 to 2", []),
    "retired by others": (Retired(why="deleted"), "error: destroy 1 at host0; end error", []),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "then", "refused"), SWAPS.values(), ids=SWAPS)
def test_answers_of_placement_to_a_swap(answer: Claimed, then: str, refused: list[str]) -> None:
    build, effects = step(SWAPPING, SwapAnswered(1, answer), 7.0, LIMITS)
    assert build is not None
    assert in_short_of(build, effects) == then
    assert [f"{tried.host} {tried.outcome}: {tried.cause}" for tried in build.attempts] == [
        "host0 failed: no disk",
        *refused,
    ]


def test_an_answer_that_comes_late_is_not_taken_for_that_of_a_later_swap() -> None:
    again = after(PLACED, FAILED, SWAPPED, an_agent_report(SECOND, "failed"))
    assert again.status == "swapping" and again.attempt == 2
    assert step(again, SWAPPED, 0.0, LIMITS) == (again, ())


def test_a_release_requested_in_a_swap_does_not_end_a_later_deletion() -> None:
    build = after(PLACED, ABORTED, a_delete(PLACED))
    assert step(build, RELEASED_IN_SWAP, 0.0, LIMITS) == (build, ())


def end_of(*events: Event, limits: AttemptLimits = LIMITS) -> BuildEnded:
    *before, last = events
    _, effects = step(after(*before, limits=limits), last, 3.0, limits)
    (end,) = (effect for effect in effects if isinstance(effect, BuildEnded))
    return end


def test_a_very_long_cause_still_makes_a_message_that_can_be_read() -> None:
    end = end_of(PLACED, replace(ABORTED, cause="x" * 4000), RELEASED_IN_SWAP)
    assert len(end.reason) == 4000


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Released(), ["end error", "deleted"]),
        (Retired(why="deleted"), ["end error", "deleted"]),
        (held(0, 6), ["release 6 for good"]),
        (held(1, 6), ["destroy 1 at host0", "release 6 for good"]),
        (Held(generation=0, allocations={}), ["release None for good"]),
        (Contended(), ["release 1 for good"]),
    ],
)
def test_allocations_are_released_after_any_answer_of_placement(answer: Released, says: list[str]) -> None:
    _, effects = step(CANCELLED, ReleaseAnswer("deleting", answer), 0.0, LIMITS)
    assert reply(effects) == says


# What may be left where a build is not any more

LATE = an_agent_report(FIRST, "overdue")
LEFT = replace(an_agent_report(FIRST, "failed"), leftover=True)
MINE_IS_FREE = CleanedUp(holder_consumer(BUILDING.id, 1), Released())
DESTROYED, PROGRESS = an_agent_report(FIRST, "destroyed"), an_agent_report(FIRST, "progress")
BUILT_THERE = an_agent_report(SECOND, "built")
DELETE = a_delete(PLACED)
RELEASED = ReleaseAnswer("deleting", Released())
CLAIMED_BY_MOVE = ReleaseAnswer("deleting", held(7, 2))
OUTSIDE_CELL = OutsideCell(why="consumer x: it was not placed in cell cell1")
HOPELESS = SwapAnswered(1, Refused(refusals=(FULL, FULL)))
TIMED_OUT: list[Dated] = [PLACED, (100.0, LATE)]
SWAPPED_AWAY: list[Dated] = [*TIMED_OUT, (101.0, SWAPPED)]
ELSEWHERE: list[Dated] = [*SWAPPED_AWAY, (102.0, BUILT_THERE)]
FAILED_FOR_GOOD = [*TIMED_OUT, (101.0, HOPELESS), (101.0, RELEASED_IN_SWAP)]
NO_ANSWER: list[Dated] = [PLACED, an_agent_report(FIRST, "built"), (10.0, DELETE)]
FORCED: list[Dated] = [*NO_ANSWER, (610.0, LATE), (610.0, RELEASED)]


def test_a_refused_release_is_the_cause_of_the_end() -> None:
    end = end_of(PLACED, a_delete(PLACED), ReleaseAnswer("deleting", OUTSIDE_CELL))
    assert (
        end.reason
        == f"deleted while building; placement does not release its allocations: {OUTSIDE_CELL.why}"
    )
    end = end_of(PLACED, FAILED, HOPELESS, ReleaseAnswer("swapping", OUTSIDE_CELL))
    assert end.status == "error" and end.reason.endswith(OUTSIDE_CELL.why)
    build = after(
        PLACED, an_agent_report(FIRST, "built"), a_delete(PLACED), ReleaseAnswer("deleting", OUTSIDE_CELL)
    )
    assert (build.status, build.end, build.doom) == ("deleted", "active", "")


def test_a_repeated_end_names_the_host_that_built_it_whatever_a_deletion_finds_claimed() -> None:
    asked = BuildEndRequested(build=PLACED.build, cell="c1", request=PLACED.request)
    for build in (
        ACTIVE,
        after(PLACED, an_agent_report(FIRST, "built"), DELETE, ReleaseAnswer("deleting", held(1, 6))),
    ):
        (end,) = step(build, asked, 0.0, LIMITS)[1]
        assert isinstance(end, BuildEnded) and (end.status, end.host) == ("active", "host0")


def test_hosts_outside_the_cell_are_refused_with_that_cause() -> None:
    hopeless = SwapAnswered(1, Refused(refusals=(OUTSIDE_CELL, OUTSIDE_CELL)))
    end = end_of(PLACED, FAILED, hopeless, ReleaseAnswer("swapping", Released()))
    assert end.status == "error" and OUTSIDE_CELL.why in end.reason
    assert [tried.cause for tried in end.attempts[1:]] == [OUTSIDE_CELL.why] * 2


LEFTOVERS: dict[str, tuple[Any, ...]] = {
    "timed out": ([PLACED], LATE, 100.0, "swapping: swap 1 to 2 keeping 1", [1]),
    "failed, not cleanly": ([PLACED], LEFT, 9.0, "swapping: swap 1 to 2 keeping 1", [1]),
    "failed, and left nothing": ([PLACED], FAILED, 9.0, "swapping: swap 1 to 2", []),
    "aborted": ([PLACED], replace(LEFT, retry=False), 9.0, "swapping: release 1 for good keeping 1", [1]),
    "the order is repeated": (TIMED_OUT, LATE, 101.0, "swapping: swap 1 to 2 keeping 1", [1]),
    "no room": (TIMED_OUT, HOPELESS, 101.0, "swapping: release 1 for good keeping 1", [1]),
    "gone before the swap": (TIMED_OUT, DESTROYED, 101.0, "swapping: swap 1 to 2", [1]),
    "gone, but was it kept?": (
        [*TIMED_OUT, (101.0, DESTROYED)], SWAPPED, 102.0,
        "building: destroy 1 at host0; build 2 at host1; free 1", [1],
    ),
    "swapped": (TIMED_OUT, SWAPPED, 101.0, "building: destroy 1 at host0; build 2 at host1", [1]),
    "gone": (SWAPPED_AWAY, DESTROYED, 102.0, "building: free 1", [1]),
    "freed": ([*SWAPPED_AWAY, (102.0, DESTROYED)], MINE_IS_FREE, 102.0, "building: ", []),
    "not freed at once": (
        [*SWAPPED_AWAY, (102.0, DESTROYED)], CleanedUp(holder_consumer(BUILDING.id, 1), Contended()), 102.0,
        "building: free 1", [1],
    ),
    "not ours, and not asked for again": (
        [*SWAPPED_AWAY, (102.0, DESTROYED)], CleanedUp(holder_consumer(BUILDING.id, 1), OUTSIDE_CELL), 102.0,
        "building: ", [],
    ),
    "built elsewhere": (SWAPPED_AWAY, BUILT_THERE, 102.0, "active: end active", [1]),
    "gone later": (ELSEWHERE, DESTROYED, 103.0, "active: free 1", [1]),
    "alive": (ELSEWHERE, PROGRESS, 103.0, "active: destroy 1 at host0", [1]),
    "not given up yet": (ELSEWHERE, an_agent_report(SECOND, "overdue"), 5099.0, "active: end active", [1]),
    "given up": (
        ELSEWHERE, an_agent_report(SECOND, "overdue"), 5100.0,
        "active: end active; destroy 1 at host0; free 1", [1],
    ),
    "ended in error": (
        [*TIMED_OUT, (101.0, HOPELESS)], RELEASED_IN_SWAP, 102.0, "error: destroy 1 at host0; end error",
        [1],
    ),
    "then gone": (FAILED_FOR_GOOD, DESTROYED, 103.0, "error: free 1", [1]),
    "deleted after the error": (FAILED_FOR_GOOD, DELETE, 103.0, "deleted: deleted", [1]),
    "gone after that": (
        [*FAILED_FOR_GOOD, (103.0, DELETE)], DESTROYED, 104.0, "deleted: end error; deleted; free 1", [1],
    ),
    "deleted in mid swap": (TIMED_OUT, DELETE, 101.0, "deleting: destroy 1 at host0", [1]),
    "and destroyed": ([*TIMED_OUT, (101.0, DELETE)], DESTROYED, 102.0, "deleting: release 1 for good", [1]),
    "and given back": (
        [*TIMED_OUT, (101.0, DELETE), (102.0, DESTROYED)], RELEASED, 103.0,
        "deleted: end error; deleted; free 1", [1],
    ),
    "the first goes while the second is awaited": (
        [*ELSEWHERE, (103.0, DELETE)], DESTROYED, 104.0, "deleting: free 1", [1],
    ),
    "swapped, and nobody had heard of it": (
        [*TIMED_OUT, (101.0, DELETE), (701.0, LATE)], ReleaseAnswer("deleting", held(1, 2)), 701.0,
        "deleting: destroy 1 at host0; release 2 for good", [1],
    ),
    "touched by somebody, and still there": (
        [*TIMED_OUT, (101.0, DELETE), (701.0, LATE)], ReleaseAnswer("deleting", held(0, 2)), 701.0,
        "deleting: release 2 for good keeping 1", [1],
    ),
    "a move has claimed its destination": (
        [*NO_ANSWER, (610.0, LATE)], CLAIMED_BY_MOVE, 611.0, "deleting: release 2 for good", [1],
    ),
    "a move has claimed its destination, and its source is free": (
        [*NO_ANSWER, (610.0, LATE), (611.0, CLAIMED_BY_MOVE)], DESTROYED, 612.0, "deleting: free 1", [1],
    ),
    "a delete that waits": (NO_ANSWER, LATE, 609.0, "deleting: end active", []),
    "no longer": (NO_ANSWER, LATE, 610.0, "deleting: release 1 for good keeping 1", [1]),
    "it ends all the same": ([*NO_ANSWER, (610.0, LATE)], RELEASED, 610.0, "deleted: deleted", [1]),
    "and says so again": (FORCED, LATE, 611.0, "deleted: deleted", [1]),
    "fenced": (FORCED, PROGRESS, 700.0, "deleted: destroy 1 at host0", [1]),
    "back and gone": (FORCED, DESTROYED, 700.0, "deleted: deleted; free 1", [1]),
    "and freed": ([*FORCED, (700.0, DESTROYED)], MINE_IS_FREE, 701.0, "deleted: ", []),
}  # fmt: skip


@pytest.mark.parametrize(("before", "event", "now", "then", "kept"), LEFTOVERS.values(), ids=LEFTOVERS)
def test_allocations_are_held_until_the_guest_is_destroyed_or_times_out(
    before: list[Dated], event: Event, now: float, then: str, kept: list[int]
) -> None:
    build, effects = step(after(*before), event, now, LIMITS)
    assert build is not None
    assert in_short_of(build, [effect for effect in effects if not isinstance(effect, HostFailed)]) == then
    assert [left.attempt for left in build.leftovers] == kept
