"""A build in its cell waits until the instances that it preempts have left its host."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import ClaimRequested, ReleaseRequested, Retired, holder_consumer
from bus.messages import (
    AgentReported,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    BuildReshaped,
    DestroyOrdered,
)
from bus.parts import PlacedParts
from bus.sql.database import Database
from bus.vocabulary import Message
from cell_conductor import cell_conductor
from cell_conductor.core.build import Build, attempt_fields, overdue
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event, ReleaseAnswer, Stalled
from cell_conductor.extension import Applied
from features.moves.core.phases import held, move_in_progress
from features.moves.tests.support.conductor_moves import a_move
from features.preemption.build_metrics import PREEMPTIONS, PreemptionMetrics
from features.preemption.core.courses import Awaited, Vacate
from features.preemption.messages import BuildPreempted, Vacating, Victim, Victims
from features.waiting.messages import PlacedWait
from tests.support.conductor_builders import CELL, a_placed, step
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid

HIGH, LOW, LOWER = (uid(number, "b") for number in (1, 2, 3))
LIMITS = AttemptLimits()


def a_victim(build: str, **fields: object) -> Victim:
    given = {"generation": 1, "attempt": 1, "holder": holder_consumer(build, 1)} | fields
    return Victim(build=build, **given)  # type: ignore[arg-type]


def after(build: Build | None, *events: Event, now: float = 0.0) -> tuple[Build, tuple[Message, ...]]:
    effects: tuple[Message, ...] = ()
    for event in events:
        build, effects = step(build, event, now, LIMITS)
    assert build is not None
    return build, effects


def preempting(*victims: str) -> tuple[Build, tuple[Message, ...]]:
    replaced = Victims(preempts=tuple(a_victim(build, grace=5.0) for build in victims))
    placed = replace(a_placed(1), parts=PlacedParts(replaced, PlacedWait(priority=7)))
    return after(None, placed)


def vacate(build: str = LOW, *, requeue: bool = False, by: str = HIGH) -> Vacating:
    fields = {"attempt": 1, "priority": 7, "grace": 5.0, "requeue": requeue}
    return Vacating(build=build, other=by, cell=CELL, say="vacate", **fields)  # type: ignore[arg-type]


def vacated(victim: str, by: str = HIGH) -> Vacating:
    return Vacating(build=by, other=victim, cell=CELL, say="vacated")


def an_active(number: int = 2) -> Build:
    built, _ = after(None, a_placed(number))
    return after(built, AgentReported(**attempt_fields(built), outcome="built"))[0]


def leaving(*, requeue: bool = False) -> tuple[Build, tuple[Message, ...]]:
    """A victim whose agent has destroyed the guest, after placement's answers."""
    victim, _ = after(an_active(), vacate(requeue=requeue))
    gone = AgentReported(**attempt_fields(victim), outcome="destroyed")
    retired = ReleaseAnswer("deleting", Retired(why="preempted"))
    return after(victim, gone, retired)


def test_a_build_is_ordered_after_its_last_victim_has_left() -> None:
    build, effects = preempting(LOW, LOWER)
    assert [(each.build, each.say) for each in effects if isinstance(each, Vacating)] == [
        (LOW, "vacate"),
        (LOWER, "vacate"),
    ]
    build, effects = after(build, vacated(LOW))
    assert effects == () and build.parts.get(Awaited) == Awaited((LOWER,))
    assert [each.build for each in after(build, Stalled())[1] if isinstance(each, Vacating)] == [LOWER]
    build, effects = after(build, vacated(LOWER))
    assert [type(each) for each in effects] == [BuildOrdered]
    assert [type(each) for each in after(build, vacated(LOWER))[1]] == [BuildOrdered]


def test_preemptions_are_counted_when_they_start_finish_or_are_undone() -> None:
    def counts() -> list[float]:
        return [PREEMPTIONS.labels(CELL, stage)._value.get() for stage in ("started", "finished", "undone")]

    started = counts()
    waits = preempting(LOW)[0]
    deleted = after(waits, BuildDeleteRequested(build=HIGH, cell=CELL))[0]
    for before in (None, waits, deleted):
        state = waits if before is None else after(before, vacated(LOW))[0]
        PreemptionMetrics().count(Applied(None, before, state, ()))
    PreemptionMetrics().count(Applied(None, waits, deleted, ()))
    assert [now - then for now, then in zip(counts(), started, strict=True)] == [1, 1, 1]


def test_a_build_deleted_meanwhile_keeps_its_allocations_until_its_victims_have_left() -> None:
    build, _ = preempting(LOW)
    build, effects = after(build, BuildDeleteRequested(build=HIGH, cell=CELL, reply_to="me"))
    assert [type(each) for each in effects] == [Vacating]
    build, effects = after(build, vacated(LOW))
    [release] = effects
    assert isinstance(release, ReleaseRequested) and release.retire == "deleted"


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "not ordered"])
def test_a_repeated_message_of_a_victim_does_not_release_a_build_whose_guest_may_exist(ordered: bool) -> None:
    """The conductor may also have stopped before it sent the release, which follows the agent's answer."""
    build, _ = preempting(LOW)
    delete = BuildDeleteRequested(build=HIGH, cell=CELL)
    build, _ = after(build, *((vacated(LOW), delete) if ordered else (delete, vacated(LOW))))
    build, effects = after(build, vacated(LOW))
    assert [type(each) for each in effects] == [DestroyOrdered]
    _, effects = after(build, AgentReported(**attempt_fields(build), outcome="destroyed"))
    assert [type(each) for each in effects] == [ReleaseRequested]


def test_a_victim_reports_that_it_has_left_when_placement_has_released_its_holder() -> None:
    victim, effects = after(an_active(), vacate())
    [destroy] = effects
    assert isinstance(destroy, DestroyOrdered) and destroy.grace == 5.0
    victim, effects = leaving()
    holder = holder_consumer(LOW, 1)
    assert [each.consumer for each in effects if isinstance(each, ReleaseRequested)] == [holder]
    assert not any(isinstance(each, Vacating) for each in effects)
    victim, effects = after(victim, CleanedUp(holder, Retired(why="gone")))
    left, preempted, deleted = effects
    assert left == vacated(LOW)
    assert isinstance(preempted, BuildPreempted) and not preempted.requeued
    assert isinstance(deleted, BuildDeleted) and HIGH in deleted.reason
    assert vacated(LOW) in after(victim, vacate())[1]


def test_the_victims_of_a_build_deleted_before_it_was_placed_leave_too() -> None:
    unknown, _ = after(None, BuildDeleteRequested(build=HIGH, cell=CELL))
    placed = replace(
        a_placed(1), parts=PlacedParts(Victims(preempts=(a_victim(LOW, grace=5.0),)), PlacedWait(priority=7))
    )
    build, effects = after(unknown, placed)
    assert effects == (vacate(),)
    build, effects = after(build, vacated(LOW))
    assert [type(each) for each in effects] == [ReleaseRequested]
    build, effects = after(build, ReleaseAnswer("deleting", Retired(why="deleted")))
    assert [each.status for each in effects if isinstance(each, BuildEnded)] == ["error"]


def test_a_requeued_victim_is_shelved_unless_a_client_deletes_it() -> None:
    victim, effects = leaving(requeue=True)
    assert victim.shown == "shelved"
    victim, effects = after(victim, CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    [requeued] = [each for each in effects if isinstance(each, BuildPreempted)]
    assert requeued.requeued
    victim, _ = after(an_active(), vacate(requeue=True), BuildDeleteRequested(build=LOW, cell=CELL))
    gone = AgentReported(**attempt_fields(victim), outcome="destroyed")
    assert after(victim, gone, ReleaseAnswer("deleting", Retired(why="x")))[0].status == "deleted"


def test_a_lost_order_to_destroy_a_shelved_victim_is_repeated_when_its_preemptor_asks_again() -> None:
    victim, _ = after(an_active(), vacate(requeue=True))
    victim, _ = after(victim, overdue(victim), now=victim.deadline)
    victim, _ = after(victim, ReleaseAnswer("deleting", Retired(why="preempted")))
    assert victim.shown == "shelved"
    _, effects = after(victim, vacate(requeue=True))
    assert [(each.attempt, each.root) for each in effects if isinstance(each, DestroyOrdered)] == [
        (1, victim.host.root)
    ]


def test_a_victim_keeps_the_time_of_its_first_request() -> None:
    def requested(since: float) -> float:
        victim, _ = after(None, replace(a_placed(2), parts=PlacedParts(PlacedWait(since=since))), now=50.0)
        victim, _ = after(victim, AgentReported(**attempt_fields(victim), outcome="built"), now=60.0)
        victim, _ = after(victim, vacate(requeue=True), now=70.0)
        gone = AgentReported(**attempt_fields(victim), outcome="destroyed")
        left = CleanedUp(holder_consumer(LOW, 1), Retired(why="gone"))
        _, effects = after(victim, gone, ReleaseAnswer("deleting", Retired(why="preempted")), left, now=80.0)
        [preempted] = [each for each in effects if isinstance(each, BuildPreempted)]
        return preempted.requested

    assert requested(since=20.0) == 20.0  # it has waited for its host
    assert requested(since=0.0) == 50.0


def test_a_requeue_is_requested_again_until_its_move_begins() -> None:
    victim, _ = leaving(requeue=True)
    shelved, [*_, requeued] = after(victim, CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    hour = LIMITS.destroy_again_after
    again = shelved
    for hours in (1, 2, 4, 8, 16, 32, 64, 128):
        assert again.deadline == hours * hour
        again, effects = after(again, overdue(again), now=again.deadline)
        assert requeued in effects
    assert again.deadline == 0.0
    early, _ = after(shelved, overdue(shelved), now=hour - 1)
    assert early.deadline == hour
    started, _ = after(shelved, a_move("unshelve", 2))
    assert move_in_progress(started.parts) is not None and Vacate not in started.parts
    deleted, _ = after(shelved, BuildDeleteRequested(build=LOW, cell=CELL))
    deleted, _ = after(deleted, ReleaseAnswer("deleting", Retired(why="shelved", revivable=True)))
    assert deleted.status == "deleted" and deleted.deadline == 0.0


def test_a_victim_that_a_client_has_deleted_has_left() -> None:
    deleted, _ = after(an_active(), BuildDeleteRequested(build=LOW, cell=CELL))
    gone = AgentReported(**attempt_fields(deleted), outcome="destroyed")
    deleted, _ = after(deleted, gone, ReleaseAnswer("deleting", Retired(why="preempted")))
    deleted, effects = after(deleted, vacate())
    assert [each.consumer for each in effects if isinstance(each, ReleaseRequested)] == [
        holder_consumer(LOW, 1)
    ]
    assert vacated(LOW) in after(deleted, CleanedUp(holder_consumer(LOW, 1), Retired(why="x")))[1]
    assert step(None, vacate(), 0.0, LIMITS) == (None, (vacated(LOW),))


def test_a_victim_shelved_at_the_same_time_is_deleted_unless_it_is_requeued() -> None:
    """Placement has retired the victim, so it could never be unshelved."""
    shelved = held(an_active(), "shelved", generation=None)
    victim, _ = after(shelved, vacate())
    victim, effects = after(victim, CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    assert victim.status == "deleted"
    left, preempted, deleted = effects
    assert left == vacated(LOW) and isinstance(deleted, BuildDeleted)
    assert isinstance(preempted, BuildPreempted) and not preempted.requeued
    assert after(shelved, vacate(requeue=True))[0].shown == "shelved"


def test_instances_of_one_request_share_a_victim() -> None:
    other = uid(4, "b")
    victim, _ = after(an_active(), vacate(), vacate(by=other))
    gone = AgentReported(**attempt_fields(victim), outcome="destroyed")
    left = CleanedUp(holder_consumer(LOW, 1), Retired(why="x"))
    _, effects = after(victim, gone, ReleaseAnswer("deleting", Retired(why="x")), left)
    assert [each for each in effects if isinstance(each, Vacating)] == [vacated(LOW), vacated(LOW, other)]


RESHAPED = BuildReshaped(build=LOW, cell=CELL, root=uid(0, "c"), generation=9, number=9, allocations={})
DELETED = BuildDeleteRequested(build=LOW, cell=CELL)


@pytest.mark.parametrize(
    "event", [RESHAPED, DELETED, vacate(), a_placed(2)], ids=lambda event: type(event).__name__
)
@pytest.mark.parametrize("requeue", [False, True])
async def test_what_a_victim_that_has_left_repeats_is_declared_by_the_row_of_each_message(
    event: Any, requeue: bool
) -> None:
    """The messages are repeated after every event, whatever it is."""
    database = Database("sqlite+aiosqlite://", inline=True)
    claim: Any = None
    rows = cell_conductor(CELL, database, claim, claim, parts=conductor_parts(CELL)).consumes
    (row,) = [row for row in rows if row.message is type(event)]
    victim, _ = leaving(requeue=requeue)
    victim, effects = after(victim, CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    assert any(isinstance(effect, Vacating) for effect in effects)
    _, effects = after(victim, event)
    sent = {type(effect) for effect in effects} - {ClaimRequested, ReleaseRequested}
    assert isinstance(event, BuildDeleteRequested) or Vacating in sent
    assert sent <= row.emits
    await database.close()
