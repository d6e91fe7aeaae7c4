"""Builds are created and deleted for a long time: rows, files and memory do not grow."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from berth.settings import Settings
from tests.support.berth_processes import Running, running, settled
from tests.support.churning_client import RATE, ChurningClient
from tests.support.waiting import until

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.services, pytest.mark.soak]

BUILDS = 200_000
KEPT_SECONDS = 60.0
TENTHS = 10
# A sample differs from the next by the rows of the seconds between two prunings, and by unreturned memory.
GROWTH = 1.25
SLACK_ROWS = 8_000
SLACK_BYTES = 10_000_000


@dataclass(frozen=True)
class Stored:
    """The rows of each table, the bytes of all agents' files, and the memory of each process."""

    rows: Mapping[str, int]
    files: int
    memory: Mapping[str, int]

    def beyond(self, first: "Stored") -> list[str]:
        """Return what has grown since the first sample."""
        rows = [
            f"{table}: {first.rows.get(table, 0)} -> {rows} rows"
            for table, rows in self.rows.items()
            if rows > GROWTH * first.rows.get(table, 0) + SLACK_ROWS
        ]
        sizes = {"files": (first.files, self.files)}
        sizes |= {name: (first.memory[name], size) for name, size in self.memory.items()}
        return rows + [
            f"{name}: {before} -> {now} bytes"
            for name, (before, now) in sizes.items()
            if now > GROWTH * before + SLACK_BYTES
        ]


async def stored(database_url: str, directory: Path, berth: Running) -> Stored:
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        tables = await connection.fetch(
            "SELECT schemaname, relname FROM pg_stat_user_tables ORDER BY schemaname, relname"
        )
        rows = {
            f"{schema}.{table}": await connection.fetchval(f'SELECT count(*) FROM "{schema}"."{table}"')
            for schema, table in tables
        }
    finally:
        await connection.close()
    files = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    processes = {name: process[0] for name, process in berth.supervisor.processes().items()}
    return Stored(rows, files, {name: _memory(process) for name, process in processes.items()})


def _memory(process: int) -> int:
    [line] = [x for x in Path(f"/proc/{process}/status").read_text().splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def test_rows_files_and_memory_stay_level(servers: Settings, database_url: str, tmp_path: Path) -> None:
    settings = servers.having(
        cells=("c1", "c2"),
        simulator={"hosts": 400, "fail": 0.05, "build_time": "exponential:0.2"},
        state_dir=str(tmp_path),
        keep=KEPT_SECONDS,
        keep_changes=2_000,
        log_level="warning",
    )
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        churn, samples = ChurningClient(berth, BUILDS), list[Stored]()
        readers = await churn.listen(group)
        group.create_task(churn.request())
        for tenth in range(1, TENTHS + 1):
            await until(
                lambda due=BUILDS * tenth // TENTHS: churn.ended >= due,  # type: ignore[misc]
                seconds=2 * BUILDS / RATE,
            )
            samples.append(await stored(database_url, tmp_path, berth))
            sample = samples[-1]
            log.warning(
                "%d builds: %d rows, %d bytes of files, %d bytes of memory",
                churn.ended, sum(sample.rows.values()), sample.files, sum(sample.memory.values()),
            )  # fmt: skip
        assert churn.changed == []
        assert len(churn.statuses) + len(churn.refused) == BUILDS
        for reader in readers:
            reader.cancel()
        audit = await settled(settings)
        assert audit.clean, audit.breaches
        growth = {
            tenth: beyond
            for tenth, sample in enumerate(samples[1:], 2)
            if (beyond := sample.beyond(samples[0]))
        }
        assert not growth
