"""Workers of this version and of an earlier commit share the work, in the order of docs/running.md."""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from berth.audit import builds_by_cell
from berth.commands.run import migrate_all
from berth.guest_differences import compare_guests
from berth.loadtest import Load, LoadPlan
from berth.settings import Settings
from bus.delivery.runner import Bus
from tests.support.berth_processes import settled
from tests.support.older_berth import checked_out, older_workers
from tests.support.one_process import in_one_process, joined
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

# Before moves, keepers, handovers, adoption: three migrations of the scheduler's and the cells' and one of
# placement's have come since, and a third of the messages.
BEFORE_MOVES = "ee52c7fcf54d5a09642366c1c9076b6395ef30fe"
# Before an instance could go to another cell.
BEFORE_HANDOVERS = "af6fe9343ef2b07b5b68a94438c10f37225baa1b"


@pytest.mark.parametrize(
    "commit",
    [
        pytest.param(BEFORE_MOVES, id="before-moves"),
        pytest.param(BEFORE_HANDOVERS, id="before-handovers", marks=pytest.mark.soak),
    ],
)
async def test_boots_go_on_while_workers_of_two_versions_share_the_work_and_the_older_go(
    commit: str, amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    tree = checked_out(commit, tmp_path)
    said: dict[str, Any] = {
        "amqp_url": amqp_url,
        "database_url": database_url,
        "exchange": bus_name,
        "cells": ["c1", "c2"],
        "hosts": 8,
        "fail": 0.2,
        "build_time": "exponential:0.1",
        "state_dir": str(tmp_path),
    }
    settings = Settings().having(**{**said, "cells": ("c1", "c2")})
    await migrate_all(settings, Console(quiet=True))  # first of all
    older = [("placement", ""), ("scheduler", ""), ("conductor", "c1"), ("compute", "c1")]
    newer = [
        ("placement", ""),
        ("scheduler", ""),
        ("conductor", "c1"),
        ("conductor", "c2"),
        ("compute", "c2"),
    ]
    with older_workers(tree, older, said, tmp_path / "older.log") as process:
        async with in_one_process(settings, newer) as bus:
            assert (await booted(bus, 60)).keys() <= {"active", "error"}
            cells = await cells_used(settings)
            assert min(cells["c1"], cells["c2"]) > 0, cells
            async with asyncio.TaskGroup() as group:
                load = Load(bus, LoadPlan(boots=40, patience=60.0))
                loading = group.create_task(load.run())
                await until(lambda: load.ended > 5)
                process.send_signal(signal.SIGKILL)  # in the middle of it
                await until(lambda: process.poll() is not None)
                async with joined(settings, [("compute", "c1")]):
                    await until(loading.done, picture=lambda: load.boots)
                    assert loading.result().statuses.keys() <= {"active", "error"}
                    found = await settled(settings, builds=100)
                    assert found.breaches == []
                    assert found.builds.keys() <= {"active", "error"}
                    assert sum(found.builds.values()) == 100
                    # what an older agent wrote down of its guests the newer one has read
                    assert await compare_guests(settings) == ([], [])
                    assert await bus.transport.dead_letters(10) == []
    assert "Traceback" not in (tmp_path / "older.log").read_text()


async def booted(bus: Bus, boots: int) -> Counter[str]:
    return (await Load(bus, LoadPlan(boots=boots, patience=60.0)).run()).statuses


async def cells_used(settings: Settings) -> Counter[str]:
    known = await builds_by_cell(settings, settings.cell_names)
    return Counter(build.cell for build in known.builds.values())
