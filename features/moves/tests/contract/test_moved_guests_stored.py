"""Guests that move survive any end of their agent's process."""

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from msgspec.structs import replace

from compute_sim import guests as module
from compute_sim.core.faults import FaultPlan, MoveFaults
from compute_sim.guests import AgentDisk, GuestFile
from features.moves.core.guest_phases import MoveSteps
from features.moves.tests.support.moving_agent import BUILD, DESTINATION, MovingAgent, a_build
from features.moves.tests.support.moving_agent import a_destroy as a_move_destroy
from features.moves.tests.support.moving_agent import an_order as a_move
from tests.contract.test_guest_file import a_report, an_order, killed
from tests.support.ids import uid


async def test_moved_guests_and_their_reports_survive_a_kill(
    disk: Callable[[], AgentDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = MovingAgent(disk()), a_build(build=uid(2, "b"))
    await source.build(a_build(), kept)
    arrived = a_move("prepare", 1, 2, DESTINATION)
    assert await source.move(arrived, a_move("send", 2, 1)) == ["done", "done"]
    before = source.guests(), source.disk.builds.known(), [*source.disk.memory(MoveSteps).known()]
    killed(source.disk)
    again = MovingAgent(disk())
    assert (again.guests(), again.disk.builds.known(), [*again.disk.memory(MoveSteps).known()]) == before
    assert again.guests()[2] == ("destination", "arriving") and again.guests()[1] == ("source", "stopped")
    assert await again.move(arrived, a_move("send", 2, 1)) == ["done", "done"]
    await again.move(a_move("start", 3, 2, DESTINATION))
    await again.destroy(a_move_destroy(2, DESTINATION, above=1))
    assert await again.move(a_move("resume", 4, 3, was=1)) == ["done"]
    monkeypatch.setattr(module, "SLACK", 5)
    for number in range(3, 20):
        await again.build(a_build(build=uid(number, "b")))
        await again.does.destroy(replace(a_move_destroy(1), build=uid(number, "b")))
    held = (
        again.disk.devices.held,
        again.disk.builds.known(),
        {*map(repr, again.disk.memory(MoveSteps).known())},
    )
    file = again.disk.file
    assert file is not None
    killed(again.disk)
    assert len(file.path.read_bytes().splitlines()) < 60
    last = MovingAgent(disk())
    assert (last.disk.devices.held, last.disk.builds.known()) == held[:2]
    assert {*map(repr, last.disk.memory(MoveSteps).known())} == held[2]
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


async def test_a_file_of_the_previous_version_is_read(tmp_path: Path) -> None:
    """The bytes are those of a version whose guests could not move."""
    build, root = uid(1, "b"), uid(1, "c")
    holds = f'{{"{root}":{{"VCPU":1}}}}'
    there = f'["GuestThere",["{build}",1,"c1","a","{root}","h",{holds},{{}},"deb",["a=b"]],true]'
    left = f'["GuestThere",["{uid(2, "b")}",1,"c1","a","{root}","h",{{}}],false]'
    failed = f'["OrderFailed","{uid(2, "b")}",1,"c1","a","{root}","h","hung",true,true]'
    void = f'["OrdersVoid","{uid(3, "b")}",2]'
    path = tmp_path / "a.guests"
    lines = [line.encode() for line in (there, left, failed, void)]
    path.write_bytes(b"".join(b"%08x %s\n" % (crc32(line), line) for line in lines))
    disk = AgentDisk(file=GuestFile(path))
    MovingAgent(disk)
    assert {(guest.build, guest.state) for guest in disk.all_guests} == {
        (build, "running"),
        (uid(2, "b"), "arriving"),
    }
    assert [record.build for record in disk.running()] == [build]
    assert disk.builds.is_void(uid(3, "b"), 2) and not disk.builds.is_void(uid(3, "b"), 3)
    assert disk.builds.ordered(an_order(2)) == a_report(an_order(2), "failed", cause="hung", leftover=True)
    disk.close()
