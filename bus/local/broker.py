"""The in-process broker for installations without RabbitMQ and for simulations; behaves as RabbitMQ does.

For simulations it can reorder and duplicate messages at random, reproducibly for the same seed.
"""

import asyncio
import itertools
import logging
import random
import sqlite3
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from bus.clock import Clock
from bus.errors import NOT_JSON, NoSuchLetter, Unavailable
from bus.protocol import UNCOUNTED, DeadLetter, Envelope, QueueSpec
from bus.sql.sqlite import make_private
from bus.topics import matches

# Section: stores the in-process broker's queues, messages and dead letters in one SQLite file. Entries are
# committed in batches on another thread. If a crash loses the removal of a message, the message is only
# redelivered.


log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5

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
        if not self._pending and not self._writing:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._write()
        await waiting

    async def close(self) -> None:
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


LONGEST_DELAY = 86400.0  # limit for restored delays, because the wall clock may have been set back


@dataclass(frozen=True, slots=True)
class Chaos:
    """Fault injection for the in-process broker: probabilities of reordered and duplicated messages."""

    chance: random.Random
    reorder: float = 0.0
    duplicate: float = 0.0


class ItemReader(Protocol):
    """The interface of a consumer of an in-process queue."""

    def accept(self) -> bool:
        """Take one message from the queue; return False if this consumer's prefetch limit is reached."""


@dataclass(eq=False, slots=True)
class QueuedItem:
    envelope: Envelope
    crashes: int = 0
    row: int = 0  # row number in the journal; 0: not stored
    twin: bool = False  # a duplicate that `Chaos` made, which is not duplicated again


@dataclass(eq=False, slots=True)
class LocalQueue:
    spec: QueueSpec
    items: deque[QueuedItem] = field(default_factory=deque)
    readers: list[ItemReader] = field(default_factory=list)

    def wake(self) -> None:
        """Deliver waiting messages to the consumers, round-robin, within their prefetch limits."""
        idle = 0
        while self.items and idle < len(self.readers):
            reader = self.readers.pop(0)
            self.readers.append(reader)
            idle = 0 if reader.accept() else idle + 1


class LocalBroker:
    """An in-process message broker; each LocalTransport is one connection to it."""

    def __init__(
        self, *, chaos: Chaos | None = None, journal: Journal | None = None, clock: Clock | None = None
    ) -> None:
        self.chaos = chaos
        self.clock = clock or Clock()
        self.queues: dict[str, LocalQueue] = {}
        self.dead: dict[str, DeadLetter] = {}
        self.delayed = 0
        self._journal = journal
        self._routes: dict[str, tuple[LocalQueue, ...]] = {}
        if journal is not None:
            self._restore(journal)

    def declare(self, spec: QueueSpec) -> None:
        known = self.queues.get(spec.name)
        if known is not None and known.spec == spec:
            return
        if known is None:
            self.queues[spec.name] = LocalQueue(spec)
        else:
            self._forget_routes(known.spec)
            known.spec = spec
        if self._journal is not None and spec.durable:
            self._journal.declare(spec)
        self._forget_routes(spec)

    def remove(self, name: str) -> None:
        removed = self.queues.pop(name, None)
        if removed is not None:
            self._forget_routes(removed.spec)

    def route(self, key: str) -> tuple[LocalQueue, ...]:
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = tuple(
                queue for queue in self.queues.values() if any(matches(p, key) for p in queue.spec.keys)
            )
        return found

    def _forget_routes(self, spec: QueueSpec) -> None:
        """Drop the cached queues of all routing keys that match a new queue's bindings."""
        for key in [key for key in self._routes if any(matches(pattern, key) for pattern in spec.keys)]:
            del self._routes[key]

    def put(self, queue: LocalQueue, envelope: Envelope, *, seconds: float = 0.0) -> None:
        item = QueuedItem(envelope)
        if self._journal is not None and queue.spec.durable:
            due = self.clock.now() + seconds if seconds else 0.0
            noted = 0 if queue.spec.notes_readers else None
            item.row = self._journal.add(queue.spec.name, envelope, due, noted)
        self._arrive(queue, item, seconds)

    async def declared(self) -> None:
        """Wait until every durable queue declared so far is stored in the broker's file (if it has one)."""
        if self._journal is not None:
            await self._journal.flushed()

    async def safe(self) -> None:
        """Wait until every message published so far is stored in the broker's file (if it has one)."""
        if self._journal is not None:
            await self._journal.flushed()
        else:
            await asyncio.sleep(0)

    def pick(self, queue: LocalQueue) -> QueuedItem:
        if self.chaos and len(queue.items) > 1 and self.chaos.chance.random() < self.chaos.reorder:
            position = self.chaos.chance.randrange(min(len(queue.items), 8))
            item = queue.items[position]
            del queue.items[position]
            return item
        return queue.items.popleft()

    def settled(self, queue: LocalQueue, item: QueuedItem) -> None:
        twice = self.chaos is not None and self.chaos.chance.random() < self.chaos.duplicate
        if twice and not item.twin and item.envelope.attempt == 1:
            queue.items.append(QueuedItem(item.envelope, item.crashes, item.row, twin=True))
            queue.wake()
        elif self._journal is not None and item.row:
            self._journal.remove(item.row)

    def delivered(self, queue: LocalQueue, item: QueuedItem, *, back: bool = False) -> None:
        """Store in the broker's file how many times a message was delivered without being settled, if the
        queue's `notes_readers` is set. `back`: the message is requeued, and its last delivery not counted.
        """
        if self._journal is not None and queue.spec.notes_readers and item.row:
            self._journal.note(item.row, item.crashes + (not back))

    def back(self, queue: LocalQueue, item: QueuedItem) -> None:
        self.delivered(queue, item, back=True)
        queue.items.appendleft(item)
        queue.wake()

    def store_dead_letter(self, letter: DeadLetter) -> None:
        self.dead[letter.id] = letter
        if self._journal is not None:
            self._journal.store_dead_letter(letter)

    def remove_dead_letters(self, letter: DeadLetter) -> None:
        self.dead.pop(letter.id, None)
        if self._journal is not None:
            self._journal.remove_dead_letters(letter.id)

    def dead_behind(self, after: str, beginning: str) -> Iterator[DeadLetter]:
        """Yield the dead letters stored after the letter `after` ("": all), with ids that start with
        `beginning`. Raise NoSuchLetter if no letter has the id `after`.
        """
        if after and after not in self.dead:
            raise NoSuchLetter(f"there is no dead letter {after} any more; begin again with the oldest")
        behind = iter(tuple(self.dead.values()))
        while after and next(behind).id != after:
            pass
        return (letter for letter in behind if letter.id.startswith(beginning))

    def _arrive(self, queue: LocalQueue, item: QueuedItem, seconds: float) -> None:
        if seconds <= 0:
            queue.items.append(item)
            queue.wake()
            return
        self.delayed += 1
        asyncio.get_running_loop().call_later(seconds, self._due, queue, item)

    def _due(self, queue: LocalQueue, item: QueuedItem) -> None:
        self.delayed -= 1
        self._arrive(queue, item, 0.0)

    def _restore(self, journal: Journal) -> None:
        now = self.clock.now()
        self.queues = {spec.name: LocalQueue(spec) for spec in journal.queues()}
        stored, letters = journal.restore(now)
        for item_stored in stored:
            queue = self.queues.setdefault(item_stored.queue, LocalQueue(QueueSpec(item_stored.queue)))
            item = QueuedItem(item_stored.envelope, item_stored.crashes, item_stored.row)
            self._arrive(queue, item, min(item_stored.due - now, LONGEST_DELAY))
        self.dead = {letter.id: letter for letter in letters}
