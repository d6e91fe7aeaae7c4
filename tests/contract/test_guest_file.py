"""An agent's guests survive any end of its process, and a thousand builds a second take few transactions."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bus.agent_builds import AgentBuilds
from bus.errors import Unavailable
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor, Image
from compute_sim.agent_disk import AgentDisk, GuestFile
from compute_sim.guests import GuestRecord
from tests.support.agent_disks import disk as disk
from tests.support.agent_disks import killed
from tests.support.ids import uid


def an_order(build: int, attempt: int = 1) -> BuildOrdered:
    return BuildOrdered(
        build=uid(build, "b"), attempt=attempt, cell="c1", agent="a", root=uid(1, "c"), host="h",
        spec=BuildSpec(flavor=Flavor(name="f", vcpus=2), image=Image(name="deb", properties={"a": "b"})),
        allocations={uid(7, "d"): {"SRIOV_NET_VF": 1}}, mappings={"_nic": (uid(7, "d"),)},
    )  # fmt: skip


def a_report(order: BuildOrdered, outcome: Any = "built", **more: Any) -> AgentReported:
    return AgentReported(
        build=order.build, attempt=order.attempt, cell="c1", agent="a", root=order.root, host="h",
        outcome=outcome, **more,
    )  # fmt: skip


def a_destroy(order: BuildOrdered) -> DestroyOrdered:
    return DestroyOrdered(
        build=order.build, attempt=order.attempt, cell="c1", agent="a", root=order.root, host="h"
    )


async def built(disk: AgentDisk, *orders: BuildOrdered) -> None:
    for order in orders:
        disk.begin(order)
        disk.finished(a_report(order))
    await disk.settled()


def seen(disk: AgentDisk) -> tuple[Any, ...]:
    known = [disk.builds.known(uid(number, "b")) for number in range(10)]
    return disk.hosted.there, disk.devices.held, known, {**disk.hosted.on[uid(1, "c")].properties}


async def test_guests_allocations_and_reports_survive_a_kill(disk: Callable[[], AgentDisk]) -> None:
    built, failed, left, gone = (an_order(number) for number in range(4))
    one = disk()
    for order in (built, failed, left, gone):
        one.begin(order)
    one.finished(a_report(built))
    one.remove(failed.build, range(2))
    one.finished(a_report(failed, "failed", cause="no", retry=False))
    one.finished(a_report(left, "failed", cause="hung", leftover=True))
    one.finished(a_report(gone))
    one.destroyed(a_destroy(gone))
    await one.settled()
    before = seen(one)
    killed(one)
    two = disk()
    assert seen(two) == before
    assert {build: list(there) for build, there in two.guests.items()} == {built.build: [1], left.build: [1]}
    assert two.devices.in_use(uid(7, "d")) == {"SRIOV_NET_VF": 2}
    assert two.builds.ordered(built) == a_report(built)
    assert two.builds.ordered(failed) == a_report(failed, "failed", cause="no", retry=False)
    assert two.builds.ordered(gone) == a_report(gone, "destroyed")
    assert two.hosted.there[built.build][1].mappings == {"_nic": (uid(7, "d"),)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda disk, guest: disk.become(guest, "stopped"), id="stopped"),
        pytest.param(lambda disk, guest: disk.rename(guest, 2), id="another attempt"),
        pytest.param(lambda disk, guest: disk.move(guest, {uid(8, "d"): {"VCPU": 1}}), id="reshaped"),
        pytest.param(lambda disk, guest: disk.lose(guest), id="lost"),
        pytest.param(lambda disk, guest: disk.destroyed(a_destroy(an_order(1))), id="destroyed"),
    ],
)
async def test_each_change_of_a_guest_survives_a_kill(
    disk: Callable[[], AgentDisk], change: Callable[[AgentDisk, GuestRecord], object]
) -> None:
    one = disk()
    await built(one, an_order(1))
    change(one, one.all_guests[0])
    await one.settled()
    before = one.all_guests
    killed(one)
    assert disk().all_guests == before


async def test_the_guest_of_a_build_in_progress_is_not_in_the_file(disk: Callable[[], AgentDisk]) -> None:
    one, order = disk(), an_order(1, attempt=2)
    assert one.builds.ordered(order) == "start"
    one.begin(order)
    one.destroyed(a_destroy(an_order(1)))
    await one.settled()
    killed(one)
    two = disk()
    assert two.guests == {} and two.builds.ordered(order) == "start"  # when it is delivered again


def test_one_agent_may_use_the_file_and_a_kill_at_any_moment_loses_nothing_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.guests"
    program = f"from tests.contract.test_guest_file import build_until_killed as b; b({str(path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        reported = [agent.stdout.readline().strip() for _ in range(50)]
        with pytest.raises(Unavailable, match="another agent of this name is running"):
            AgentDisk(file=GuestFile(path))
        agent.kill()
        reported += agent.stdout.read().split()
    found = AgentDisk(file=GuestFile(path))
    found.close()
    assert all(reported) and {*reported} <= found.guests.keys()


def build_until_killed(path: str) -> None:
    """Build guests, and print each when its report may be sent."""

    async def build() -> None:
        disk = AgentDisk(file=GuestFile(Path(path)))
        for number in count():
            await built(disk, an_order(number))
            print(uid(number, "b"), flush=True)

    asyncio.run(build())


async def test_guests_that_are_built_together_are_committed_together(disk: Callable[[], AgentDisk]) -> None:
    one = disk()
    commits = commits_of(one)
    async with asyncio.TaskGroup() as group:
        for number in range(1000):
            group.create_task(built(one, an_order(number)))
    assert len(commits) == 1


def commits_of(disk: AgentDisk) -> list[str]:
    """Return a list to which each further transaction of the file is added."""
    commits: list[str] = []
    assert disk.file is not None and disk.file._database is not None
    disk.file._database.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    return commits


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b'2e9a1f0c ["OrdersVoid","b",2]\n', id="of another version"),
        pytest.param(lambda content: content[: len(content) // 2], id="cut off"),
        pytest.param(lambda content: content[:8192] + b"\xff" * 4096 + content[12288:], id="a page"),
        pytest.param(lambda content: content.replace(b'"deb"', b'"de??'), id="a guest"),
    ],
)
async def test_an_agent_with_a_damaged_file_does_not_start_until_it_is_restored_or_moved_away(
    disk: Callable[[], AgentDisk], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    one = disk()
    await built(one, *map(an_order, range(100)))
    one.close()
    path = tmp_path / "agents" / "a.guests"
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with pytest.raises(Unavailable, match="damaged, or another version of berth wrote it") as refused:
        disk()
    assert str(path) in str(refused.value) and path.read_bytes() == damage(content)
    path.write_bytes(content)
    restored = disk()
    restored.close()
    assert len(restored.guests) == 100
    path.rename(path.with_suffix(".away"))
    assert disk().guests == {}


async def test_builds_that_the_agent_forgets_leave_the_file(disk: Callable[..., AgentDisk]) -> None:
    now = [0.0]
    one = disk(AgentBuilds(seconds=60.0, now=lambda: now[0]))
    for number in range(100):
        now[0] += 10.0
        await built(one, order := an_order(number))
        one.destroyed(a_destroy(order))
    one.close()
    known = disk().builds.known
    assert [number for number in range(100) if known(uid(number, "b")) != ((), ())] == [*range(93, 100)]


async def test_a_failed_transaction_is_repeated_with_the_next(disk: Callable[[], AgentDisk]) -> None:
    now = disk()
    await built(now, an_order(1))
    assert now.file is not None and now.file._database is not None
    pages = "PRAGMA max_page_count = {}".format
    now.file._database.execute(pages(1))
    with pytest.raises(Unavailable, match="database or disk is full"):
        await built(now, *map(an_order, range(2, 50)))
    now.file._database.execute(pages(1000))
    await built(now, an_order(50))
    killed(now)
    assert disk().guests.keys() == {uid(number, "b") for number in range(1, 51)}
