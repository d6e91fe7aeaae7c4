"""A build in its cell waits until the instances that it preempts have left its host."""

import pytest
from msgspec.structs import replace

from bus.claims import ReleaseRequested, Retired, holder_consumer
from bus.messages import AgentReported, BuildDeleted, BuildDeleteRequested, BuildOrdered, DestroyOrdered
from bus.parts import PlacedParts
from bus.vocabulary import Message
from cell_conductor.core.build import Build, attempt_fields, overdue
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event, ReleaseAnswer, Stalled
from features.moves.core.phases import held, move_in_progress
from features.moves.tests.support.conductor_moves import a_move
from features.preemption.core.courses import Awaited, Vacate
from features.preemption.messages import BuildPreempted, Vacating, Victim, Victims
from features.waiting.messages import PlacedWait
from tests.support.conductor_builders import CELL, a_placed, step
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


def test_a_requeued_victim_is_shelved_unless_a_client_deletes_it() -> None:
    victim, effects = leaving(requeue=True)
    assert victim.shown == "shelved"
    victim, effects = after(victim, CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    [requeued] = [each for each in effects if isinstance(each, BuildPreempted)]
    assert requeued.requeued
    victim, _ = after(an_active(), vacate(requeue=True), BuildDeleteRequested(build=LOW, cell=CELL))
    gone = AgentReported(**attempt_fields(victim), outcome="destroyed")
    assert after(victim, gone, ReleaseAnswer("deleting", Retired(why="x")))[0].status == "deleted"


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
