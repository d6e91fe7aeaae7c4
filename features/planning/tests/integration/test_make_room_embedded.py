"""`berth move make-room` in an embedded berth: instances move until a build fits that fitted nowhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count

import pytest
from prometheus_client import REGISTRY

from berth.kit import BootOptions, boot_request, host_named
from berth.kit.testing import state_of
from features.planning import making_room
from features.planning.messages import PlanRoom, RoomPlanned
from features.planning.room_planning import RoomPlanner
from features.planning.room_requests import RoomListener, make_room
from features.planning.tests.support.embedded_room import HOSTS, LARGE, _all_idle, waits
from features.planning.tests.support.embedded_room import berth as berth
from tests.support.living_berth import LivingBerth, Opened
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("steps_follow_each_other")


async def places(berth: LivingBerth) -> dict[str, str]:
    rows = [json.loads(line) for line in (await berth("instance", "list", "--json")).splitlines()]
    return {row["build"]: row["host"] for row in rows}


async def state(berth: LivingBerth, host: str) -> str:
    return state_of(await host_named(berth.bus, host))


async def test_the_fewest_instances_move_and_the_build_fits(berth: LivingBerth) -> None:
    assert "no host" in await berth("boot", *LARGE, "--wait", ends=1)
    assert "`berth move make-room --dry-run`" in await berth("request", "what-if", *LARGE, ends=1)
    before = await places(berth)
    shown = await berth("move", "make-room", *LARGE, "--dry-run")
    assert shown.startswith("1 move; then 1 build fits: 1 on c1-host00002")
    assert await places(berth) == before

    ended = {"cell": "c1", "kind": "live", "end": "done", "plan": "make_room"}
    count = REGISTRY.get_sample_value("berth_moves_ended_total", ended) or 0.0
    sent = await berth("move", "make-room", *LARGE)
    assert REGISTRY.get_sample_value("berth_moves_ended_total", ended) == count + 1
    assert "done: 1 move; 1 build fits: 1 on c1-host00002" in sent
    after = await places(berth)
    moved = [build for build, host in before.items() if after[build] != host]
    assert len(moved) == 1 and before[moved[0]] == "c1-host00002"
    why = await berth("why", moved[0])
    assert "makes room for 1 build of flavor custom (1 DISK_GB, 70,000 MEMORY_MB, 1 VCPU in all)" in why
    assert [await state(berth, host) for host in HOSTS] == ["open"] * 5
    assert (await berth.boot(*LARGE))[1] == "c1-host00002"
    await berth.clean()


async def test_several_builds_get_labelled_hosts_or_the_reason_why_not(berth: LivingBerth) -> None:
    for host in (HOSTS[1], HOSTS[3]):
        await berth("host", "label", host, "rack=r7")
    reasons = {
        ("--memory-mb", "140000"): ("[no_host]", "MEMORY_MB"),
        (*LARGE, "--in", "rack=r8"): (
            "[no_host]: no host that the request permits has the label rack=r8",
        ),
        (*LARGE, "--count", "2", "--budget", "2"): (
            "there is no plan [budget]", "1 build fits: 1 on c1-host00002",
        ),
        (*LARGE, "--count", "3", "--in", "rack=r7"): (
            "2 builds fit: 1 on c1-host00002, 1 on c1-host00004, after 3 moves",
        ),
    }  # fmt: skip
    for asked, reason in reasons.items():
        sent = await berth("move", "make-room", *asked, ends=1)
        assert all(part in sent for part in reason), sent
    before = await places(berth)
    two = (*LARGE, "--count", "2")
    sent = await berth("move", "make-room", *two, "--in", "rack=r7", "--in", "cell=c1")
    assert "done: 3 moves; 2 builds fit: 1 on c1-host00002, 1 on c1-host00004" in sent
    after = await places(berth)
    assert sorted(host for build, host in before.items() if after[build] != host) == [
        HOSTS[1],
        *[HOSTS[3]] * 2,
    ]
    await berth("boot", *two, "--wait")
    await berth.clean()


@pytest.fixture
async def three_hosts(opened: Opened) -> AsyncIterator[LivingBerth]:
    async with opened("c1", simulator={"hosts": 3}) as berth:
        yield berth


async def _fill(berth: LivingBerth, *hosts: tuple[int, ...]) -> None:
    """Boot instances of these sizes (in 1000 MB) on each host."""
    for host, sizes in zip(HOSTS, hosts, strict=False):
        for size in sizes:
            await berth("boot", "--memory-mb", str(size * 1000), "--host", host, "--wait")


async def test_a_plan_that_ends_before_its_first_move_says_why(
    three_hosts: LivingBerth, monkeypatch: pytest.MonkeyPatch
) -> None:
    berth = three_hosts
    await _fill(berth, (40, 40), (120,), (60,))
    await until(lambda: _all_idle(berth, 10_000, 3))
    plan, answers = RoomPlanner._answer, count()

    async def first_only(planner: RoomPlanner, asked: PlanRoom) -> RoomPlanned:
        none = RoomPlanned(code="destinations", why="none fits")
        return none if next(answers) else await plan(planner, asked)

    monkeypatch.setattr(RoomPlanner, "_answer", first_only)
    monkeypatch.setattr(making_room, "RETRY_SECONDS", 0.0)
    sent = await berth("move", "make-room", "memory_mb=80000", ends=1)
    assert "given up [destinations]: none fits" in sent and "moved back" not in sent
    await berth.clean()


async def test_an_instance_moves_to_a_target_that_has_enough_room_for_both(three_hosts: LivingBerth) -> None:
    berth = three_hosts
    await _fill(berth, (40, 40), (), (120,))
    await until(lambda: _all_idle(berth, 10_000, 3))
    sent = await berth("move", "make-room", "memory_mb=70000", "--count", "2")
    assert "done: 1 move; 2 builds fit: " in sent
    assert [await state(berth, host) for host in HOSTS[:3]] == ["open"] * 3
    await berth("boot", "--memory-mb", "70000", "--count", "2", "--wait")
    await berth.clean()


async def test_a_waiting_request_gets_the_host_also_if_it_has_reserved_it(berth: LivingBerth) -> None:
    for memory_mb in (70_000, 50_000):
        words = ("--vcpus", "1", "--memory-mb", str(memory_mb), "--disk-gb", "1")
        boot = asyncio.create_task(berth("boot", *words, "--wait", "1h", "--json"))
        await until(lambda: waits(berth))
        request = boot_request(BootOptions(vcpus=1, memory_mb=memory_mb, disk_gb=1))
        made = await make_room(berth.bus, PlanRoom(request=request), 4, RoomListener())
        assert made.code == "", made
        answer = json.loads((await boot).splitlines()[-1])
        assert answer["status"] == "active"
        if memory_mb == 70_000:
            assert answer["host"] == HOSTS[1]
