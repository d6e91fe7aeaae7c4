"""Consumes a RabbitMQ queue, also after reconnects; adjusts the prefetch count, and requeues messages.

An AMQP message may contain several envelopes, which are settled separately. The AMQP message is acknowledged
when all of its envelopes are settled. An envelope is requeued separately: it is published to the queue again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bus.clock import Backoff, set_within
from bus.direct import OpenInbox
from bus.errors import BrokerRefused, Unavailable
from bus.protocol import MAX_IN_HAND_BYTES, Delivery, Envelope, QueueSpec
from bus.rabbit.amqp_messages import client_of, crashes, open_message, routing_of, sender_of
from bus.rabbit.connection import BROKEN, RequestRefused, cancelled_by_us, reason
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import Arrived
from bus.rabbit.reconnecting import Link, Session

log = logging.getLogger(__name__)

PutBack = Callable[[str, Sequence[Envelope]], Awaitable[None]]

_AT_FIRST = 64  # first prefetch count, before the average number of envelopes in an AMQP message is known
_AT_LEAST = 4  # lowest prefetch count: the next message is received while one is being settled
_AT_MOST = 512  # highest prefetch count: later messages may be large, up to a megabyte each
PROOF_SECONDS = 10.0  # between two checks that the broker still has our consumer
_BEGINNING = 60.0  # seconds after which consuming is tried again: a queue without a leader does not reply
# Seconds for which acknowledgements are combined: no task waits for them, and a quorum queue logs each.
ACKS_WAIT = 0.05
# Acknowledgements for this part of the prefetch count are sent immediately, or the broker stops delivering.
SHARE_SETTLED_AT_ONCE = 0.25

SendBack = Callable[["Parcel", Sequence[Envelope]], None]


class Reading:
    """The unsettled AMQP messages of one channel, which only this channel can acknowledge."""

    def __init__(self, channel: BulkChannel) -> None:
        self.channel = channel
        self.consumer = ""
        self.in_advance = 0
        self.closed = False
        self.last_copies = 0  # the broker has lost the messages up to this tag: their queue was deleted
        # True: publish requeued messages again, because the next reader would count a rejection as a crash.
        self.hands_over = False
        self.newest = 0
        self.deliveries: deque[Arrived] = deque()  # received AMQP messages, not yet split into envelopes
        self.opened: deque[RabbitDelivery] = deque()  # envelopes of split messages, not yet returned by `get`
        self.in_hand = 0
        self.bytes_in_hand = 0
        self.unsettled: dict[int, None] = {}  # delivery tags, oldest first
        self.acks: list[int] = []
        self.nacks: list[int] = []
        self.wake = asyncio.Event()
        self._waits: asyncio.TimerHandle | None = None  # sends the combined acknowledgements
        self._closing = asyncio.Lock()

    def has_room(self, prefetch: int) -> bool:
        """Return whether the reader may take further messages, by their number and their bytes."""
        return self.in_hand < prefetch and self.bytes_in_hand < MAX_IN_HAND_BYTES

    def next_delivery(self) -> "RabbitDelivery":
        """Return the next envelope of the received AMQP messages; the caller must settle it."""
        delivery = self.opened.popleft()
        self.in_hand += 1
        self.bytes_in_hand += len(delivery.envelope.body)
        return delivery

    def end(self) -> None:
        """Stop reading, because the channel is closed or the queue was deleted."""
        self.closed = True
        self.wake.set()

    def on_queue_deleted(self, _: str = "") -> None:
        """Stop after the broker deleted the queue: the messages in hand have no other copy there."""
        self.last_copies = self.newest
        self.end()

    def is_last_copy(self, tag: int) -> bool:
        """Return whether a message in hand is lost if it is not published again, because its queue was
        deleted.
        """
        return tag <= self.last_copies

    def ack(self, tag: int, *, at_once: bool = False) -> None:
        """Note an acknowledgement. Several are sent together, after a short time or when enough of them are
        noted.
        """
        self.acks.append(tag)
        if at_once or len(self.acks) >= SHARE_SETTLED_AT_ONCE * self.in_advance:
            self.wake.set()
        elif self._waits is None:
            self._waits = asyncio.get_running_loop().call_later(ACKS_WAIT, self.wake.set)

    def nack(self, tag: int) -> None:
        """Note that a message goes back to its queue; sent immediately."""
        self.nacks.append(tag)
        self.wake.set()

    def settle(self) -> None:
        """Send the broker the acknowledgements and rejections of messages collected since the last call."""
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
        nacks, self.nacks = self.nacks, []
        acks, self.acks = self.acks, []
        for tag in (*nacks, *acks):
            del self.unsettled[tag]
        for tag in nacks:
            self.channel.nack(tag)
        self.channel.acknowledge_all(acks, self.unsettled)

    async def close(self) -> None:
        """Send the acknowledgements and close the channel; the broker redelivers unsettled messages."""
        self.end()
        self.deliveries.clear()
        self.opened.clear()
        try:
            async with asyncio.timeout(5.0), self._closing:  # concurrent callers wait for the first
                self.settle()
                await self.channel.close()
        except (*BROKEN, TimeoutError) as problem:
            if cancelled_by_us(problem):
                raise


@dataclass(eq=False, slots=True)
class Parcel:
    """A received AMQP message, with the number of its envelopes that are not settled."""

    reading: Reading
    tag: int
    left: int
    more: asyncio.Event  # set when the next message can be processed
    send_back: SendBack
    # True: the message was delivered before, so acknowledge it immediately: if this reader ends before that,
    # the message is delivered once more.
    returned: bool

    def settled(self, count: int = 1) -> None:
        """Count handled messages of an AMQP message; acknowledge it after its last one."""
        self.left -= count
        if not self.left:
            self.reading.ack(self.tag, at_once=self.returned)


class RabbitDelivery:
    """An envelope delivered to a consumer, which must settle it. If the connection breaks earlier, the broker
    redelivers the envelope.
    """

    __slots__ = ("_alone", "_open", "_parcel", "crashes", "envelope", "problem", "sender")

    def __init__(
        self, envelope: Envelope, problem: str, crashes: int, parcel: Parcel, sender: str = ""
    ) -> None:
        self.envelope = envelope
        self.problem = problem
        self.sender = sender
        self.crashes = crashes
        self._parcel = parcel
        self._alone = parcel.left == 1
        self._open = True

    def done(self) -> None:
        """Acknowledge the message, unless it is settled already."""
        if self._release():
            self._parcel.settled()

    def requeue(self) -> None:
        """Return the message to its queue, unless it is settled already."""
        if not self._release():
            return
        reading = self._parcel.reading
        last = reading.is_last_copy(self._parcel.tag)
        uncounted = reading.hands_over and not self.crashes and not self.problem
        if self._alone and not last and not uncounted:
            reading.nack(self._parcel.tag)
        elif self.problem:  # not published again: the copy would lose `problem`, and be handled as valid
            self._parcel.settled()
        else:
            self._parcel.send_back(self._parcel, [self.envelope])

    def _release(self) -> bool:
        """Mark the envelope as settled. Return False if it was settled before, or if its channel is closed
        and the broker redelivers it.
        """
        reading = self._parcel.reading
        if not self._open or (reading.closed and not reading.is_last_copy(self._parcel.tag)):
            return False
        self._open = False
        reading.in_hand -= 1
        reading.bytes_in_hand -= len(self.envelope.body)
        self._parcel.more.set()
        return True


class RabbitInbox(OpenInbox):
    """Consumes messages from one RabbitMQ queue, and continues after each reconnect."""

    def __init__(self, link: Link, spec: QueueSpec, prefetch: int, put_back: PutBack) -> None:
        super().__init__()
        self._link = link
        self._spec = spec
        self._name = link.names.queue(spec.name)
        self._prefetch = prefetch
        self._put_back = put_back
        self._reading: Reading | None = None
        self._ended = asyncio.Event()  # set when consuming has ended permanently
        self._going_back: set[asyncio.Task[None]] = set()
        self._steering = asyncio.Lock()
        self._size = 1.0  # recent average of envelopes in an AMQP message
        self._bytes = 1.0  # average bytes per envelope: raised immediately, lowered slowly

    @property
    def ended(self) -> bool:
        """Return whether the inbox is stopped and has no open channel, so the transport may forget it."""
        return self._stopping and (self._reading is None or self._reading.channel.closed)

    @property
    def buffered(self) -> int:
        """The number of messages that were received and not taken yet."""
        reading = self._reading
        received = 0 if reading is None else len(reading.opened) + len(reading.deliveries)
        return received + len(self._offered)

    async def start(self) -> None:
        """Begin to consume; after a lost connection, consume again."""
        reading = await self._link.insist(self._begin)
        self._link.spawn(self._run(reading))

    async def get(self) -> Delivery:
        while True:
            delivery = self.get_nowait()
            if delivery is not None:
                return delivery
            if self._link.broken:
                self._link.check()
            self.more.clear()
            await self.more.wait()

    def _next_received(self) -> Delivery | None:
        reading = self._reading
        if reading is None or reading.closed or not reading.has_room(self._prefetch):
            return None
        if not reading.opened and not self._open_next(reading):
            return None
        return reading.next_delivery()

    async def stop(self) -> None:
        """Stop consuming; messages in hand can still be settled."""
        self._end_offers()
        if not self._spec.durable:
            self._link.undeclare(self._spec)  # the broker deletes the queue after its last consumer
        reading = self._reading
        if reading is None or reading.closed:
            await self._all_back()
            return
        reading.hands_over = self._spec.durable  # not for a private queue, which is deleted with its consumer
        try:
            async with self._steering:
                await reading.channel.cancel(reading.consumer)
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise
            reading.end()  # the broker has requeued the messages, except those of a deleted queue
        self._requeue(reading)
        while reading.deliveries:
            reading.nack(reading.deliveries.popleft().tag)
        reading.wake.set()
        await self._all_back()

    async def close(self) -> None:
        """Return all messages that were not taken, and close the channel."""
        self._end_offers()
        await self._all_back()
        if self._reading is not None:
            await self._reading.close()

    def send_back(self, parcel: Parcel, envelopes: Sequence[Envelope]) -> None:
        """Publish the given envelopes of an AMQP message to its queue again, then mark them as settled."""

        async def send() -> None:
            backoff = Backoff(self._link.clock)
            while True:
                last = parcel.reading.is_last_copy(parcel.tag)
                try:
                    if last:  # the queue was deleted: declare it again first
                        await backoff.pause()
                        await self._link.declare(self._spec)
                    await self._put_back(self._spec.name, envelopes)
                except Exception as problem:
                    log.warning("%s: could not put back %s: %s", self._name, envelopes[0].key, problem)
                    if last and not isinstance(problem, Unavailable):
                        continue
                    return  # not settled, so the broker redelivers the whole AMQP message
                parcel.settled(len(envelopes))
                return

        task = self._link.spawn(send())
        self._going_back.add(task)
        task.add_done_callback(self._going_back.discard)

    def _requeue(self, reading: Reading) -> None:
        """Requeue the envelopes that `get` has not returned yet; a deleted queue is declared again."""
        all_of_them = reading.hands_over and not reading.closed
        while reading.opened or (
            reading.deliveries and (all_of_them or reading.is_last_copy(reading.deliveries[0].tag))
        ):
            if reading.opened or self._open_next(reading):
                reading.next_delivery().requeue()

    async def _all_back(self) -> None:
        """Wait a few seconds until the requeued envelopes are published; the broker redelivers envelopes for
        which the time is too short.
        """
        if self._going_back:
            await asyncio.wait(self._going_back, timeout=5.0)

    async def _begin(self, session: Session) -> Reading:
        async with asyncio.timeout(_BEGINNING):
            await session.topology.queue(self._spec)
            reading = Reading(await session.channel())
            reading.channel.when_closed(reading.end)
            reading.channel.when_cancelled(reading.on_queue_deleted)
            self._reading = reading
            await self._consume(reading, min(self._prefetch, _AT_FIRST))
        return reading

    async def _consume(self, reading: Reading, in_advance: int) -> None:
        before = reading.consumer
        reading.consumer = await reading.channel.consume(
            self._name, in_advance, partial(self._arrived, reading)
        )
        reading.in_advance = in_advance
        if before:
            await reading.channel.cancel(before)

    async def _run(self, reading: Reading) -> None:
        self._link.spawn(self._prove())
        try:
            while True:
                await self._attend(reading)
                if self._stopping or (again := await self._begin_again()) is None:
                    return
                reading = again
        finally:
            self._ended.set()
            self.more.set()  # wake callers of `get`, which raise an error if the link is broken

    async def _prove(self) -> None:
        """Check periodically that the broker has our queue with a consumer; if not, consume the queue again.

        After a partition of a cluster the broker may have deleted a private queue, without a notice to its
        consumer. A quorum queue without a leader reports no consumers, so the queue is consumed again only
        after two such reports in a row.
        """
        without = 0
        while not self._ended.is_set():
            # Ends by an event, not by cancellation: a cancelled request to the broker closes the channel.
            await set_within(self._ended, PROOF_SECONDS)
            if self._ended.is_set():
                return
            reading, consumers = self._reading, await self._count_consumers()
            is_consuming = reading is not None and reading is self._reading and not reading.closed
            without = without + 1 if consumers == 0 and is_consuming else 0
            if reading is None or self._stopping or not is_consuming or consumers is None:
                continue
            if consumers < 0 or without == 2:
                log.warning("%s: the broker has lost our queue or consumer; consuming again", self._name)
                end = reading.on_queue_deleted if consumers < 0 else reading.end
                end()

    async def _count_consumers(self) -> int | None:
        """Return how many consumers our queue has, -1 if the queue is missing or is private to another
        connection, and None if the number cannot be read.
        """
        try:
            session = await self._link.session()
            return (await session.topology.depth(self._name))[1]
        except RequestRefused as refused:
            return -1 if refused.code in ("NOT_FOUND", "RESOURCE_LOCKED") else None
        except (*BROKEN, Unavailable) as problem:
            if cancelled_by_us(problem):
                raise
            return None

    async def _begin_again(self) -> Reading | None:
        backoff = Backoff(self._link.clock)
        while True:
            await backoff.pause()
            if self._stopping:
                return None
            try:
                return await self._link.insist(self._begin)
            except BrokerRefused as problem:
                log.warning("%s: %s; trying again", self._name, problem)
            except Unavailable:
                return None  # the link is being closed

    async def _attend(self, reading: Reading) -> None:
        """Send acknowledgements to the broker until the channel closes. After `stop`, return as soon as every
        message is acknowledged or requeued.
        """
        try:
            while not reading.closed and not (self._stopping and not reading.unsettled):
                await reading.wake.wait()
                reading.wake.clear()
                reading.settle()
                await self._tune(reading)
        except (*BROKEN, RequestRefused) as problem:
            if cancelled_by_us(problem):
                raise
            log.info("%s: reading was interrupted: %s", self._name, reason(problem))
            if isinstance(problem, RequestRefused) and problem.code == "NOT_FOUND":
                reading.on_queue_deleted()  # the queue was deleted while we changed the prefetch count
        self._requeue(reading)
        await reading.close()

    def _arrived(self, reading: Reading, message: Arrived) -> None:
        reading.newest = max(reading.newest, message.tag)
        reading.unsettled[message.tag] = None
        reading.deliveries.append(message)  # `stop` requeues messages that arrive after its call
        size = len(message.body)
        self._bytes = max(float(size), self._bytes + (size - self._bytes) / 8)
        if not self._fits(reading.in_advance):
            reading.wake.set()
        self.more.set()

    def _open_next(self, reading: Reading) -> bool:
        while reading.deliveries:
            message = reading.deliveries.popleft()
            key, names_key, problem = routing_of(message, self._link.names, self._name)
            sender = sender_of(message, self._link.names) if problem else ""
            client = client_of(message, self._link.names, sender)
            envelopes, problem = open_message(message, key, names_key=names_key, problem=problem)
            for envelope in envelopes if client else ():
                envelope.sent_by(client)
            self._size += (len(envelopes) - self._size) / 8
            crashed = crashes(message)
            parcel = Parcel(
                reading, message.tag, len(envelopes), self.more, self.send_back, returned=crashed > 0
            )
            if not envelopes:
                reading.ack(parcel.tag)
            else:
                reading.opened.extend(
                    RabbitDelivery(each, problem, crashed, parcel, sender) for each in envelopes
                )
                if not self._fits(reading.in_advance):
                    reading.wake.set()
                return True
        return False

    async def _tune(self, reading: Reading) -> None:
        """Adapt the prefetch count to the average number of envelopes, and size, of recent AMQP messages."""
        async with self._steering:
            if not self._stopping and not reading.closed and not self._fits(reading.in_advance):
                await self._consume(reading, self._wanted())

    def _wanted(self) -> int:
        wanted = max(int(self._prefetch / max(self._size, 1.0)), min(self._prefetch, _AT_LEAST))
        return min(wanted, _AT_MOST, max(int(MAX_IN_HAND_BYTES / self._bytes), 1))

    def _fits(self, in_advance: int) -> bool:
        """Return True if the prefetch count `in_advance` is between 1/4 and 4 times the optimal count."""
        return in_advance / 4 <= self._wanted() <= in_advance * 4
