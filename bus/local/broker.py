"""The in-process broker for installations without RabbitMQ and for simulations; behaves as RabbitMQ does.

For simulations it can reorder and duplicate messages at random, reproducibly for the same seed.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bus.clock import Clock
from bus.errors import NoSuchLetter
from bus.local.journal import Journal
from bus.protocol import DeadLetter, Envelope, QueueSpec
from bus.topics import matches

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
    """A message in a queue, with the number of readers that ended while they handled it."""

    envelope: Envelope
    crashes: int = 0
    row: int = 0  # row number in the journal; 0: not stored
    twin: bool = False  # a duplicate that `Chaos` made, which is not duplicated again


@dataclass(eq=False, slots=True)
class LocalQueue:
    """A queue with its undelivered messages and its readers."""

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
        """Create a queue, or change its properties if it exists with others."""
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
        """Delete a queue with its messages."""
        removed = self.queues.pop(name, None)
        if removed is not None:
            self._forget_routes(removed.spec)

    def route(self, key: str) -> tuple[LocalQueue, ...]:
        """Return the queues that receive messages with this routing key."""
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
        """Append a message to a queue, after a delay if `seconds` is given. Messages of durable queues enter
        the journal.
        """
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
        """Remove the next message from a queue; with `Chaos` sometimes one behind it."""
        if self.chaos and len(queue.items) > 1 and self.chaos.chance.random() < self.chaos.reorder:
            position = self.chaos.chance.randrange(min(len(queue.items), 8))
            item = queue.items[position]
            del queue.items[position]
            return item
        return queue.items.popleft()

    def settled(self, queue: LocalQueue, item: QueuedItem) -> None:
        """Forget a handled message; with `Chaos` sometimes deliver it a second time instead."""
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
        """Return an unhandled message to the front of its queue."""
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
