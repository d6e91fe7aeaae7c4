"""Stores the in-process broker's queues, messages and dead letters in one SQLite file. Entries are
committed in batches on another thread. If a crash loses the removal of a message, the message is only
redelivered.
"""

import asyncio
import itertools
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bus.errors import NOT_JSON, Unavailable
from bus.protocol import UNCOUNTED, DeadLetter, Envelope, QueueSpec
from bus.sql.sqlite import make_private

RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept
    (row INTEGER PRIMARY KEY, queue TEXT NOT NULL, envelope BLOB NOT NULL, due REAL, delivered INTEGER);
CREATE TABLE IF NOT EXISTS queues (name TEXT PRIMARY KEY, spec BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS dead (id TEXT PRIMARY KEY, letter BLOB NOT NULL);
"""

_OPEN, _CLOSED = 0, 1  # PRAGMA user_version: whether the last process closed the file in order

_envelopes = msgspec.json.Decoder(Envelope)
_letters = msgspec.json.Decoder(DeadLetter)
_queues = msgspec.json.Decoder(QueueSpec)

_UNREADABLE = (*NOT_JSON, TypeError, ValueError)

_Statement = tuple[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class StoredEnvelope:
    """A stored message, which was in a queue when the process ended."""

    row: int
    queue: str
    envelope: Envelope
    due: float  # wall time of the delivery; 0: immediately
    crashes: int  # see `Delivery.crashes`


class Journal:
    """Stores the messages, queues and dead letters of the local broker in an SQLite file, so that they
    survive a crash.
    """

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        make_private(path)
        try:
            self._file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
            last = self._file.execute("SELECT max(row) FROM kept").fetchone()[0]
            self._was_closed = self._file.execute("PRAGMA user_version").fetchone()[0] == _CLOSED
            self._file.execute(f"PRAGMA user_version = {_OPEN}")
        except sqlite3.Error as problem:
            self._file.close()
            raise Unavailable(f"{path}, with the undelivered messages, cannot be used: {problem}") from None
        self._rows = itertools.count((last or 0) + 1)
        self._pending: list[_Statement] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writing = False
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    def restore(self, now: float) -> tuple[list[StoredEnvelope], list[DeadLetter]]:
        """Return the stored messages, oldest first, and the dead letters. A message that cannot be decoded
        becomes a dead letter.
        """
        letters = [
            _letter(str(id_), data)
            for id_, data in self._file.execute("SELECT id, letter FROM dead ORDER BY rowid")
        ]
        items = []
        rows = self._file.execute("SELECT row, queue, envelope, due, delivered FROM kept ORDER BY row")
        for row, queue, data, due, delivered in rows:
            if delivered is None:  # deliveries were not counted, and the message may have been delivered
                delivered = 0 if self._was_closed or (due and due > now) else UNCOUNTED
            try:
                envelope = _envelopes.decode(data)
                items.append(StoredEnvelope(row, str(queue), envelope, float(due or 0.0), int(delivered)))
            except _UNREADABLE as problem:
                letter = _unreadable(
                    f"journal-{row}", str(queue), data, f"its stored form is unreadable: {problem}", now
                )
                log.error("%s: %s to the dead letters: %s", letter.queue, letter.id, letter.reason)
                self.store_dead_letter(letter)
                self.remove(row)
                letters.append(letter)
        return items, letters

    def queues(self) -> list[QueueSpec]:
        """Return the durable queues in the journal's file, except queues with an undecodable declaration."""
        specs = []
        for name, data in self._file.execute("SELECT name, spec FROM queues ORDER BY rowid"):
            try:
                specs.append(_queues.decode(data))
            except _UNREADABLE as problem:
                log.error("%s: its stored declaration is unreadable: %s", name, problem)
        return specs

    def declare(self, spec: QueueSpec) -> None:
        data = msgspec.json.encode(spec)
        self._pending.append(("INSERT OR REPLACE INTO queues VALUES (?, ?)", (spec.name, data)))

    def add(self, queue: str, envelope: Envelope, due: float, delivered: int | None = None) -> int:
        """Store a message; return its row number. `due`: time of its delivery after a delay; 0 without a
        delay. `delivered`: number of deliveries; None: not counted.
        """
        row = next(self._rows)
        data = msgspec.json.encode(envelope)
        self._pending.append(("INSERT INTO kept VALUES (?, ?, ?, ?, ?)", (row, queue, data, due, delivered)))
        return row

    def note(self, row: int, delivered: int) -> None:
        """Store how often this message was delivered without being settled."""
        self._pending.append(("UPDATE kept SET delivered = ? WHERE row = ?", (delivered, row)))

    def remove(self, row: int) -> None:
        self._pending.append(("DELETE FROM kept WHERE row = ?", (row,)))

    def store_dead_letter(self, letter: DeadLetter) -> None:
        data = msgspec.json.encode(letter)
        self._pending.append(("INSERT OR REPLACE INTO dead VALUES (?, ?)", (letter.id, data)))

    def remove_dead_letters(self, id_: str) -> None:
        self._pending.append(("DELETE FROM dead WHERE id = ?", (id_,)))

    async def flushed(self) -> None:
        """Wait until all changes made so far are on the disk."""
        if not self._pending and not self._writing:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._write()
        await waiting

    async def close(self) -> None:
        """Write all changes, and mark the file as closed without a crash."""
        await self.flushed()
        self._writer.shutdown()
        self._file.execute(f"PRAGMA user_version = {_CLOSED}")
        self._file.close()

    def _write(self) -> None:
        """Commit the pending changes to queues and dead letters to the journal's file; changes made during a
        commit are in the next one.
        """
        if self._writing or not self._waiting:
            return
        self._writing = True
        batch, self._pending = self._pending, []
        waiting, self._waiting = self._waiting, []

        def again() -> None:
            self._writing = False
            self._write()

        def written(done: "asyncio.Future[None]") -> None:
            problem = done.exception()
            if isinstance(problem, sqlite3.Error):  # such as a full disk: retry, and let callers wait
                log.error("the bus cannot write to its file, and tries again: %s", problem)
                self._pending[:0], self._waiting[:0] = batch, waiting
                loop.call_later(RETRY_SECONDS, again)
                return
            self._writing = False
            for future in waiting:
                if future.done():
                    continue
                if problem is None:
                    future.set_result(None)
                else:
                    future.set_exception(problem)
            self._write()

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._writer, self._commit, batch).add_done_callback(written)

    def _commit(self, batch: list[_Statement]) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            for statement, values in batch:
                self._file.execute(statement, values)
            self._file.execute("COMMIT")
        finally:
            self._file.rollback()  # no effect after a commit


def _letter(id_: str, data: bytes) -> DeadLetter:
    try:
        return _letters.decode(data)
    except _UNREADABLE as problem:  # shown as unreadable, and kept until it is removed by its id
        return _unreadable(id_, "", data, f"the stored dead letter is unreadable: {problem}", 0.0)


def _unreadable(id_: str, queue: str, data: object, reason: str, died: float) -> DeadLetter:
    return DeadLetter(
        id=id_,
        queue=queue,
        key="",
        type="",
        reason=reason,
        first_died=died,
        died=died,
        attempt=1,
        correlation="",
        body=data if isinstance(data, bytes) else str(data).encode("utf-8", "replace"),
    )
