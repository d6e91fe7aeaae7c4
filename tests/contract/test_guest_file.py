"""An agent's guests survive any end of its process, and a thousand builds a second take few writes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.errors import Unavailable
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor, Image
from compute_sim import guests as module
from compute_sim.guests import AgentDisk, GuestFile
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[], AgentDisk]]:
    """Yield a function that opens the agent's disk, as a new process of the agent does."""
    opened: list[AgentDisk] = []

    def open_() -> AgentDisk:
        opened.append(AgentDisk(file=GuestFile(tmp_path / "agents" / "a.guests")))
        return opened[-1]

    yield open_
    for disk in opened:
        disk.close()


def killed(disk: AgentDisk) -> None:
    assert disk.file is not None
    disk.file._waiting.clear()
    disk.close()


def seen(disk: AgentDisk) -> tuple[Any, ...]:
    properties = {**disk.hosted.on[uid(1, "c")].properties}
    return disk.hosted.there, disk.devices.held, disk.builds.known(), properties


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


@pytest.mark.parametrize("rest", [b"0000", b'12345678 ["GuestThere"', b"no line\n"])
async def test_a_truncated_line_is_ignored(
    disk: Callable[[], AgentDisk], tmp_path: Path, rest: bytes
) -> None:
    one = disk()
    await built(one, *map(an_order, range(3)))
    one.close()
    path = tmp_path / "agents" / "a.guests"
    with path.open("ab") as file:
        file.write(rest)
    two = disk()
    assert len(two.guests) == 3
    two.finished(a_report(an_order(9), "failed"))
    await two.settled()
    two.close()
    three = disk()
    assert (len(three.guests), three.builds.ordered(an_order(9))) == (3, a_report(an_order(9), "failed"))


async def test_a_damaged_file_is_kept_as_a_copy_and_reported(
    disk: Callable[[], AgentDisk], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = disk()
    await built(one, *map(an_order, range(3)))
    one.close()
    path = tmp_path / "agents" / "a.guests"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"x" + lines[1][1:] + lines[2])
    two = disk()
    two.close()
    assert len(two.guests) == 1
    assert "guests may be unknown" in caplog.text
    assert path.with_suffix(".damaged").read_bytes().count(b"\n") == 2


async def test_a_second_agent_of_the_same_name_does_not_start(disk: Callable[[], AgentDisk]) -> None:
    one = disk()
    with pytest.raises(Unavailable, match="another agent of this name is running"):
        disk()
    one.close()
    disk().close()


async def test_the_guest_file_is_compacted(
    disk: Callable[[], AgentDisk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLACK", 50)
    one = disk()
    for number in range(400):
        order = an_order(number % 20, attempt=number // 20 + 1)
        one.begin(order)
        one.finished(a_report(order))
        one.destroyed(a_destroy(order))
        await one.settled()
    await built(one, an_order(500))
    before = seen(one)
    killed(one)
    assert len((tmp_path / "agents" / "a.guests").read_bytes().splitlines()) < 200
    two = disk()
    assert seen(two) == before


async def test_a_line_that_was_written_in_part_does_not_hide_later_lines(
    disk: Callable[[], AgentDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, write = disk(), os.write
    await built(now, an_order(1))

    def full(file: int, content: Any) -> int:
        if len(content) < 10:
            raise OSError(28, "No space left on device")
        return write(file, content[: len(content) // 2])

    with monkeypatch.context() as broken, pytest.raises(Unavailable):
        broken.setattr(os, "write", full)
        await built(now, an_order(2))
    await built(now, an_order(3))
    killed(now)
    assert {*disk().guests} == {uid(number, "b") for number in (1, 2, 3)}
