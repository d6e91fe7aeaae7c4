"""The ferry of one cell, with a forwarding loop for each queue of messages that leave or enter the cell.

Messages are forwarded in order, and acknowledged after the other broker's confirm, so they may arrive twice.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
from prometheus_client import Counter, Gauge

from berth.ferry.crossings import Crossing, Way
from bus.clock import Backoff, Clock
from bus.delivery.failed_messages import FAULT_DELAYS, letter_of, refusal_of, repeated_after
from bus.delivery.settling import CONFIRM_SECONDS
from bus.errors import BrokerRefused, TooBig, Unavailable, Unconfirmed, Undecodable, Unroutable
from bus.protocol import Delivery, Envelope, Transport
from bus.worker import Worker

_OF = ["cell", "way", "crossing"]
CARRIED = Counter("berth_ferry_carried", "messages forwarded between the brokers of a cell and of berth", _OF)
WAITING = Gauge("berth_ferry_waiting", "messages, or frames of them, that wait to be carried", _OF)
LAG = Gauge("berth_ferry_lag_seconds", "age of the oldest waiting message; 0: no message waits", _OF)


log = logging.getLogger(__name__)

PREFETCH = 1024  # unconfirmed envelopes; while a broker is unreachable, further ones stay in the queue
TOGETHER = 512  # envelopes in one batch, which is confirmed before the next is published
UNDELIVERABLE_SECONDS = 300.0  # after this time without a consumer, a message becomes a dead letter

Loaded = Sequence[tuple[Delivery, Envelope]]


@dataclass(eq=False)
class Passage:
    """Forwards the messages of one crossing from a queue of the broker `here` to the broker `there`."""

    crossing: Crossing
    here: Transport
    _there: Transport
    _clock: Clock
    _undeliverable_seconds: float
    in_hand: int = 0
    oldest: float = 0.0  # when the oldest unconfirmed message was published
    _unroutable: tuple[str, float] = ("", 0.0)  # the key without a consumer, and since when

    async def run(self) -> None:
        """Forward messages until cancelled. Messages that the other broker does not confirm stay queued.

        A batch for clients waits only for a short time until the batch before it is confirmed.
        """
        inbox = await self.here.consume(self.crossing.queue, PREFETCH)
        held = CONFIRM_SECONDS if self.crossing.is_for_clients else None
        async with asyncio.TaskGroup() as group:
            while True:
                deliveries = [await inbox.get(), *islice(iter(inbox.get_nowait, None), TOGETHER - 1)]
                await asyncio.wait([group.create_task(self._carry(deliveries))], timeout=held)

    async def _carry(self, deliveries: Sequence[Delivery]) -> None:
        self.in_hand += len(deliveries)
        self.oldest = deliveries[0].envelope.sent_at
        try:
            await self._forward_valid(deliveries)
        finally:
            self.in_hand -= len(deliveries)

    async def _forward_valid(self, deliveries: Sequence[Delivery]) -> None:
        load = []
        for delivery in deliveries:
            try:
                load.append((delivery, self._read(delivery)))
            except Undecodable as problem:
                await self._forward(load)
                load = []
                await self._bury(delivery, str(problem), sender=delivery.sender or delivery.envelope.key)
        await self._forward(load)

    def _read(self, delivery: Delivery) -> Envelope:
        """Return the envelope of a message with its routing key at the other broker, or raise Undecodable."""
        if delivery.problem:
            raise Undecodable(delivery.problem)
        key = self.crossing.key_of(delivery.envelope)
        return msgspec.structs.replace(delivery.envelope, key=key, framed=self.crossing.framed(key))

    async def _forward(self, load: Loaded) -> None:
        """Publish messages at the other broker; retry until all are confirmed, refused or dead-lettered."""
        if not load:
            return
        backoff, faults = Backoff(self._clock), 0
        while True:
            why, trace = "", ""
            try:
                await self._there.publish(
                    [envelope for _, envelope in load], expected=[self.crossing.expected] * len(load)
                )
                break
            except Unconfirmed as late:
                load = await self._postpone_unconfirmed(load, late)
                break
            except Unavailable as problem:
                log.warning("%s waits: %s", self.crossing.queue.name, problem)
                await backoff.pause()
                continue
            except Exception as problem:
                if len(load) > 1:  # perhaps only one message made the batch fail: publish each alone
                    for single in load:
                        await self._forward([single])
                    return
                match problem:
                    case Unroutable():
                        if await self._refuse_unroutable(load[0][1], str(problem)):
                            load[0][0].done()
                            return
                        why = str(problem) if self._is_given_up(load[0][1].key) else ""
                    case BrokerRefused() | TooBig() | Undecodable():
                        why = str(problem)
                    case _ if faults == len(FAULT_DELAYS):
                        why, trace = f"{type(problem).__name__}: {problem}", traceback.format_exc()
                    case _:
                        faults += 1
                        log.exception("%s: a bug, tried again", self.crossing.queue.name)
            if why:
                await self._bury(load[0][0], why, trace)
                return
            await backoff.pause()
        self._unroutable = ("", 0.0)
        for delivery, _ in load:
            delivery.done()
        of = self.crossing
        CARRIED.labels(of.cell, of.way.value, of.name).inc(len(load))

    async def _postpone_unconfirmed(self, load: Loaded, late: Unconfirmed) -> Loaded:
        """Forward messages again later that a client's queue has not confirmed; return the others."""
        postponed = [pair for pair in load if pair[1].id in late.ids]

        async def postpone(delivery: Delivery) -> None:
            after = repeated_after(delivery.envelope)
            again = msgspec.structs.replace(delivery.envelope, attempt=delivery.envelope.attempt + 1)
            await self._insist(lambda: self.here.delay(self.crossing.queue.name, again, after))
            delivery.done()

        await asyncio.gather(*(postpone(delivery) for delivery, _ in postponed))
        return [pair for pair in load if pair not in postponed]

    def _is_given_up(self, key: str) -> bool:
        now = self._clock.monotonic()
        if self._unroutable[0] != key:
            self._unroutable = (key, now)
            log.warning("%s waits: %s has no consumer there", self.crossing.queue.name, key)
        return now - self._unroutable[1] >= self._undeliverable_seconds

    async def _refuse_unroutable(self, question: Envelope, why: str) -> bool:
        """Send a refusal to the sender of a query that no worker receives; the sender may retry. Return False
        if the message is no query.
        """
        if not self.crossing.asked:
            return False
        if question.reply_to.startswith(self.crossing.replies):
            why = f"{why} on the other broker of cell {self.crossing.cell}"
            refusal = refusal_of(question, why, self._clock, again=True)
            await self._insist(lambda: self.here.publish([refusal], expected=[False]))
        return True

    async def _bury(self, delivery: Delivery, why: str, trace: str = "", sender: str = "") -> None:
        """Store a dead letter at the broker where the message was published: operators replay it there."""
        envelope, queue = delivery.envelope, self.crossing.queue.name
        log.error("%s: %s to the dead letters: %s", queue, envelope.key, why)
        letter = letter_of(envelope, queue, why, trace, self._clock.now(), sender)
        await self._insist(lambda: self.here.store_dead_letter(letter))
        delivery.done()

    async def _insist(self, publish: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(self._clock)
        while True:
            try:
                await publish()
                return
            except Unavailable as problem:
                log.warning("%s waits: %s", self.crossing.queue.name, problem)
                await backoff.pause()


POLL_SECONDS = 5.0  # between two measurements of the queues' depths


def ferry(
    crossings: Sequence[Crossing],
    middle: Transport,
    cell_broker: Transport,
    clock: Clock,
    poll_seconds: float = POLL_SECONDS,
    undeliverable_seconds: float = UNDELIVERABLE_SECONDS,
) -> Worker:
    """Return the worker that runs a ferry between the central broker `middle` and `cell_broker`. The metrics
    of its queues are updated every `poll_seconds`. After `undeliverable_seconds`, a message without a
    consumer becomes a dead letter.
    """
    (cell,) = {crossing.cell for crossing in crossings}
    into, out = (
        [Passage(each, here, there, clock, undeliverable_seconds) for each in crossings if each.way is way]
        for way, here, there in ((Way.IN, middle, cell_broker), (Way.OUT, cell_broker, middle))
    )

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for passage in into:  # messages published in the meantime wait in the queues
                group.create_task(passage.run())
            await _opened(cell_broker, clock)
            for passage in out:
                group.create_task(passage.run())
            for side, passages in ((middle, into), (cell_broker, out)):
                group.create_task(_watch_targets(side, passages, clock, poll_seconds))

    return Worker(f"ferry.{cell}", runs=[run])


async def _opened(cell_broker: Transport, clock: Clock) -> None:
    backoff = Backoff(clock)
    while True:
        try:
            await cell_broker.open()
            return
        except (Unavailable, BrokerRefused) as problem:
            log.warning("the broker of the cell: %s; trying again", problem)
        await backoff.pause()


async def _watch_targets(side: Transport, passages: Sequence[Passage], clock: Clock, seconds: float) -> None:
    while True:
        for passage in passages:
            crossing = passage.crossing
            of = crossing.cell, crossing.way.value, crossing.name
            try:
                behind = await side.waiting(crossing.queue.name)
            except (Unavailable, BrokerRefused):  # the queue is being declared
                behind = 0
            WAITING.labels(*of).set(behind + passage.in_hand)
            LAG.labels(*of).set(max(clock.now() - passage.oldest, 0.0) if passage.in_hand else 0.0)
        await asyncio.sleep(seconds)
