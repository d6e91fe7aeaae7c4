"""Builds of a conductor that are preempted, or placed in the place of victims."""

from cell_conductor.testing import Builds
from features.preemption.messages import Vacating
from tests.support.cell_builds import BUILT, ONE, arrived, check_that_destruction_is_repeated, placed
from tests.support.conductor_builders import CELL, Books
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock

REQUEUED = Vacating(build=ONE.build, other=uid(9, "b"), cell=CELL, say="vacate", attempt=1, requeue=True)


async def test_the_order_to_destroy_a_shelved_victim_is_repeated_after_an_hour(
    builds: Builds, books: Books, time: TurnedClock
) -> None:
    """A deleted queue of the broker may have contained the order or the agent's report."""
    await placed(builds, books, ONE)
    await arrived(builds, BUILT, REQUEUED)
    await check_that_destruction_is_repeated(builds, time)
