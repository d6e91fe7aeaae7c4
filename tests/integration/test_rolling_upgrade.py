"""Workers of this version and of a synthetic next one share the work, in the order of docs/running.md."""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from berth.commands.run import migrate_all
from berth.loadtest import Load, LoadPlan
from berth.operations.audit import builds_by_cell
from berth.operations.guest_differences import compare_guests
from berth.settings import Settings
from bus.delivery.runner import Bus
from tests.support.berth_processes import settled
from tests.support.next_berth import next_version, workers_of
from tests.support.one_process import in_one_process, joined
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

CENTRAL = [("placement", ""), ("scheduler", "")]


async def test_two_versions_share_the_work_until_the_workers_of_one_are_killed(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        "amqp_url": amqp_url,
        "database_url": database_url,
        "exchange": bus_name,
        "cells": ["c1", "c2"],
        "hosts": 8,
        "fail": 0.2,
        "build_time": "exponential:0.1",
        "state_dir": str(tmp_path),
    }
    settings = Settings().having(**{**values, "cells": ("c1", "c2")})
    await migrate_all(settings, Console(quiet=True))
    this_version = [*CENTRAL, ("conductor", "c1"), ("conductor", "c2"), ("compute", "c2")]
    next_one = [*CENTRAL, ("conductor", "c1"), ("compute", "c1")]
    log = tmp_path / "next.log"
    tree = await asyncio.to_thread(next_version, tmp_path / "next")
    with workers_of(tree, next_one, values, log) as process:  # they migrate the databases further
        async with in_one_process(settings, this_version) as bus:
            assert (await booted(bus, 60)).keys() <= {"active", "error"}
            cells = await cells_used(settings)
            assert min(cells["c1"], cells["c2"]) > 0, cells
            async with asyncio.TaskGroup() as group:
                load = Load(bus, LoadPlan(boots=40, patience=60.0))
                loading = group.create_task(load.run())
                await until(lambda: load.ended > 5)
                process.send_signal(signal.SIGKILL)
                await until(lambda: process.poll() is not None)
                async with joined(settings, [("compute", "c1")]):
                    await until(loading.done, picture=lambda: load.boots)
                    assert loading.result().statuses.keys() <= {"active", "error"}
                    found = await settled(settings, builds=100)
                    assert found.breaches == []
                    assert found.builds.keys() <= {"active", "error"}
                    assert sum(found.builds.values()) == 100
                    # this version's agent reads the guests that the next version's agent stored
                    assert await compare_guests(settings) == ([], [])
                    assert await bus.transport.dead_letters(10) == []
    assert "Traceback" not in log.read_text()


async def booted(bus: Bus, boots: int) -> Counter[str]:
    return (await Load(bus, LoadPlan(boots=boots, patience=60.0)).run()).statuses


async def cells_used(settings: Settings) -> Counter[str]:
    known = await builds_by_cell(settings, settings.cell_names)
    return Counter(build.cell for build in known.builds.values())
