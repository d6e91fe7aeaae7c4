"""The in-process broker: the embedded default, and the simulation's world.

It keeps a broker's manners: bytes travel, never objects; publish never calls a handler; queues compete,
redeliver and dead-letter; keys match as AMQP's do. Given a source of chance it reorders and duplicates, the
same way for the same seed. Given a journal it forgets nothing when the process dies.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bus.clock import Clock
from bus.errors import NoSuchLetter, Unroutable
from bus.local.journal import Journal
from bus.protocol import MAX_IN_HAND_BYTES, MAX_PAGE_BYTES, DeadLetter, Delivery, Envelope, Inbox, QueueSpec

LONGEST_DELAY = 86400.0  # of what the file says: the wall clock may have been turned back meanwhile


def matches(pattern: str, key: str) -> bool:
    """AMQP topic matching: `*` is exactly one word, `#` any number of them, none included."""
    return _words_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _words_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_words_match(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _words_match(pattern[1:], words[1:])


@dataclass(frozen=True, slots=True)
class Chaos:
    """How unkind the broker is: chances of handing a message out of turn, or once more once settled."""

    chance: random.Random
    reorder: float = 0.0
    duplicate: float = 0.0


@dataclass(eq=False, slots=True)
class _Item:
    envelope: Envelope
    crashes: int = 0
    row: int = 0  # its place in the journal
    twin: bool = False  # a duplicate made by chaos, which makes no more of them


@dataclass(eq=False, slots=True)
class _Queue:
    spec: QueueSpec
    items: deque[_Item] = field(default_factory=deque)
    inboxes: list["_LocalInbox"] = field(default_factory=list)

    def wake(self) -> None:
        """Hand waiting items to waiting readers, in turn."""
        idle = 0
        while self.items and idle < len(self.inboxes):
            inbox = self.inboxes.pop(0)
            self.inboxes.append(inbox)
            idle = 0 if inbox.accept() else idle + 1


class LocalBroker:
    """Queues and dead letters, shared by every LocalTransport connected to it."""

    def __init__(
        self, *, chaos: Chaos | None = None, journal: Journal | None = None, clock: Clock | None = None
    ) -> None:
        self.chaos = chaos
        self.clock = clock or Clock()
        self.queues: dict[str, _Queue] = {}
        self.dead: dict[str, DeadLetter] = {}
        self.delayed = 0
        self._journal = journal
        self._routes: dict[str, tuple[_Queue, ...]] = {}
        if journal is not None:
            self._restore(journal)

    def declare(self, spec: QueueSpec) -> None:
        known = self.queues.get(spec.name)
        if known is None:
            self.queues[spec.name] = _Queue(spec)
        else:
            known.spec = spec
        self._routes.clear()

    def remove(self, name: str) -> None:
        self.queues.pop(name, None)
        self._routes.clear()

    def route(self, key: str) -> tuple[_Queue, ...]:
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = tuple(
                queue for queue in self.queues.values() if any(matches(p, key) for p in queue.spec.keys)
            )
        return found

    def put(self, queue: _Queue, envelope: Envelope, *, seconds: float = 0.0) -> None:
        item = _Item(envelope)
        if self._journal is not None and queue.spec.durable:
            due = self.clock.now() + seconds if seconds else 0.0
            item.row = self._journal.add(queue.spec.name, envelope, due)
        self._arrive(queue, item, seconds)

    async def safe(self) -> None:
        """Returns when everything put so far would survive us."""
        if self._journal is not None:
            await self._journal.flushed()
        else:
            await asyncio.sleep(0)

    def pick(self, queue: _Queue) -> _Item:
        if self.chaos and len(queue.items) > 1 and self.chaos.chance.random() < self.chaos.reorder:
            position = self.chaos.chance.randrange(min(len(queue.items), 8))
            item = queue.items[position]
            del queue.items[position]
            return item
        return queue.items.popleft()

    def settled(self, queue: _Queue, item: _Item) -> None:
        twice = self.chaos is not None and self.chaos.chance.random() < self.chaos.duplicate
        if twice and not item.twin and item.envelope.attempt == 1:
            queue.items.append(_Item(item.envelope, item.crashes, item.row, twin=True))
            queue.wake()
        elif self._journal is not None and item.row:
            self._journal.remove(item.row)

    def back(self, queue: _Queue, item: _Item) -> None:
        queue.items.appendleft(item)
        queue.wake()

    def bury(self, letter: DeadLetter) -> None:
        self.dead[letter.id] = letter
        if self._journal is not None:
            self._journal.bury(letter)

    def exhume(self, letter: DeadLetter) -> None:
        self.dead.pop(letter.id, None)
        if self._journal is not None:
            self._journal.exhume(letter.id)

    def dead_behind(self, after: str, beginning: str) -> Iterator[DeadLetter]:
        """As many as there are now: of whoever is buried or taken out meanwhile it says nothing."""
        if after and after not in self.dead:
            raise NoSuchLetter(f"there is no dead letter {after} any more; begin again with the oldest")
        behind = iter(tuple(self.dead.values()))
        while after and next(behind).id != after:
            pass
        return (letter for letter in behind if letter.id.startswith(beginning))

    def _arrive(self, queue: _Queue, item: _Item, seconds: float) -> None:
        if seconds <= 0:
            queue.items.append(item)
            queue.wake()
            return
        self.delayed += 1
        asyncio.get_running_loop().call_later(seconds, self._due, queue, item)

    def _due(self, queue: _Queue, item: _Item) -> None:
        self.delayed -= 1
        self._arrive(queue, item, 0.0)

    def _restore(self, journal: Journal) -> None:
        now = self.clock.now()
        kept, letters = journal.restore(now)
        for one in kept:
            queue = self.queues.setdefault(one.queue, _Queue(QueueSpec(one.queue)))
            self._arrive(queue, _Item(one.envelope, 1, one.row), min(one.due - now, LONGEST_DELAY))
        self.dead = {letter.id: letter for letter in letters}


@dataclass(eq=False, slots=True)
class _LocalDelivery:
    envelope: Envelope
    crashes: int
    item: _Item
    inbox: "_LocalInbox"
    problem: str = ""

    def done(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.settled(self.inbox.queue, self.item)

    def requeue(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.back(self.inbox.queue, self.item)


class _LocalInbox:
    def __init__(self, broker: LocalBroker, queue: _Queue, prefetch: int) -> None:
        self.broker = broker
        self.queue = queue
        self.prefetch = prefetch
        self._ready: deque[_LocalDelivery] = deque()
        self._unsettled: dict[_LocalDelivery, None] = {}
        self._bytes = 0  # of these
        self._arrived = asyncio.Event()

    def accept(self) -> bool:
        """Take one item off the queue, if prefetch allows."""
        if len(self._unsettled) >= self.prefetch or self._bytes >= MAX_IN_HAND_BYTES:
            return False
        item = self.broker.pick(self.queue)
        delivery = _LocalDelivery(item.envelope, item.crashes, item, self)
        self._unsettled[delivery] = None
        self._bytes += len(item.envelope.body)
        self._ready.append(delivery)
        self._arrived.set()
        return True

    def settle(self, delivery: _LocalDelivery) -> bool:
        """False when the connection has closed meanwhile: its items are the queue's again."""
        known = delivery in self._unsettled
        if known:
            self._forget(delivery)
        self.queue.wake()
        return known

    async def get(self) -> Delivery:
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        return self._ready.popleft()

    def get_nowait(self) -> Delivery | None:
        return self._ready.popleft() if self._ready else None

    async def stop(self) -> None:
        self._leave()
        while self._ready:
            delivery = self._ready.pop()
            self._forget(delivery)
            self.queue.items.appendleft(delivery.item)
        self.queue.wake()

    def abandon(self) -> None:
        """The reader is gone: everything it had not settled comes again, to anyone."""
        self._leave()
        for delivery in reversed(self._unsettled):
            delivery.item.crashes += 1
            self.queue.items.appendleft(delivery.item)
        self._unsettled.clear()
        self._bytes = 0
        self._ready.clear()
        self.queue.wake()

    def _forget(self, delivery: _LocalDelivery) -> None:
        del self._unsettled[delivery]
        self._bytes -= len(delivery.envelope.body)

    def _leave(self) -> None:
        if self in self.queue.inboxes:
            self.queue.inboxes.remove(self)


class LocalTransport:
    """One connection to a LocalBroker."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self._inboxes: list[_LocalInbox] = []
        self._private: list[str] = []

    async def open(self) -> None:
        """Nothing to connect to: the broker is an object of this process."""

    async def close(self) -> None:
        for inbox in self._inboxes:
            inbox.abandon()
        for name in self._private:
            self.broker.remove(name)
        self._inboxes, self._private = [], []
        await self.broker.safe()

    async def declare(self, *queues: QueueSpec) -> None:
        for spec in queues:
            self.broker.declare(spec)
            if not spec.durable:
                self._private.append(spec.name)

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        unheard = []
        for envelope, must in zip(envelopes, expected, strict=True):
            queues = self.broker.route(envelope.key)
            for queue in queues:
                self.broker.put(queue, msgspec.structs.replace(envelope))
            if must and not queues:
                unheard.append(envelope.key)
        await self.broker.safe()
        if unheard:
            raise Unroutable(f"no queue hears {', '.join(sorted(set(unheard)))}")

    async def send(self, queue: str, envelope: Envelope, *, expected: bool = False) -> None:
        target = self.broker.queues.get(queue)
        if target is not None:
            self.broker.put(target, msgspec.structs.replace(envelope, key=queue))
        elif expected:
            raise Unroutable(f"there is no queue {queue}")
        await self.broker.safe()

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        self.broker.put(self.broker.queues[queue], msgspec.structs.replace(envelope), seconds=seconds)
        await self.broker.safe()

    async def bury(self, letter: DeadLetter) -> None:
        self.broker.bury(letter)
        await self.broker.safe()

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        await self.declare(queue)
        target = self.broker.queues[queue.name]
        inbox = _LocalInbox(self.broker, target, prefetch)
        target.inboxes.append(inbox)
        self._inboxes.append(inbox)
        target.wake()
        return inbox

    async def dead_letters(
        self, limit: int = 1000, *, after: str = "", beginning: str = ""
    ) -> list[DeadLetter]:
        page: list[DeadLetter] = []
        size = 0
        for letter in self.broker.dead_behind(after, beginning):
            size += len(letter.body)
            if len(page) == limit or (page and size > MAX_PAGE_BYTES):
                break
            page.append(letter)
        return page

    async def each_dead_letter(
        self, *, after: str = "", beginning: str = ""
    ) -> AsyncGenerator[DeadLetter, None]:
        for letter in self.broker.dead_behind(after, beginning):
            yield letter

    async def exhume(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[None]] | None = None
    ) -> int:
        letters = [letter for letter in self.broker.dead.values() if ids is None or letter.id in ids]
        for letter in letters:
            if rescue is not None:
                await rescue(letter)
            if self.broker.dead.get(letter.id) is letter:  # it has not died again meanwhile
                self.broker.exhume(letter)
        await self.broker.safe()
        return len(letters)
