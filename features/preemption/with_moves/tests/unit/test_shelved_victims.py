"""Preempted instances that are shelved and requested again, or are in a move."""

from bus.claims import Retired, holder_consumer
from bus.messages import AgentReported, BuildDeleted, BuildDeleteRequested
from cell_conductor.extension import builds, events
from features.moves.core.phases import held, move_in_progress
from features.moves.tests.support.conductor_moves import a_move
from features.preemption.core.courses import Vacate
from features.preemption.messages import BuildPreempted
from features.preemption.tests.support.preempted_builds import (
    LIMITS,
    LOW,
    after,
    an_active,
    leaving,
    vacate,
    vacated,
)
from tests.support.conductor_builders import CELL


def test_a_requeued_victim_is_shelved_unless_a_client_deletes_it() -> None:
    victim, effects = leaving(requeue=True)
    assert victim.shown == "shelved"
    victim, effects = after(victim, events.CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    [requeued] = [each for each in effects if isinstance(each, BuildPreempted)]
    assert requeued.requeued
    victim, _ = after(an_active(), vacate(requeue=True), BuildDeleteRequested(build=LOW, cell=CELL))
    gone = AgentReported(**builds.attempt_fields(victim), outcome="destroyed")
    assert after(victim, gone, events.ReleaseAnswer("deleting", Retired(why="x")))[0].status == "deleted"


def test_a_requeue_is_requested_again_until_its_move_begins() -> None:
    victim, _ = leaving(requeue=True)
    shelved, [*_, requeued] = after(victim, events.CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    hour = LIMITS.destroy_again_after
    again = shelved
    for hours in (1, 2, 4, 8, 16, 32, 64, 128):
        assert again.deadline == hours * hour
        again, effects = after(again, builds.overdue(again), now=again.deadline)
        assert requeued in effects
    assert again.deadline == 0.0
    early, _ = after(shelved, builds.overdue(shelved), now=hour - 1)
    assert early.deadline == hour
    started, _ = after(shelved, a_move("unshelve", 2))
    assert move_in_progress(started.parts) is not None and Vacate not in started.parts
    deleted, _ = after(shelved, BuildDeleteRequested(build=LOW, cell=CELL))
    deleted, _ = after(deleted, events.ReleaseAnswer("deleting", Retired(why="shelved", revivable=True)))
    assert deleted.status == "deleted" and deleted.deadline == 0.0


def test_a_victim_shelved_at_the_same_time_is_deleted_unless_it_is_requeued() -> None:
    """Placement has retired the victim, so it could never be unshelved."""
    shelved = held(an_active(), "shelved", generation=None)
    victim, _ = after(shelved, vacate())
    victim, effects = after(victim, events.CleanedUp(holder_consumer(LOW, 1), Retired(why="gone")))
    assert victim.status == "deleted"
    left, preempted, deleted = effects
    assert left == vacated(LOW) and isinstance(deleted, BuildDeleted)
    assert isinstance(preempted, BuildPreempted) and not preempted.requeued
    assert after(shelved, vacate(requeue=True))[0].shown == "shelved"
