"""Builds of a conductor that are preempted, or placed in the place of victims."""

from msgspec.structs import replace

from bus.parts import PlacedParts
from cell_conductor.builds import Builds
from features.preemption.build_metrics import PREEMPTIONS
from features.preemption.messages import Vacating, Victim, Victims
from tests.contract.test_builds import BUILT, ONE, events, placed
from tests.support.conductor_builders import CELL, Books, a_destroy_order, a_placed, an_agent_report
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock

REQUEUED = Vacating(build=ONE.build, other=uid(9, "b"), cell=CELL, say="vacate", attempt=1, requeue=True)


async def test_the_order_to_destroy_a_shelved_victim_is_repeated_after_an_hour(
    builds: Builds, books: Books, time: TurnedClock
) -> None:
    """A deleted queue of the broker may have contained the order or the agent's report."""
    await placed(builds, books, ONE)
    await events(builds, BUILT, REQUEUED)
    time.now += 601
    await events(builds, *await builds.time_out())
    assert await builds.resume() == []
    time.now += 3599
    assert await builds.resume() == []
    time.now += 1
    assert await builds.resume() == [a_destroy_order(ONE, 1)]
    assert await builds.resume() == []
    await events(builds, an_agent_report(a_destroy_order(ONE, 1), "destroyed"))
    time.now += 3600
    assert await builds.resume() == []


async def test_a_preemption_is_counted_when_its_build_is_placed(builds: Builds, books: Books) -> None:
    started = PREEMPTIONS.labels(CELL, "started")
    before = started._value.get()
    victim = Victim(build=a_placed(2).build, generation=1, attempt=1, holder=uid(3))
    await placed(builds, books, replace(ONE, parts=PlacedParts(Victims(preempts=(victim,)))), a_placed(4))
    assert started._value.get() == before + 1
