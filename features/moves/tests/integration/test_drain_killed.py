"""kill -9 of the command and of the scheduler in the middle of a drain: another scheduler continues it.

The agents of the source and the destination are separate processes that log which guests run. Every instance
leaves the host once, and no guest runs twice.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from berth.configuration import EFFECTIVE_ENV
from berth.kit import Settings, host_named
from bus.errors import Unavailable, Unroutable
from features.moves.messages import FIND_PLANS, FindPlans, PlanStands
from features.moves.tests.integration.moving_site import DESTINATION, SOURCE, MovingSite, moving_site
from tests.support.berth_processes import LAYOUTS, ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.soak]  # the simulation does the same with every process


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_drain_survives_kills_of_its_command_and_its_scheduler(
    layout: str, servers: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = servers.having(
        simulator={
            "hosts": 6,
            "agents_per_cell": 2,
            "build_time": "constant:0.1",
            "move_time": "constant:0.3",
        },
        layout=layout,
    )
    async with moving_site(settings, tmp_path, monkeypatch) as site:
        host = site.hosts[SOURCE][0]
        builds = await site.boot(8, host)
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "berth", "host", "drain", host, "--max", "2", "--cold",
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                EFFECTIVE_ENV: msgspec.json.encode(settings).decode(),
            },
        )  # fmt: skip
        await until(lambda: site.ends, "an instance has left the host", 60.0)
        command.kill()
        await command.wait()
        await site.kill("scheduler", f"compute.c1.{DESTINATION}")
        drained: list[PlanStands] = []

        async def is_over() -> bool:
            drained[:] = [each for each in await _plans(site, host) if each.ended]
            return bool(drained)

        await until(is_over, "the host is empty", 120.0, picture=lambda: _plans(site, host))
        [plan] = drained
        assert (plan.code, plan.moved, plan.stay) == ("", len(builds), {})
        assert len(site.ends) == len(builds)  # each was moved once
        await site.clean()
        guests = site.notes.now()
        assert {build: len(guests.get(build, ())) for build in builds} == dict.fromkeys(builds, 1)
        assert [twice for build in builds for twice in site.notes.at_once(build)] == []


async def _plans(site: MovingSite, host: str) -> tuple[PlanStands, ...]:
    """Return the plans that empty a host; a scheduler that was killed answers when it runs again."""
    while True:
        with suppress(Unavailable, Unroutable):
            found = await host_named(site.bus, host)
            return (await site.bus.asker(FIND_PLANS)(FindPlans(root=found.id))).plans
