"""What the in-process broker keeps on disk, also when the disk will not take it for a while."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bus.local.broker import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.protocol import Envelope, QueueSpec
from tests.envelopes import DEADLINE, an_envelope, publish

QUEUE = QueueSpec("reader", ("build.requested",))


def large(number: int) -> Envelope:
    return an_envelope(number, body=msgspec.Raw(b'{"n":%d,"x":"%s"}' % (number, b"x" * 50_000)))


async def test_on_a_full_disk_publishers_wait_and_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bus.local.journal.RETRY_SECONDS", 0.01)
    path = tmp_path / "bus.db"
    journal = Journal(path)
    transport = LocalTransport(LocalBroker(journal=journal))
    await transport.declare(QUEUE)
    await publish(transport, large(1))

    def room(pages: int) -> None:
        journal._file.execute(f"PRAGMA max_page_count={pages}")

    room(20)
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        publishing = [group.create_task(publish(transport, large(number))) for number in (2, 3)]
        while caplog.text.count("disk is full") < 2:
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in publishing)
        room(100_000)
    await publish(transport, large(4))

    def kept() -> list[int]:
        with closing(sqlite3.connect(path)) as other:
            found = other.execute("SELECT envelope FROM kept ORDER BY row").fetchall()
        return [msgspec.json.decode(envelope)["body"]["n"] for (envelope,) in found]

    assert kept() == [1, 2, 3, 4]  # as the queue has them
    await journal.close()
