"""Builds of a conductor that are preempted, or placed in the place of victims."""

from cell_conductor.builds import Builds
from features.preemption.messages import Vacating
from tests.contract.test_builds import BUILT, ONE, arrived, placed
from tests.support.conductor_builders import CELL, Books, a_destroy_order, an_agent_report
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock

REQUEUED = Vacating(build=ONE.build, other=uid(9, "b"), cell=CELL, say="vacate", attempt=1, requeue=True)


async def test_the_order_to_destroy_a_shelved_victim_is_repeated_after_an_hour(
    builds: Builds, books: Books, time: TurnedClock
) -> None:
    """A deleted queue of the broker may have contained the order or the agent's report."""
    await placed(builds, books, ONE)
    await arrived(builds, BUILT, REQUEUED)
    time.now += 601
    await arrived(builds, *await builds.time_out())
    assert await builds.resume() == []
    time.now += 3599
    assert await builds.resume() == []
    time.now += 1
    assert await builds.resume() == [a_destroy_order(ONE, 1)]
    assert await builds.resume() == []
    await arrived(builds, an_agent_report(a_destroy_order(ONE, 1), "destroyed"))
    time.now += 3600
    assert await builds.resume() == []
