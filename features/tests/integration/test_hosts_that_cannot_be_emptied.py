"""A drain, the dry run of a maintenance window, and the window's page judge alike whether a host can be
emptied.
"""

import json
from collections.abc import AsyncIterator

import pytest

from features.maintenance import scheduler
from features.maintenance.messages import MAINTENANCE, FindMaintenance
from tests.support.living_berth import LivingBerth, Opened
from tests.support.visited_room import a_visited_room
from tests.support.waiting import until

FULL, OTHER = "c1-host00001", "c1-host00002"
LARGE = ("--vcpus", "1", "--memory-mb", "60000", "--disk-gb", "1")  # two fit on a host


@pytest.fixture
async def berth(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LivingBerth]:
    """Two hosts: two instances are on the first, and the second has capacity for one of them."""
    monkeypatch.setattr(scheduler, "STEP_SECONDS", 0.1)
    async with opened("c1", simulator={"hosts": 2}) as berth:
        await berth("boot", *LARGE, "--count", "2", "--host", FULL, "--wait")
        await berth("boot", *LARGE, "--host", OTHER, "--wait")
        yield berth


async def test_commands_and_page_name_the_instance_that_finds_no_host(berth: LivingBerth) -> None:
    drained = json.loads((await berth("host", "drain", FULL, "--dry-run", "--json", ends=1)).splitlines()[0])
    [(build, why)] = drained["stay"].items()
    later = (FULL, "--from", "+2h", "--until", "+3h")
    planned = await berth("host", "maintenance", "create", *later, "--dry-run", ends=1)
    sentence = f"1 of 2 instances would find no host now, such as {build}: {why}"
    assert sentence in " ".join(planned.split()), planned
    await berth("host", "maintenance", "create", *later)
    await until(lambda: _is_late(berth))
    assert build in await berth("host", "maintenance", "show", await _window(berth), ends=1)
    found = await berth.bus.asker(MAINTENANCE)(FindMaintenance())
    async with a_visited_room(sent={MAINTENANCE.name: found}) as room:
        page = await room.page("/maintenance")
    assert build in page and "in time" not in page


async def test_dry_runs_of_both_commands_show_where_each_instance_would_go(berth: LivingBerth) -> None:
    drained = json.loads((await berth("host", "drain", FULL, "--dry-run", "--json", ends=1)).splitlines()[0])
    [(build, to)], [(staying, why)] = drained["moves"].items(), drained["stay"].items()
    assert to == OTHER
    shown = await berth("host", "drain", FULL, "--dry-run", ends=1)
    assert f"{build} → {OTHER}" in shown
    later = (FULL, "--from", "+2h", "--for", "1h")
    planned = await berth("host", "maintenance", "create", *later, "--dry-run", ends=1)
    assert f"{build} → {OTHER}" in planned and f"would stay: {why}" in planned and staying in planned


async def test_a_host_that_can_be_emptied_is_in_time_for_both_commands_and_the_page(
    berth: LivingBerth,
) -> None:
    await berth("host", "drain", OTHER, "--dry-run", ends=1)  # the first host is full
    build = json.loads((await berth("instance", "list", "--host", FULL, "--json")).splitlines()[0])["build"]
    await berth("delete", build, "--wait")
    await berth("host", "drain", OTHER, "--dry-run")
    await berth("host", "maintenance", "create", OTHER, "--from", "+2h", "--until", "+3h", "--dry-run")
    await berth("host", "maintenance", "create", OTHER, "--from", "+2h", "--until", "+3h")
    await until(lambda: _is_estimated(berth))
    found = await berth.bus.asker(MAINTENANCE)(FindMaintenance())
    async with a_visited_room(sent={MAINTENANCE.name: found}) as room:
        page = await room.page("/maintenance")
    assert "in time" in page and "empty at" in page
    assert "in time" in await berth("host", "maintenance", "list")


async def _window(berth: LivingBerth) -> str:
    [state] = (await berth.bus.asker(MAINTENANCE)(FindMaintenance())).windows
    return state.window.id


async def _is_estimated(berth: LivingBerth) -> bool:
    [state] = (await berth.bus.asker(MAINTENANCE)(FindMaintenance())).windows
    return state.empty_at > 0


async def _is_late(berth: LivingBerth) -> bool:
    [state] = (await berth.bus.asker(MAINTENANCE)(FindMaintenance())).windows
    return all(host.late for host in state.hosts)
