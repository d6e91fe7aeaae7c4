"""Builds are created and deleted for a long time: rows, files and memory do not grow."""

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from berth.kit.publishing import publish
from berth.loadtest import mixed
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Listener
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from tests.support.berth_processes import Running, running, settled
from tests.support.waiting import receive_all, until

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.services, pytest.mark.soak]

BUILDS = 200_000
RATE = 300.0  # requests a second at most
OPEN = 1_500  # requested builds that are not deleted, at most
KEPT_SECONDS = 60.0
REPLY_TO = "churn"
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


@dataclass
class ChurningClient:
    """A client that requests builds at a fixed rate, and deletes each as soon as it is active."""

    berth: Running
    asked: int = 0
    statuses: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)  # builds with two different ends
    refused: set[str] = field(default_factory=set)

    async def request(self) -> None:
        began, chance, flavors = monotonic(), random.Random(1), mixed(20)
        bus = self.berth.bus
        while self.asked < BUILDS:
            due = min(int(RATE * (monotonic() - began)) + 1, BUILDS, self.ended + OPEN) - self.asked
            builds = [bus.clock.uuid() for _ in range(max(0, min(due, 128)))]
            requests = [
                BuildRequested(
                    request=build, instances=(build,), flavor=chance.choice(flavors), reply_to=REPLY_TO
                )
                for build in builds
            ]
            await publish(bus, *requests)
            self.asked += len(builds)
            await asyncio.sleep(0.01)

    async def listen(self, group: asyncio.TaskGroup) -> list["asyncio.Task[None]"]:
        """Bind the client's queues, then delete active builds and count ends until cancelled."""
        bus = self.berth.bus
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=REPLY_TO), 5000)
        deleted = await bus.listen(topics.BUILD_DELETED.at(reply_to=REPLY_TO), 5000)
        refused = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=REPLY_TO), 5000)
        readers = (
            self._delete(ended),
            receive_all(deleted, lambda end: self.deleted.add(end.build)),
            receive_all(refused, lambda end: self.refused.update(end.instances)),
        )
        return [group.create_task(reader) for reader in readers]

    async def _delete(self, ended: Listener[BuildEnded]) -> None:
        while True:
            end = await ended.get()
            before = self.statuses.setdefault(end.build, end.status)
            if before != end.status:
                self.changed.append(end.build)
            await publish(
                self.berth.bus, BuildDeleteRequested(build=end.build, cell=end.cell, reply_to=REPLY_TO)
            )

    @property
    def ended(self) -> int:
        return len(self.deleted) + len(self.refused)


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
        churn, samples = ChurningClient(berth), list[Stored]()
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
