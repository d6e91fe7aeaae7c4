"""The journal of the in-process broker on disk, also with write errors."""

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.protocol import Envelope, QueueSpec
from tests.support.envelopes import a_letter, an_envelope, number_in, publish, take
from tests.support.waiting import patience

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
    async with patience(), asyncio.TaskGroup() as group:
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


async def test_a_durable_queue_receives_what_is_published_before_its_reader_is_back(tmp_path: Path) -> None:
    before = LocalTransport(LocalBroker(journal=Journal(tmp_path / "bus.db")))
    await before.declare(QUEUE)  # and the process ends, closing nothing
    journal = Journal(tmp_path / "bus.db")
    after = LocalTransport(LocalBroker(journal=journal))
    await publish(after, an_envelope(1), expected=False)
    assert number_in(await take(await after.consume(QUEUE, 1))) == 1
    await journal.close()


async def test_a_queue_whose_declaration_cannot_be_read_is_declared_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bus.db"
    await a_full_journal(path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE queues SET spec = substr(spec, 1, 9)")
    journal = Journal(path)
    transport = LocalTransport(LocalBroker(journal=journal))
    assert "reader: its stored declaration is unreadable" in caplog.text
    inbox = await transport.consume(QUEUE, 10)
    await publish(transport, an_envelope(4))
    assert [number_in(await take(inbox)) for _ in range(3)] == [1, 2, 4]
    await journal.close()


async def a_full_journal(path: Path) -> None:
    journal = Journal(path)
    transport = LocalTransport(LocalBroker(journal=journal))
    await transport.declare(QUEUE)
    await publish(transport, an_envelope(1), an_envelope(2))
    await transport.delay(QUEUE.name, an_envelope(3), 3600.0)
    await transport.store_dead_letter(a_letter(1))
    await journal.close()


async def letters_in(path: Path) -> list[str]:
    journal = Journal(path)
    _, letters = journal.restore(0.0)
    await journal.close()
    return [letter.id for letter in letters]


def spoil(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        assert file.execute(statement).rowcount == 1


@pytest.mark.parametrize(
    "spoilt",
    [
        "UPDATE kept SET envelope = x'ff00' WHERE row = 1",
        "UPDATE kept SET envelope = 'not bytes' WHERE row = 1",
        "UPDATE kept SET envelope = 17 WHERE row = 1",
        """UPDATE kept SET envelope = CAST('{"id": 7}' AS BLOB) WHERE row = 1""",
        "UPDATE kept SET envelope = CAST(replace(hex(zeroblob(20000)), '0', '[') AS BLOB) WHERE row = 1",
        "UPDATE kept SET due = 'tomorrow' WHERE row = 1",
        "UPDATE kept SET queue = x'ff', envelope = x'' WHERE row = 1",
    ],
)
async def test_an_unreadable_row_is_a_dead_letter(tmp_path: Path, spoilt: str) -> None:
    await a_full_journal(path := tmp_path / "bus.db")
    spoil(path, spoilt)
    for _ in range(2):  # and it is so at the next start
        journal = Journal(path)
        transport = LocalTransport(LocalBroker(journal=journal))
        inbox = await transport.consume(QUEUE, 10)
        assert number_in(await take(inbox)) == 2
        assert inbox.get_nowait() is None
        buried, unreadable = await transport.dead_letters()
        assert buried == a_letter(1)
        assert unreadable.reason.startswith("its stored form is unreadable: ")
        assert unreadable.id == "journal-1"
        await transport.close()
        await journal.close()
    journal = Journal(path)
    assert await LocalTransport(LocalBroker(journal=journal)).remove_dead_letters(["journal-1"]) == 1
    await journal.close()
    assert await letters_in(path) == ["letter-1"]


@pytest.mark.parametrize("letter", ["x'ff00'", "'not bytes'", "17", """CAST('{"id": 7}' AS BLOB)"""])
async def test_an_unreadable_dead_letter_is_listed_with_that_reason(tmp_path: Path, letter: str) -> None:
    await a_full_journal(path := tmp_path / "bus.db")
    spoil(path, f"UPDATE dead SET letter = {letter}")
    journal = Journal(path)
    transport = LocalTransport(LocalBroker(journal=journal))
    (found,) = await transport.dead_letters()
    assert found.id == "letter-1"
    assert found.reason.startswith("the stored dead letter is unreadable: ")
    assert await transport.remove_dead_letters(["letter-1"]) == 1
    await journal.close()
    assert await letters_in(path) == []


async def test_an_invalid_journal_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(b"these are not the bytes of a database, however often one looks at them" * 100)
    with pytest.raises(
        Unavailable, match=r"bus\.db, with the undelivered messages, cannot be used: file is not"
    ):
        Journal(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_its_owner_may_read_the_journal(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "bus.db"
    path.touch(0o644)  # as an earlier berth left it
    before = os.umask(umask)
    try:
        journal = Journal(path)
    finally:
        os.umask(before)
    journal._file.execute("INSERT INTO dead VALUES ('a', '')")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"bus.db": 0o600, "bus.db-wal": 0o600, "bus.db-shm": 0o600}
    asyncio.run(journal.close())
