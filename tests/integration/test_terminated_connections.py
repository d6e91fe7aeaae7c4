"""PostgreSQL ends all connections again and again while requests are placed, wait, and are deleted.

No request is lost, no process ends, and the audit finds nothing left over.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from urllib.parse import urlsplit

import asyncpg
import pytest

from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request
from berth.operations.audit import audit
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildUnplaceable
from tests.support.berth_processes import Running, running
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

HOSTS = 6  # each has space for two instances
HALF = BootOptions(memory_mb=60_000)
OPEN = 4 * HOSTS  # requests without an end at a time: half of them wait
_TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class _Client:
    """Keeps OPEN requests without an end, and deletes each instance that becomes active."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.asked: set[str] = set()
        self.ends: dict[str, str] = {}  # build → how it ended
        self.deleted: set[str] = set()
        self.enough = False
        self._todo: asyncio.Queue[BuildEnded | None] = asyncio.Queue()

    @property
    def lost(self) -> set[str]:
        return self.asked - self.ends.keys()

    def on_ended(self, end: BuildEnded) -> None:
        if end.build not in self.ends:
            self.ends[end.build] = end.status
            self._todo.put_nowait(end)

    def on_unplaceable(self, message: BuildUnplaceable) -> None:
        self.ends |= dict.fromkeys(message.instances, "unplaceable")

    def on_deleted(self, message: BuildDeleted) -> None:
        self.deleted.add(message.build)

    async def work(self) -> None:
        for _ in range(OPEN):
            await self._ask()
        while True:
            end = await self._todo.get()
            if end is not None and end.status == "active":
                await self.bus.publish(BuildDeleteRequested(build=end.build, cell=end.cell))
            if not self.enough:
                await self._ask()

    async def _ask(self) -> None:
        request = boot_request(dataclasses.replace(HALF, wait="1h"))
        self.asked.update(request.instances)
        await self.bus.publish(request)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [10, 120])
async def test_no_request_is_lost_although_all_connections_to_postgresql_end_every_second(
    seconds: int, servers: Settings, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    settings = servers.having(simulator={"hosts": HOSTS, "build_time": "constant:0.05"}, build_timeout=60.0)
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client = _Client(berth.bus)
        takers: list[tuple[object, Callable[..., None]]] = [
            (topics.BUILD_ENDED.at(), client.on_ended),
            (topics.BUILD_UNPLACEABLE.at(), client.on_unplaceable),
            (topics.BUILD_DELETED.at(), client.on_deleted),
        ]
        background = [
            group.create_task(receive_all(await berth.bus.listen(address), take))  # type: ignore[arg-type]
            for address, take in takers
        ]
        background.append(group.create_task(client.work()))
        before = berth.starts()
        terminated = await _terminate(database_url, seconds)
        client.enough = True
        await until(lambda: not client.lost, "all requests have ended", 240.0, picture=lambda: client.lost)
        assert set(client.ends.values()) == {"active"}
        await until(lambda: client.ends.keys() <= client.deleted, "all are deleted", 120.0)
        await until(lambda: _is_clean(berth), "clean", 120.0, picture=lambda: audit(settings, settled=True))
        assert berth.starts() == before
        record_property("requests", len(client.asked))
        record_property("terminated", terminated)
        for task in background:
            task.cancel()


async def _terminate(database_url: str, seconds: int) -> int:
    """End all connections to the database every second; return how many connections were ended."""
    address = urlsplit(database_url.replace("+asyncpg", "")).geturl()
    connection, ended = await asyncpg.connect(address), 0
    try:
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            ended += len(await connection.fetch(_TERMINATE))
    finally:
        await connection.close()
    return ended


async def _is_clean(berth: Running) -> bool:
    found = await audit(berth.settings, settled=True)
    return found.clean and not found.types
