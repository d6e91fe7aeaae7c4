"""Guests that move survive any end of their agent's process."""

from collections.abc import Callable

from compute_sim.extension import AgentDisk
from compute_sim.testing import FaultPlan, MoveFaults
from features.moves.core.guest_phases import MoveSteps
from features.moves.tests.support.moving_agent import BUILD, DESTINATION, MovingAgent, a_build
from features.moves.tests.support.moving_agent import a_destroy as a_move_destroy
from features.moves.tests.support.moving_agent import an_order as a_move
from tests.support.agent_disks import killed
from tests.support.ids import uid


def seen(agent: MovingAgent) -> tuple[object, ...]:
    disk = agent.disk
    return agent.guests(), disk.devices.held, disk.builds.known(BUILD), disk.memory(MoveSteps).entries(BUILD)


async def test_moved_guests_and_their_reports_survive_a_kill(disk: Callable[[], AgentDisk]) -> None:
    source, kept = MovingAgent(disk()), a_build(build=uid(2, "b"))
    await source.build(a_build(), kept)
    arrived = a_move("prepare", 1, 2, DESTINATION)
    assert await source.move(arrived, a_move("send", 2, 1)) == ["done", "done"]
    before = seen(source)
    killed(source.disk)
    again = MovingAgent(disk())
    assert seen(again) == before
    assert again.guests()[2] == ("destination", "arriving") and again.guests()[1] == ("source", "stopped")
    assert await again.move(arrived, a_move("send", 2, 1)) == ["done", "done"]
    await again.move(a_move("start", 3, 2, DESTINATION))
    await again.destroy(a_move_destroy(2, DESTINATION, above=1))
    assert await again.move(a_move("resume", 4, 3, was=1)) == ["done"]
    before = seen(again)
    killed(again.disk)
    last = MovingAgent(disk())
    assert seen(last) == before
    assert last.disk.guest(BUILD, 3) and {guest.attempt for guest in last.disk.all_guests} == {1, 3}
    assert await last.move(a_move("send", 2, 1), a_move("resume", 4, 3, was=1)) == ["nothing", "done"]


async def test_a_failed_start_leaves_no_guest_after_a_kill(disk: Callable[[], AgentDisk]) -> None:
    one = MovingAgent(disk(), faults=FaultPlan(moves=MoveFaults(start=1.0)))
    start = a_move("start", 3, 2, DESTINATION)
    assert await one.move(a_move("prepare", 1, 2, DESTINATION)) == ["done"]
    (reply,) = await one.move(start)
    killed(one.disk)
    two = MovingAgent(disk())
    assert (two.guests(), await two.move(start)) == ({}, [reply])
    assert two.disk.devices.held == {}


async def test_reports_of_moves_stay_in_the_file_while_the_feature_is_switched_off(
    disk: Callable[[], AgentDisk],
) -> None:
    one = await MovingAgent(disk()).build()
    assert await one.move(a_move("send", 1, 2)) == ["failed: there is no guest of attempt 2 here"]
    before = seen(one)
    killed(one.disk)
    without = disk()
    without.store(BUILD)
    await without.settled()
    killed(without)
    assert seen(MovingAgent(disk())) == before
