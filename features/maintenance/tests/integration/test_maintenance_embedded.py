"""`berth host maintenance` in an embedded berth: hosts are drained for a window, within the budget, and
opened.
"""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth.kit import host_named
from berth.kit.testing import state_of
from features.maintenance import scheduler
from features.maintenance.controller import MaintenanceController, MaintenanceNeeds
from features.maintenance.core.maintenance import UNMEASURED
from features.maintenance.hosts import HostView
from features.maintenance.settings import MaintenanceSettings
from features.maintenance.windows import MaintenanceWindows
from features.moves import emptying, plans
from tests.support.living_berth import LivingBerth, Opened, opening_berths
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

HOSTS = ["c1-host00001", "c1-host00002", "c1-host00003"]
CLOSED = "disabled, because of maintenance"


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opened:
    monkeypatch.setattr(scheduler, "STEP_SECONDS", 0.1)
    monkeypatch.setattr(emptying, "LIST_SECONDS", 0.1)
    monkeypatch.setattr(plans, "STEP_SECONDS", 0.1)
    return opening_berths(tmp_path, monkeypatch, capsys)


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    """Three hosts in one rack; three instances are on the first, one on the second."""
    async with opened("c1", simulator={"hosts": 3, "labels": {"rack": 3.0}}) as berth:
        await berth("boot", "--count", "3", "--host", HOSTS[0], "--wait")
        await berth("boot", "--host", HOSTS[1], "--wait")
        yield berth


async def window(berth: LivingBerth) -> dict[str, Any]:
    [line] = (await berth("host", "maintenance", "list", "--all", "--json")).splitlines()
    return dict(json.loads(line))


async def phases(berth: LivingBerth) -> list[str]:
    return [host["phase"] for host in (await window(berth))["hosts"]]


async def instances_on(berth: LivingBerth, host: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (await berth("instance", "list", "--json")).splitlines()]
    return [row for row in rows if row["host"] == host]


async def state(berth: LivingBerth, host: str) -> str:
    return state_of(await host_named(berth.bus, host))


async def test_hosts_of_a_rack_are_drained_one_after_the_other_and_opened(berth: LivingBerth) -> None:
    rack = ("--label", "rack=rack1", "--until", "+1h", "--budget", "1")
    planned = await berth("host", "maintenance", "create", *rack, "--dry-run")
    assert f"{HOSTS[0]}  3 instances, drained first" in planned, planned
    assert f"{HOSTS[1]}  1 instance, drained when the budget allows it" in planned
    assert "about 60 s (assumed) for 3 moves, 4 at a time, and begins immediately" in planned
    assert not await berth("host", "maintenance", "list", "--json")
    reply = await berth("host", "maintenance", "create", *rack)
    assert "3 hosts" in reply, reply
    await until(lambda: reached(berth, ["empty", "planned", "planned"]), picture=lambda: phases(berth))
    assert await state(berth, HOSTS[0]) == CLOSED and await state(berth, HOSTS[1]) == "open"
    assert await instances_on(berth, HOSTS[0]) == []
    await berth("host", "maintenance", "finish", HOSTS[0])
    await until(lambda: reached(berth, ["ended", "empty", "planned"]), picture=lambda: phases(berth))
    assert await state(berth, HOSTS[0]) == "open" and await state(berth, HOSTS[1]) == CLOSED
    id_ = (await window(berth))["window"]["id"]
    await berth(
        "host", "maintenance", "set", id_[:6], "--until", "+2h", "--budget", "2", "--reason", "new disks"
    )
    await until(lambda: reached(berth, ["ended", "empty", "empty"]), picture=lambda: phases(berth))
    await berth("host", "maintenance", "cancel", id_[:6])
    await until(lambda: reached(berth, ["ended"] * 3), picture=lambda: phases(berth))
    assert {await state(berth, host) for host in HOSTS} == {"open"}
    shown = await berth("host", "maintenance", "show", id_[:6])
    assert "cancelled" in shown and f"empty: {HOSTS[0]}" in shown and "done" in shown, shown
    await berth.clean()


async def reached(berth: LivingBerth, expected: list[str]) -> bool:
    return await phases(berth) == expected


async def test_an_instance_that_fits_nowhere_makes_its_host_late(berth: LivingBerth) -> None:
    await berth("host", "disable", HOSTS[2])
    await berth("host", "maintenance", "create", *HOSTS[:2], "--until", "+1h")
    await until(lambda: is_late(berth, "would find no host now"), picture=lambda: window(berth))
    await until(lambda: is_late(berth, "refused", phase="draining"), picture=lambda: window(berth))
    shown = await berth("host", "maintenance", "show", (await window(berth))["window"]["id"], ends=1)
    assert "late, draining" in shown, shown
    [instance] = await instances_on(berth, HOSTS[1])
    assert "maintenance window" in await berth("why", instance["build"])


async def is_late(berth: LivingBerth, why: str, phase: str = "") -> bool:
    hosts = (await window(berth))["hosts"]
    return all(host["late"] and why in host["note"] and phase in ("", host["phase"]) for host in hosts)


async def test_an_operator_who_enables_a_host_takes_it_out_of_its_window(berth: LivingBerth) -> None:
    await berth("host", "disable", HOSTS[2])
    await berth("host", "maintenance", "create", HOSTS[0], "--until", "+1h", "--reason", "new disks")
    await until(lambda: has_phase(berth, "draining"), picture=lambda: phases(berth))
    await berth("host", "enable", HOSTS[0], "--because", "maintenance")
    await until(lambda: has_phase(berth, "opened"), picture=lambda: phases(berth))


async def has_phase(berth: LivingBerth, phase: str) -> bool:
    return phase in await phases(berth)


async def test_the_drain_for_a_later_window_begins_so_early_that_its_host_is_empty_in_time(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of maintenance windows shows the time that the test sets."""
    clock, steps = TurnedClock(time.time()), 0

    class TurnedWindows(MaintenanceWindows):
        async def step(self, view: HostView) -> None:
            nonlocal steps
            await super().step(view)
            steps += 1

    def controller(needs: MaintenanceNeeds, settings: MaintenanceSettings) -> MaintenanceController:
        made = MaintenanceController(needs, settings)
        parts = needs.database, needs.placement, needs.cells, needs.plans, clock.clock
        made.windows = TurnedWindows(*parts, settings.lead)
        return made

    monkeypatch.setattr(scheduler, "MaintenanceController", controller)
    async with opened("c1", simulator={"hosts": 2}, maintenance_lead=0.0) as berth:
        await berth("boot", "--count", "3", "--host", HOSTS[0], "--wait")
        await berth("host", "maintenance", "create", HOSTS[0], "--from", "+2h", "--until", "+3h")
        await until(lambda: drain_is_planned(berth), picture=lambda: window(berth))
        planned = await window(berth)
        begins = planned["window"]["begins"]
        assert planned["drain_begins"] == begins - 1.5 * UNMEASURED
        clock.now, before = planned["drain_begins"] - 1, steps
        await until(lambda: steps >= before + 2)  # the first may have read the clock earlier
        assert await phases(berth) == ["planned"] and await state(berth, HOSTS[0]) == "open"
        clock.now += 1
        await until(lambda: has_phase(berth, "empty"), picture=lambda: window(berth))
        assert await instances_on(berth, HOSTS[0]) == [] and await state(berth, HOSTS[0]) == CLOSED
        [host] = (await window(berth))["hosts"]
        assert host["since"] < begins and not host["late"]
        clock.now = planned["window"]["ends"]
        await until(lambda: has_phase(berth, "ended"), picture=lambda: window(berth))
        assert await state(berth, HOSTS[0]) == "open"


async def drain_is_planned(berth: LivingBerth) -> bool:
    return bool((await window(berth))["drain_begins"])
