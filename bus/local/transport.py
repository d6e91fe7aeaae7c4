"""LocalTransport: a connection to the in-process broker. When a connection closes, its unsettled messages are
redelivered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from bus.direct import OpenInbox
from bus.errors import Unroutable
from bus.local.broker import LocalBroker, LocalQueue, QueuedItem
from bus.protocol import (
    MAX_IN_HAND_BYTES,
    BusDepths,
    DeadLetter,
    Delivery,
    Envelope,
    Inbox,
    QueueDepth,
    QueueSpec,
    page_of,
)


@dataclass(eq=False, slots=True)
class _LocalDelivery:
    envelope: Envelope
    crashes: int
    item: QueuedItem
    inbox: "_LocalInbox"
    problem: str = ""
    sender: str = ""

    def done(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.settled(self.inbox.queue, self.item)

    def requeue(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.back(self.inbox.queue, self.item)


class _LocalInbox(OpenInbox):
    def __init__(self, broker: LocalBroker, queue: LocalQueue, prefetch: int) -> None:
        super().__init__()
        self.broker = broker
        self.queue = queue
        self.prefetch = prefetch
        self._ready: deque[_LocalDelivery] = deque()
        self._unsettled: dict[_LocalDelivery, None] = {}
        self._bytes = 0  # total size of unsettled messages

    @property
    def buffered(self) -> int:
        return len(self._ready) + len(self._offered)

    def accept(self) -> bool:
        if len(self._unsettled) >= self.prefetch or self._bytes >= MAX_IN_HAND_BYTES:
            return False
        item = self.broker.pick(self.queue)
        self.broker.delivered(self.queue, item)
        delivery = _LocalDelivery(item.envelope, item.crashes, item, self)
        self._unsettled[delivery] = None
        self._bytes += len(item.envelope.body)
        self._ready.append(delivery)
        self.more.set()
        return True

    def settle(self, delivery: _LocalDelivery) -> bool:
        """Mark a delivered message as settled; return False if it was settled or requeued before."""
        known = delivery in self._unsettled
        if known:
            self._forget(delivery)
        self.queue.wake()
        return known

    async def get(self) -> Delivery:
        while (delivery := self.get_nowait()) is None:
            self.more.clear()
            await self.more.wait()
        if self.queue.spec.notes_readers and isinstance(delivery, _LocalDelivery):
            try:
                await self.broker.safe()  # the journal has stored that the message was delivered
            except asyncio.CancelledError:
                self._ready.appendleft(delivery)
                raise
        return delivery

    def _next_received(self) -> Delivery | None:
        return self._ready.popleft() if self._ready else None

    async def stop(self) -> None:
        self._end_offers()
        self._end(tuple(self._ready))

    def abandon(self) -> None:
        self._offered.clear()
        for delivery in self._unsettled:
            delivery.item.crashes += 1
        self._end(tuple(self._unsettled))

    def _end(self, deliveries: Sequence[_LocalDelivery]) -> None:
        """Stop consuming the queue, and put its unsettled `deliveries` back at its front, in their order."""
        if self in self.queue.readers:
            self.queue.readers.remove(self)
        for delivery in reversed(deliveries):
            self._forget(delivery)
            self.broker.delivered(self.queue, delivery.item, back=True)
            self.queue.items.appendleft(delivery.item)
        self._ready.clear()
        self.queue.wake()

    def _forget(self, delivery: _LocalDelivery) -> None:
        del self._unsettled[delivery]
        self._bytes -= len(delivery.envelope.body)


class LocalTransport:
    """A connection to the in-process broker."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self._inboxes: list[_LocalInbox] = []
        self._private: list[str] = []

    async def open(self) -> None:
        pass

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
        await self.broker.declared()

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
            raise Unroutable(f"no queue is bound to {', '.join(sorted(set(unheard)))}")

    async def send(self, queue: str, envelope: Envelope, *, expected: bool = False) -> None:
        target = self.broker.queues.get(queue)
        if target is not None:
            self.broker.put(target, msgspec.structs.replace(envelope))
        elif expected:
            raise Unroutable(f"there is no queue {queue}")
        await self.broker.safe()

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        self.broker.put(self.broker.queues[queue], msgspec.structs.replace(envelope), seconds=seconds)
        await self.broker.safe()

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        self.broker.store_dead_letter(letter)
        await self.broker.safe()

    async def waiting(self, queue: str) -> int:
        known = self.broker.queues.get(queue)
        return 0 if known is None else len(known.items)

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        await self.declare(queue)
        target = self.broker.queues[queue.name]
        inbox = _LocalInbox(self.broker, target, prefetch)
        target.readers.append(inbox)
        self._inboxes.append(inbox)
        target.wake()
        return inbox

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        known = {name: found for name in queues if (found := self.broker.queues.get(name))}
        return BusDepths(
            {name: QueueDepth(len(queue.items), len(queue.readers)) for name, queue in known.items()},
            dead=len(self.broker.dead),
            delayed=self.broker.delayed,
        )

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        return await page_of(self.each_dead_letter(after=after, beginning=beginning), limit)

    async def each_dead_letter(
        self, after: str = "", beginning: str = ""
    ) -> AsyncGenerator[DeadLetter, None]:
        for letter in self.broker.dead_behind(after, beginning):
            yield letter

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        letters = [letter for letter in self.broker.dead.values() if ids is None or letter.id in ids]
        count = 0
        for letter in letters:
            if rescue is not None and not await rescue(letter):
                continue
            count += 1
            # The replayed message may already have become a new dead letter with the same id.
            if self.broker.dead.get(letter.id) is letter:
                self.broker.remove_dead_letters(letter)
        await self.broker.safe()
        return count
