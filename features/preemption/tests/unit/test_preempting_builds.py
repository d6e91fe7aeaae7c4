"""A build in its cell waits until the instances that it preempts have left its host."""

import pytest

from bus.claims import ReleaseRequested, Retired, holder_consumer
from bus.messages import AgentReported, BuildDeleted, BuildDeleteRequested, BuildOrdered, DestroyOrdered
from cell_conductor.extension import builds, events
from features.preemption.core.courses import Awaited, Vacate
from features.preemption.core.courses import vacate as vacate_build
from features.preemption.messages import BuildPreempted, Vacating
from features.preemption.tests.support.preempted_builds import (
    HIGH,
    LIMITS,
    LOW,
    LOWER,
    after,
    an_active,
    leaving,
    preempting,
    vacate,
    vacated,
)
from tests.support.conductor_builders import CELL, step
from tests.support.ids import uid


def test_a_build_is_ordered_after_its_last_victim_has_left() -> None:
    build, effects = preempting(LOW, LOWER)
    assert [(each.build, each.say) for each in effects if isinstance(each, Vacating)] == [
        (LOW, "vacate"),
        (LOWER, "vacate"),
    ]
    build, effects = after(build, vacated(LOW))
    assert effects == () and build.parts.get(Awaited) == Awaited((LOWER,))
    assert [each.build for each in after(build, events.Stalled())[1] if isinstance(each, Vacating)] == [LOWER]
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
    _, effects = after(build, AgentReported(**builds.attempt_fields(build), outcome="destroyed"))
    assert [type(each) for each in effects] == [ReleaseRequested]


def test_a_victim_reports_that_it_has_left_when_placement_has_released_its_holder() -> None:
    victim, effects = after(an_active(), vacate())
    [destroy] = effects
    assert isinstance(destroy, DestroyOrdered) and destroy.grace == 5.0
    victim, effects = leaving()
    holder = holder_consumer(LOW, 1)
    assert [each.consumer for each in effects if isinstance(each, ReleaseRequested)] == [holder]
    assert not any(isinstance(each, Vacating) for each in effects)
    victim, effects = after(victim, events.CleanedUp(holder, Retired(why="gone")))
    left, preempted, deleted = effects
    assert left == vacated(LOW)
    assert isinstance(preempted, BuildPreempted) and not preempted.requeued
    assert isinstance(deleted, BuildDeleted) and HIGH in deleted.reason
    assert vacated(LOW) in after(victim, vacate())[1]


def test_a_victim_that_a_client_has_deleted_has_left() -> None:
    deleted, _ = after(an_active(), BuildDeleteRequested(build=LOW, cell=CELL))
    gone = AgentReported(**builds.attempt_fields(deleted), outcome="destroyed")
    deleted, _ = after(deleted, gone, events.ReleaseAnswer("deleting", Retired(why="preempted")))
    deleted, effects = after(deleted, vacate())
    assert [each.consumer for each in effects if isinstance(each, ReleaseRequested)] == [
        holder_consumer(LOW, 1)
    ]
    assert vacated(LOW) in after(deleted, events.CleanedUp(holder_consumer(LOW, 1), Retired(why="x")))[1]
    assert step(None, vacate(), 0.0, LIMITS) == (None, (vacated(LOW),))


def test_instances_of_one_request_share_a_victim() -> None:
    other = uid(4, "b")
    victim, _ = after(an_active(), vacate(), vacate(by=other))
    gone = AgentReported(**builds.attempt_fields(victim), outcome="destroyed")
    left = events.CleanedUp(holder_consumer(LOW, 1), Retired(why="x"))
    _, effects = after(victim, gone, events.ReleaseAnswer("deleting", Retired(why="x")), left)
    assert [each for each in effects if isinstance(each, Vacating)] == [vacated(LOW), vacated(LOW, other)]


def test_a_victim_that_nothing_can_shelve_is_deleted() -> None:
    victim, _ = vacate_build(an_active(), vacate(requeue=True), 0.0, LIMITS, None)
    assert victim is not None
    vacates = victim.parts.get(Vacate)
    assert vacates is not None and not vacates.requeue
