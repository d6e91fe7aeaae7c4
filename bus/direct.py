"""DirectTransport: the broker connection of a process with several workers. Messages to a worker of the same
process are handed over in memory if they are not needed, or are sent again, after a crash of the process:

- queries and answers: a process that still needs an answer repeats the query;
- messages whose publisher waits until they are handled, and only then acknowledges its own message, which was
  not handed over in memory;
- orders to agents, which a conductor stores and repeats when it starts.

All other messages, and messages that their reader cannot handle soon, go to the broker: also the reports of
agents. After the conductor has stored that a build is active, it repeats no order, so only the report can
make it publish the end of the build again.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from prometheus_client import Counter

from bus.protocol import BusDepths, DeadLetter, Delivery, Envelope, Inbox, QueueSpec, Receipt, Transport
from bus.topics import TOPIC_NAMED, matches

# Seconds for which a message is offered to a reader in this process; then it is published at the broker.
PATIENCE = 1.0
_IN_MEMORY = ("ask.", "reply.")

HANDED_OVER = Counter("berth_messages_handed_over", "messages handed to a worker of the same process")


class OpenInbox(ABC):
    """An inbox that gives its reader messages from the broker and from other workers of the same process."""

    def __init__(self) -> None:
        self.more = asyncio.Event()  # set when a message arrives
        self._offered: deque[Delivery] = deque()
        self._offered_next = False
        self._stopping = False

    @abstractmethod
    def _next_received(self) -> Delivery | None:
        """Return the next message from the broker, or None if no message has arrived."""

    def get_nowait(self) -> Delivery | None:
        # Alternate, so that neither the broker's messages nor offered messages have to wait for the others.
        self._offered_next = not self._offered_next
        if self._offered and self._offered_next:
            return self._offered.popleft()
        received = self._next_received()
        return self._offered.popleft() if received is None and self._offered else received

    def offer(self, delivery: Delivery) -> bool:
        """Queue a message for the next caller of `get`; return False if this inbox is stopping."""
        if not self._stopping:
            self._offered.append(delivery)
            self.more.set()
        return not self._stopping

    def withdraw(self, delivery: Delivery) -> bool:
        """Take an offered message back; return False if a caller of `get` has received it already."""
        if delivery not in self._offered:
            return False
        self._offered.remove(delivery)
        return True

    def _end_offers(self) -> None:
        self._stopping = True
        while self._offered:
            self._offered.popleft().requeue()


class Handed:
    """A message that was handed to a worker of this process."""

    __slots__ = ("_give_back", "envelope", "is_settled", "reader", "receipt")
    problem = ""
    sender = ""
    crashes = 0

    def __init__(self, envelope: Envelope, reader: "_Reader", give_back: Callable[["Handed"], None]) -> None:
        self.envelope = envelope
        self.reader = reader
        self.receipt: Receipt | None = None  # of the publisher, if it waits until its messages are handled
        self.is_settled = False
        self._give_back = give_back

    def done(self) -> None:
        self.settle(None)

    def settle(self, problem: Exception | None) -> None:
        """Report the result of the handler to the publisher. Later calls have no effect."""
        if not self.is_settled:
            self.is_settled = True
            if self.receipt is not None:
                self.receipt.settle(problem)

    def requeue(self) -> None:
        """Return the message to its reader's queue, unless it is settled."""
        if not self.is_settled:
            self._give_back(self)


class _Reader(NamedTuple):
    """A queue that a worker of this process consumes."""

    queue: QueueSpec
    inbox: OpenInbox


class DirectTransport:
    """The broker connection of a process with several workers: see the module."""

    def __init__(self, broker: Transport) -> None:
        self._broker = broker
        self._readers: dict[str, _Reader] = {}  # binding key → reader
        self._found: dict[str, _Reader | None] = {}  # cache: routing key → reader with a matching wildcard
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self._broker.open()

    async def close(self) -> None:
        if self._sending:
            await asyncio.wait(self._sending)
        await self._broker.close()

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        inbox = await self._broker.consume(queue, prefetch)
        assert isinstance(inbox, OpenInbox), f"messages cannot be handed to {type(inbox).__name__}"
        for key in queue.keys:
            self._readers[key] = _Reader(queue, inbox)
        self._found.clear()
        return inbox

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        at_broker: list[int] = []
        awaited: list[Handed] = []
        for place, envelope in enumerate(envelopes):
            handed = self._hand_over(envelope)
            if handed is None:
                at_broker.append(place)
            elif (topic := TOPIC_NAMED.get(envelope.type)) is not None and topic.direct == "handled":
                awaited.append(handed)
        receipt = Receipt(len(awaited)) if awaited else None
        for handed in awaited:  # before the first await: then none is settled yet
            handed.receipt = receipt
        if at_broker:
            await self._broker.publish(
                [envelopes[place] for place in at_broker], expected=[expected[place] for place in at_broker]
            )
        if receipt is not None:
            await self._until_handled(awaited, receipt)

    def _hand_over(self, envelope: Envelope) -> Handed | None:
        reader = self._reader_of(envelope)
        if reader is None:
            return None
        handed = Handed(envelope, reader, self._return)
        if not reader.inbox.offer(handed):
            return None
        HANDED_OVER.inc()
        return handed

    def _reader_of(self, envelope: Envelope) -> _Reader | None:
        key = envelope.key
        reader = self._readers.get(key)
        if key.startswith(_IN_MEMORY):
            return reader
        topic = TOPIC_NAMED.get(envelope.type)
        if topic is None or not topic.direct:
            return None
        if reader is None:
            if key not in self._found:
                bound = (it for pattern, it in self._readers.items() if matches(pattern, key))
                self._found[key] = next(bound, None)
            reader = self._found[key]
        return reader

    async def _until_handled(self, awaited: Sequence[Handed], receipt: Receipt) -> None:
        """Wait until the messages are handled. Messages that their reader has not received within PATIENCE
        seconds are published at the broker.
        """
        await asyncio.wait([receipt.done], timeout=PATIENCE)
        if not receipt.done.done():
            for handed in awaited:
                if not handed.is_settled and handed.reader.inbox.withdraw(handed):
                    handed.requeue()
        await receipt.done

    def _return(self, handed: Handed) -> None:
        """Publish at the broker a message that was handed to a reader in this process and that the reader
        requeued.
        """
        task = asyncio.get_running_loop().create_task(self._send(handed))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, handed: Handed) -> None:
        queue = handed.reader.queue
        try:
            if queue.durable:
                await self._broker.delay(queue.name, handed.envelope, 0.0)
            handed.done()
        except Exception as problem:  # raised in the publisher, if it waits
            handed.settle(problem)

    async def declare(self, *queues: QueueSpec) -> None:
        await self._broker.declare(*queues)

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        await self._broker.delay(queue, envelope, seconds)

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        await self._broker.store_dead_letter(letter)

    async def waiting(self, queue: str) -> int:
        return await self._broker.waiting(queue)

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        return await self._broker.depths(queues)

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        return await self._broker.dead_letters(limit, after, beginning)

    def each_dead_letter(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]:
        return self._broker.each_dead_letter(after=after, beginning=beginning)

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        return await self._broker.remove_dead_letters(ids, rescue)
