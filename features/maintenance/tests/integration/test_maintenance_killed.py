"""kill -9 of the maintenance controller during a drain and during an automatic evacuation.

Agents are separate processes that log which guests run. No instance is lost, none is moved twice from one
host, and no guest runs twice, even after the evacuated host returns.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from berth.kit import Settings, forcing_down, host_named
from berth.kit.testing import state_of
from bus.clock import Clock
from bus.errors import Unavailable, Unroutable
from features.maintenance.messages import AddWindow, HostEvacuation, MaintenanceFound, MaintenanceWindow
from features.maintenance.operations import edit_maintenance, find_maintenance
from features.maintenance.tests.integration.hasty_scheduler import HastySupervisor
from features.moves.tests.integration.moving_site import MovingSite, moving_site
from tests.support.berth_processes import LAYOUTS
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(params=LAYOUTS)
def settings(request: pytest.FixtureRequest, servers: Settings) -> Settings:
    return servers.having(
        simulator={
            "hosts": 4,
            "agents_per_cell": 4,
            "build_time": "constant:0.1",
            "move_time": "constant:0.3",
        },
        heartbeat=0.5,
        maintenance_lead=0.0,
        evacuation_after=2.0,
        layout=request.param,
    )


async def boot(site: MovingSite, hosts: Sequence[str], count: int) -> list[str]:
    return [build for host in hosts for build in await site.boot(count, host)]


async def moved_once(site: MovingSite, about: MaintenanceFound, builds: Sequence[str]) -> None:
    """Assert that every instance runs once, and was moved once from each host that it left."""
    done = Counter((move.build, move.root) for move in about.moves if move.result == "done")
    assert {build for build, _ in done} >= {*builds} and {*done.values()} == {1}, about.moves
    ends = [end for ends in site.ends.values() for end in ends if end.end == "done"]
    assert Counter({end.move: 1 for end in ends}).total() == done.total()
    await site.clean()
    guests = site.notes.now()
    assert {build: len(guests.get(build, ())) for build in builds} == dict.fromkeys(builds, 1)
    assert [twice for build in builds for twice in site.notes.at_once(build)] == []


@pytest.mark.soak
async def test_a_drain_survives_kills_of_every_worker(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with moving_site(settings, tmp_path, monkeypatch, HastySupervisor) as site:
        names = [site.hosts[f"c1-agent{number}"][0] for number in (1, 2)]
        builds = await boot(site, names, 3)
        roots = tuple([(await host_named(site.bus, name)).id for name in names])
        now = Clock().now()
        window = MaintenanceWindow(
            id=Clock().uuid(), roots=roots, begins=now, ends=now + 3600, moves=2, cold=True
        )
        await edit_maintenance(site.bus, AddWindow(window=window))
        await until(lambda: site.ends, "a move has ended", 60.0)
        await site.kill("scheduler")
        await asyncio.sleep(0.5)
        await site.kill("placement", "conductor.c1")

        async def all_empty() -> bool:
            [state] = (await found(site)).windows
            return all(host.phase == "empty" for host in state.hosts)

        await until(all_empty, "the hosts are empty", 180.0, picture=lambda: found(site))
        await moved_once(site, await found(site, window.id), builds)
        states = {state_of(await host_named(site.bus, name)) for name in names}
        assert states == {"disabled, because of maintenance"}


def by_hook(directory: Path, calls: Path) -> dict[str, Any]:
    """Return the settings of a hook that confirms 1 s after its call that a host is off."""
    return {"evacuation_hook": (_script(directory / "fence", f'echo "$1 $FENCE_CELL" >> {calls}; sleep 1'),)}


def by_quorum(directory: Path, calls: Path) -> dict[str, Any]:
    """Return the settings of a quorum of agents that reach every host except the first one, for 2 s."""
    probe = _script(
        directory / "probe", f'test "$1" != c1-host00001 || {{ echo "$1 c1" >> {calls}; false; }}'
    )
    return {"evacuation_quorum": 2, "evacuation_fence_seconds": 2.0, "probe_command": (probe,)}


def _script(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.soak
@pytest.mark.parametrize("confirmed", [by_hook, by_quorum])
async def test_an_evacuation_survives_kills_and_the_return_of_the_host(
    confirmed: Callable[[Path, Path], dict[str, Any]],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, agent, role = tmp_path / "calls", "c1-agent1", "compute.c1.c1-agent1"
    settings = settings.having(**confirmed(tmp_path, calls))
    async with moving_site(settings, tmp_path, monkeypatch, HastySupervisor) as site:
        [name] = site.hosts[agent]
        builds = await boot(site, [name], 8)
        await site.berth.signal(role, signal.SIGSTOP)
        site.notes.stands_still(agent)  # the host has lost power
        await until(calls.exists, "the host is being fenced", 120.0)
        await site.kill("scheduler")
        await until(lambda: site.ends, "an instance is evacuated", 120.0)
        await site.kill("scheduler", "conductor.c1")
        dead = await evacuated(site)
        assert {*calls.read_text().splitlines()} == {f"{name} c1"} and dead.host == name
        await site.berth.signal(role, signal.SIGCONT)
        await forcing_down(False)(site.bus, await host_named(site.bus, name))
        await moved_once(site, await found(site, dead.id), builds)


async def evacuated(site: MovingSite) -> HostEvacuation:
    rows: list[HostEvacuation] = []

    async def is_done() -> bool:
        # a late heartbeat of the stopped agent may end a first attempt before anything has moved
        rows[:] = [dead for dead in (await found(site)).evacuations if dead.state != "returned"]
        return [dead.state for dead in rows] == ["done"]

    await until(is_done, "evacuated", 180.0, picture=lambda: found(site))
    return rows[0]


async def found(site: MovingSite, subject: str = "") -> MaintenanceFound:
    """Return the windows and evacuations; a scheduler that was killed answers when it runs again."""
    while True:
        with suppress(Unavailable, Unroutable):
            return await find_maintenance(site.bus, ended=True, subject=subject)
