"""The simulated broker and the connections to it: reordered, repeated and late messages, confirms that are
lost, queues without a leader, and queues that are lost with their messages.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from bus.errors import Unavailable
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.local.broker import LocalQueue, QueuedItem
from bus.local.transport import _LocalDelivery, _LocalInbox
from bus.protocol import DeadLetter, Envelope, Inbox, QueueSpec

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

_LATE_KEYS = ("agent.", "build.", "move.")
CONFIRM_SECONDS = 3.0  # until a publisher stops to wait for the confirm of a queue without a leader
_RETRY_SECONDS = 1.0  # until the broker tries again to move a delayed message to its lost queue


@dataclass(eq=False)
class SimulatedQueue(LocalQueue):
    led: asyncio.Event | None = None  # set when it has a leader again; None: it has one
    stalled: bool = False  # its consumers receive nothing, but publications are confirmed

    def wake(self) -> None:
        if self.led is None and not self.stalled:
            super().wake()

    @property
    def inboxes(self) -> list["SimulatedInbox"]:
        return [reader for reader in self.readers if isinstance(reader, SimulatedInbox)]

    @property
    def for_suspects(self) -> bool:
        return self.spec.notes_readers


class SimulatedInbox(_LocalInbox):
    ended = False  # its worker has stopped reading

    def _end(self, deliveries: Sequence[_LocalDelivery]) -> None:
        self.ended = True
        super()._end(deliveries)

    def lose_deliveries(self, chance: Random) -> None:
        """Return all unacknowledged messages to the queue, at random positions behind messages that arrived
        later. The worker continues to handle them, but cannot acknowledge them any more.
        """
        for delivery in tuple(self._unsettled):
            self._forget(delivery)
            delivery.item.crashes += 1
            items = self.queue.items
            items.insert(chance.randint(0, len(items)), delivery.item)
        self._ready.clear()

    def read(self, queue: LocalQueue) -> None:
        """Begin to read a queue, unless the worker has stopped."""
        if not self.ended and self not in queue.readers:
            self.queue = queue
            queue.readers.append(self)
        queue.wake()


class SimulatedBroker(LocalBroker):
    def __init__(self, world: "SimulatedWorld", chaos: Chaos, chance: Random) -> None:
        super().__init__(chaos=chaos, clock=world.clock)
        self.world = world
        self.chance = chance  # of the faults of servers: other random choices stay the same without them
        self.orders_delayed = 0  # by gateways

    def declare(self, spec: QueueSpec) -> None:
        if spec.name not in self.queues:
            self.queues[spec.name] = SimulatedQueue(spec)
            self._forget_routes(spec)
        super().declare(spec)

    def settled(self, queue: LocalQueue, item: QueuedItem) -> None:
        super().settled(queue, item)
        if self.world.moves and not item.twin and "".join(queue.spec.keys[:1]).startswith(_LATE_KEYS):
            self._repeat_late(queue, item)
        self.world.settled(queue.spec.name)

    def put(self, queue: LocalQueue, envelope: Envelope, *, seconds: float = 0.0) -> None:
        lag = self.world.faults.index_lag
        if lag and envelope.key.startswith("placement.changed") and self.chance.random() < lag:
            seconds += self.chance.expovariate(0.5)
            self.world.happened["lag"] += 1
        super().put(queue, envelope, seconds=seconds)

    def _arrive(self, queue: LocalQueue, item: QueuedItem, seconds: float) -> None:
        item.twin |= seconds > 0
        self.orders_delayed += seconds > 0 and queue.spec.name.startswith("gateway.")
        super()._arrive(queue, item, seconds)

    def _due(self, queue: LocalQueue, item: QueuedItem) -> None:
        now = self.queues.get(queue.spec.name)
        if now is None and queue.spec.durable:  # lost, and not declared again yet
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._due, queue, item)
            return
        self.orders_delayed -= queue.spec.name.startswith("gateway.")
        super()._due(now or queue, item)

    def _repeat_late(self, queue: LocalQueue, item: QueuedItem) -> None:
        chance = self.world.chance
        if chance.random() < self.world.faults.late_copies:
            again = QueuedItem(item.envelope, item.crashes, item.row, twin=True)
            self._arrive(queue, again, chance.expovariate(0.15))

    # Faults

    def durable_queues(self) -> list[SimulatedQueue]:
        queues = self.queues.values()
        return [queue for queue in queues if isinstance(queue, SimulatedQueue) and queue.spec.durable]

    def interrupt(self, inbox: SimulatedInbox) -> None:
        """Break the connection of a consumer, which connects again a little later."""
        inbox.lose_deliveries(self.chance)
        queue = inbox.queue
        queue.readers.remove(inbox)
        queue.wake()
        seconds = self.chance.expovariate(2.0)
        asyncio.get_running_loop().call_later(seconds, self._connect, inbox, queue.spec)

    def lose_leader(self, queue: SimulatedQueue) -> None:
        """Stop the deliveries and confirms of a queue; half of its consumers lose their connection."""
        queue.led = asyncio.Event()
        for inbox in queue.inboxes if not queue.for_suspects else ():
            if self.chance.random() < 0.5:
                self.interrupt(inbox)

    def elect_leader(self, queue: SimulatedQueue) -> None:
        if queue.led is not None:
            queue.led.set()
            queue.led = None
            queue.wake()

    def lose_queue(self, queue: SimulatedQueue) -> None:
        """Delete a queue with its messages; its consumers declare it again, as soon as they notice. Messages
        that they are handling are not lost.
        """
        queue.items.clear()
        self.remove(queue.spec.name)
        self.elect_leader(queue)
        for inbox in queue.inboxes:
            queue.readers.remove(inbox)
            seconds = self.chance.expovariate(1.0)
            asyncio.get_running_loop().call_later(seconds, self._connect, inbox, queue.spec)

    def _connect(self, inbox: SimulatedInbox, spec: QueueSpec) -> None:
        if not inbox.ended:
            self.declare(spec)
            inbox.read(self.queues[spec.name])


class SimulatedTransport(LocalTransport):
    """A connection to the simulated broker, whose confirms can be lost."""

    broker: SimulatedBroker

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        await self.declare(queue)
        target = self.broker.queues[queue.name]
        inbox = SimulatedInbox(self.broker, target, prefetch)
        self._inboxes.append(inbox)
        inbox.read(target)
        return inbox

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        await self.broker.world.before_publishing()
        queues = [queue for envelope in envelopes for queue in self.broker.route(envelope.key)]
        refused = self._refuses(queues)
        await super().publish(envelopes, expected=expected)
        await self._confirmed(queues, refused)

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        known = self.broker.queues.get(queue)
        if known is None:
            known = SimulatedQueue(QueueSpec(queue, (queue,)))  # its messages wait until it is declared again
            seconds = max(seconds, _RETRY_SECONDS)
        self.broker.put(known, envelope, seconds=seconds)
        await self.broker.safe()
        await self._confirmed([], refused=False)

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        await super().store_dead_letter(letter)
        await self._confirmed([], refused=False)

    def _refuses(self, queues: Iterable[LocalQueue]) -> bool:
        """Return True for one of three publications to a queue without a leader; raise for another."""
        if not any(isinstance(queue, SimulatedQueue) and queue.led is not None for queue in queues):
            return False
        fate = self.broker.chance.choice(("refused", "connection lost", "confirmed late"))
        if fate == "refused":
            raise Unavailable("a queue without a leader refuses the message")
        return fate == "connection lost"

    async def _confirmed(self, queues: Sequence[LocalQueue], refused: bool) -> None:
        """Wait for the confirm of each queue; raise Unavailable if a confirm is lost."""
        if refused:
            raise Unavailable("the connection was lost before a queue without a leader confirmed")
        for queue in queues:
            if isinstance(queue, SimulatedQueue) and queue.led is not None:
                try:
                    async with asyncio.timeout(CONFIRM_SECONDS):
                        await queue.led.wait()
                except TimeoutError:
                    raise Unavailable("a queue without a leader did not confirm in time") from None
        lost = self.broker.world.faults.lost_confirms
        if lost and not self.broker.world.calm and self.broker.chance.random() < lost:
            self.broker.world.happened["confirms"] += 1
            raise Unavailable("the broker has stored the message, and its confirm was lost")
