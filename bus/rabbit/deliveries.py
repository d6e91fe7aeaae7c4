"""Splits AMQP messages of one channel into envelopes, which are settled separately. An AMQP message is
acknowledged when all of its envelopes are settled; to requeue one of several envelopes, it is published to
the queue again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.clients import client_user
from bus.protocol import MAX_IN_HAND_BYTES, UNVERIFIED, Envelope
from bus.rabbit.connection import BROKEN, cancelled_by_us
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import Arrived
from bus.rabbit.topology import BrokerNames

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
        self._telling = asyncio.Lock()
        self._closing = asyncio.Lock()

    def has_room(self, prefetch: int) -> bool:
        return self.in_hand < prefetch and self.bytes_in_hand < MAX_IN_HAND_BYTES

    def next_delivery(self) -> "RabbitDelivery":
        """Return the next envelope of the received AMQP messages; the caller must settle it."""
        delivery = self.opened.popleft()
        self.in_hand += 1
        self.bytes_in_hand += len(delivery.envelope.body)
        return delivery

    def end(self) -> None:
        self.closed = True
        self.wake.set()

    def on_queue_deleted(self, _: str = "") -> None:
        self.last_copies = self.newest
        self.end()

    def is_last_copy(self, tag: int) -> bool:
        return tag <= self.last_copies

    def ack(self, tag: int, *, at_once: bool = False) -> None:
        self.acks.append(tag)
        if at_once or len(self.acks) >= SHARE_SETTLED_AT_ONCE * self.in_advance:
            self.wake.set()
        elif self._waits is None:
            self._waits = asyncio.get_running_loop().call_later(ACKS_WAIT, self.wake.set)

    def nack(self, tag: int) -> None:
        self.nacks.append(tag)
        self.wake.set()

    async def settle(self) -> None:
        """Send the broker the acknowledgements and rejections of messages collected since the last call."""
        async with self._telling:
            if self._waits is not None:
                self._waits.cancel()
                self._waits = None
            nacks, self.nacks = self.nacks, []
            acks, self.acks = self.acks, []
            for tag in (*nacks, *acks):
                del self.unsettled[tag]
            for tag in nacks:
                await self.channel.nack(tag)
            self.channel.acknowledge_all(acks, self.unsettled)

    async def close(self) -> None:
        """Send the acknowledgements and close the channel; the broker redelivers unsettled messages."""
        self.end()
        self.deliveries.clear()
        self.opened.clear()
        try:
            async with asyncio.timeout(5.0), self._closing:  # concurrent callers wait for the first
                await self.settle()
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
        if self._release():
            self._parcel.settled()

    def requeue(self) -> None:
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


def routing_of(message: Arrived, names: BrokerNames, queue: str) -> tuple[str, bool, str]:
    """Return the routing key of an AMQP message, whether the keys inside its body replace this routing key,
    and why the message must be refused (empty: it is accepted).

    One AMQP message may contain several of berth's messages, each with a key. These keys count only if the
    AMQP message was sent directly to a queue. `names` are the names of berth's exchanges at the broker, and
    `queue` is the name there of the queue that delivered the message.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if message.exchange == names.queues:
        problem = ""
        if message.key.partition(".")[2] != queue:
            problem = f"it was sent to {message.key!r}, and reached {queue} by an additional key (CC)"
        elif forwarded and not forwarded.startswith(f"{names.delay}."):
            problem = f"it was forwarded by the queue {forwarded}, which is not one of berth's"
        return names.key_for_reader(message.exchange, message.key), True, problem
    if message.exchange == "":  # the default exchange, to which berth's RabbitMQ users may not publish
        return message.key, True, ""
    problem = f"it was forwarded by the queue {forwarded}, which is not one of berth's" if forwarded else ""
    if message.exchange not in (names.exchange, names.clients):
        problem = f"it was published to the exchange {message.exchange}, not to {names.exchange}"
    return message.key, False, problem


def sender_of(message: Arrived, names: BrokerNames) -> str:
    """Return what the broker verified about the sender of an AMQP message that `routing_of` refuses: the
    queue or exchange that forwarded the message, which only its owner can declare, or the routing key to
    which it was published.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if forwarded and not forwarded.startswith(f"{names.delay}."):
        return forwarded
    berths = names.exchange, names.clients, names.queues
    return message.key if message.exchange in berths else message.exchange


def client_of(message: Arrived, names: BrokerNames, sender: str) -> str:
    """Return `Envelope.client` of an AMQP message: the client in its `user_id`, which the broker compares
    with the user of the connection, or the client that owns the queue or exchange `sender` (as `sender_of`
    returns it; empty if the routing key is proven).
    """
    user, prefix = str(message.properties.user_id or ""), client_user("", names.exchange)
    if user.startswith(prefix):
        return user.removeprefix(prefix)
    word, _, rest = names.plain(sender).partition(".")
    owner = rest.partition(".")[0] if word == "client" else ""
    return owner or (UNVERIFIED if sender else "")


def _dead_lettered_from(deaths: object) -> str:
    if deaths is None:
        return ""
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        return str(deaths[0].get("queue") or "?")
    return "?"
