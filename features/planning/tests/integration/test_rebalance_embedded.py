"""`berth move rebalance` in an embedded berth: once, as a standing plan, and stopped."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from berth.kit.testing import FEATURES
from features.planning import rebalancing
from tests.support.living_berth import LivingBerth, Opened
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("steps_follow_each_other")

VALUES_FREE_CAPACITY = pytest.mark.skipif(
    "fragmentation" not in FEATURES, reason="the feature that values free capacity is not listed"
)
HOSTS = ["c1-host00001", "c1-host00002", "c1-host00003"]
MEMORY = ("--class", "MEMORY_MB")


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    """Three hosts of 130,560 MB; six instances of 20,000 MB are on the first."""
    async with opened("c1", simulator={"hosts": 3}) as berth:
        await berth("boot", "--memory-mb", "20000", "--count", "6", "--host", HOSTS[0], "--wait")
        yield berth


async def counts(berth: LivingBerth) -> list[int]:
    rows = [json.loads(line) for line in (await berth("instance", "list", "--json")).splitlines()]
    on = Counter(row["host"] for row in rows)
    return [on[host] for host in HOSTS]


async def test_a_rebalancing_moves_instances_once(berth: LivingBerth) -> None:
    shown = await berth("move", "rebalance", *MEMORY, "--dry-run")
    assert "cell c1: spread 43.3% → 0.0%" in shown and "4 moves" in shown
    assert await counts(berth) == [6, 0, 0]
    assert "4 moved, 0 moved back, 0 not moved" in await berth("move", "rebalance", *MEMORY)
    assert await counts(berth) == [2, 2, 2]
    assert (await berth("move", "list", "--all", "--json")).count('"note":"rebalances the hosts"') == 4
    assert "no move gains enough" in await berth("move", "rebalance", *MEMORY)
    await berth.clean()


async def test_a_stop_ends_a_standing_plan(berth: LivingBerth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancing, "CALM_SECONDS", 0.05)
    monkeypatch.setattr(rebalancing, "QUIET_SECONDS", 0.05)
    keeping = asyncio.create_task(
        berth("move", "rebalance", *MEMORY, "--budget", "2", "--keep", "--hold", "0s")
    )
    await until(lambda: _balanced(berth))
    assert not keeping.done()
    state = json.loads(await berth("move", "rebalance", "status", "--json"))
    assert (state["keeps_on"], state["stopping"]) == (True, False)
    would = await berth("move", "rebalance", "stop", "--dry-run")
    assert f"plan {state['plan']} would begin no further move" in would
    assert not json.loads(await berth("move", "rebalance", "status", "--json"))["stopping"]
    assert f"plan {state['plan']} begins no further move" in await berth("move", "rebalance", "stop")
    async with asyncio.timeout(30):
        shown = await keeping
    assert shown.count(" moved to ") == 4 and "rebalancing is stopped" in shown
    assert await berth("move", "rebalance", "status") == "no rebalancing runs\n"
    assert "no move gains enough" in await berth("move", "rebalance", *MEMORY)


async def _balanced(berth: LivingBerth) -> bool:
    return await counts(berth) == [2, 2, 2]


@VALUES_FREE_CAPACITY
async def test_moves_make_more_usable_where_the_profile_prefers_it(opened: Opened) -> None:
    # NUMA nodes of 48,640 MB: two instances of 24,000 MB fit on an empty node, and one next to 4,000 MB.
    numa = {"hosts": 3, "drivers": ("numa",)}
    async with opened("c1", placement_profile="balanced", simulator=numa) as berth:
        for memory_mb, count, host in (("4000", "1", 0), ("4000", "1", 1), ("24000", "2", 2)):
            size = ("--memory-mb", memory_mb, "--extra-spec", "hw:numa_nodes=1", "--count", count)
            await berth("boot", *size, "--host", HOSTS[host], "--wait")
        shown = await berth("move", "rebalance", "--gain", "0.02")
        before, after = re.findall(r"cell c1: ([\d.]+) → ([\d.]+) instances", shown)[0]
        assert float(before) < float(after) and "1 moved, 0 moved back, 0 not moved" in shown
        assert sorted(await counts(berth)) == [0, 2, 2]
        # the instance is on the node of the other one: so many fit as were planned
        shown = await berth("move", "rebalance", "--gain", "0.02")
        assert f"cell c1: {after} instances of a usual shape fit" in shown and "no move gains enough" in shown
        await berth.clean()
