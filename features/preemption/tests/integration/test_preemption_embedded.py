"""Preemption in an embedded berth: builds of higher priority replace instances of lower priority."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.living_berth import LivingBerth, Opened
from tests.support.waiting import until

HALF = ("--vcpus", "1", "--memory-mb", "60000", "--disk-gb", "1")
WHOLE = ("--vcpus", "1", "--memory-mb", "120000", "--disk-gb", "1")


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    """Two hosts of 130,560 MB, and the classes batch (1, requeued), web (4) and production (7)."""
    async with opened("c1", simulator={"hosts": 2}) as berth:
        await berth("policy", "priority", "set", "batch", "--value", "1", "--requeue")
        await berth("policy", "priority", "set", "web", "--value", "4", "--grace", "1s")
        await berth("policy", "priority", "set", "production", "--value", "7", "--preempts", "--budget", "3")
        yield berth


async def boot(berth: LivingBerth, *words: str, priority: int) -> str:
    return (await berth.boot(*words, "--priority", str(priority)))[0]


async def statuses(berth: LivingBerth) -> dict[str, str]:
    rows = [json.loads(line) for line in (await berth("instance", "list", "--json")).splitlines()]
    return {row["build"]: row["status"] for row in rows}


async def test_the_lowest_priority_is_replaced_and_placed_again_later(berth: LivingBerth) -> None:
    web = [await boot(berth, HALF[0], *HALF[1:], priority=4) for _ in range(3)]
    batch = await boot(berth, *HALF, priority=1)
    assert await boot_fails(berth, priority=0)
    shown = await berth("request", "what-if", *HALF, "--priority", "7", "--preempt")
    assert f"it would replace {batch} of priority 1: shelved" in shown
    assert (await statuses(berth))[batch] == "active"
    await berth("project", "quota", "set", "default", "instances=4")
    over = await berth("request", "what-if", *HALF, "--priority", "7", "--preempt", ends=1)
    assert "instances limited to 4, 4 used, 1 more asked" in over
    await berth("project", "quota", "set", "default", "default")

    before = time.time()
    high = await boot(berth, *HALF, priority=7)
    assert await statuses(berth) == {**dict.fromkeys([*web, high], "active"), batch: "shelved"}
    assert f"preempted by {high}" in await berth("why", batch)
    assert f"preempted {batch} (priority 1)" in await berth("why", high)
    waits = await berth.waits(batch)
    assert (waits.move, waits.priority) == ("unshelve", 1)
    assert waits.since < before  # the time of its first request

    await berth("delete", web[0], "--wait")

    async def back() -> bool:
        return (await statuses(berth)).get(batch) == "active"

    await until(back)
    await berth.clean()


async def test_another_class_is_tested_on_recorded_decisions(berth: LivingBerth) -> None:
    kept = [await boot(berth, *WHOLE, priority=1) for _ in range(2)]
    assert await boot_fails(berth, priority=5)
    change = ("--with", "priority.new.value=5", "--with", "priority.new.preempts=true")
    sent = await berth("policy", "test", "--since", "1h", *change, "--json", ends=1)
    found = {row["build"]: row for row in map(json.loads, sent.splitlines())}
    assert [(found[build]["verdict"], found[build]["by"]) for build in kept] == [("same", "record")] * 2
    [refused] = [row for build, row in found.items() if build not in kept]
    assert (refused["verdict"], refused["replaces"]) == ("placed", 1)
    assert await statuses(berth) == dict.fromkeys(kept, "active")
    await berth("policy", "test", "--since", "1h", *change, "--with", "priority.new.preempts=false")


async def boot_fails(berth: LivingBerth, *, priority: int) -> bool:
    return "no host" in await berth("boot", *HALF, "--priority", str(priority), "--wait", ends=1)


async def test_a_waiting_request_preempts_when_its_class_permits_it(berth: LivingBerth) -> None:
    await boot(berth, *WHOLE, priority=1)
    await boot(berth, *WHOLE, priority=1)
    await berth("policy", "priority", "delete", "production")
    booting = asyncio.create_task(berth("boot", *WHOLE, "--priority", "7", "--wait", "1h", "--json"))

    async def waiting() -> bool:
        return "7" in await berth("request", "list")

    await until(waiting)
    await berth("policy", "priority", "set", "urgent", "--value", "7", "--preempts")
    assert json.loads((await booting).splitlines()[-1])["status"] == "active"
