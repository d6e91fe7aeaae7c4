"""Handles messages that were redelivered twice one at a time, to find a message that ends its
process, and make it a dead letter.

When a process ends, the broker redelivers all messages that it was handling; after the first redelivery
they are handled as usual. A message redelivered twice is a suspect: it moves to the suspects' queue of its
worker, which is read with a prefetch of 1; a process reads one such queue at a time. If the process that
reads it ends too, its only message gets a strike (a count). A message with MAX_STRIKES becomes a dead
letter.

A handler may take long, so after ALONE_SECONDS it is cancelled, and the message returns to its original
queue.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

import msgspec

from bus.clock import set_within
from bus.delivery.failed_messages import letter_of
from bus.delivery.process import Process
from bus.protocol import Delivery, Inbox
from bus.worker import suspects_queue

log = logging.getLogger(__name__)

MAX_STRIKES = 2
POLL_SECONDS = 15.0  # between checks of the suspects' queue for messages that other processes left there
ALONE_SECONDS = 2.0  # time limit of the handler; ineffective if the handler blocks the event loop
_IDLE_SECONDS = 0.3  # if no message arrives for this time, the suspects' queue counts as empty
_PUT_BACK_SECONDS = 5.0
_FAILED_PAUSE = 1.0  # seconds before the next try, after the broker has failed


class SuspectRow(Protocol):
    """A row of a worker's table, as far as it handles suspects."""

    async def handle_alone(self, delivery: Delivery) -> None:
        """Handle a message that may have ended its process, with no other message in parallel."""

    async def store_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Store a message that has ended its process too often as a dead letter, and acknowledge it."""


class Suspects:
    """Handles the suspects of one worker: collects redelivered messages and handles each alone."""

    def __init__(self, worker: str, process: Process) -> None:
        self.queue = suspects_queue(worker)
        self.rows: dict[str, SuspectRow] = {}  # name of the original queue → row of the worker's table
        self._transport = process.transport
        self._clock = process.clock
        self._turns = process.turns
        self._arrived = asyncio.Event()
        self._stopping = False
        self._inbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        self._task = group.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Stop; complete the message in progress first, or requeue it if that takes longer than `seconds`."""
        self._stopping = True
        self._arrived.set()
        await self._stop_reading()  # first, because a further delivered suspect would get a strike at the end
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()

    async def take(self, queue: str, delivery: Delivery) -> None:
        """Move a suspect from this queue to the suspects' queue.

        If this process is stopping, requeue the message instead: other processes check the suspects' queue
        only every 15 seconds.
        """
        if self._stopping:
            delivery.requeue()
            return
        log.info("%s: %s is handled alone", queue, delivery.envelope.key)
        await self._move(delivery, self.queue.name, suspect_of=queue)
        self._arrived.set()

    async def _run(self) -> None:
        while not self._stopping:
            try:
                if self._arrived.is_set() or await self._transport.waiting(self.queue.name):
                    self._arrived.clear()
                    async with self._turns:
                        await self._read()
            except Exception:
                log.exception("%s: could not be read", self.queue.name)
                await asyncio.sleep(_FAILED_PAUSE)
            await set_within(self._arrived, POLL_SECONDS)

    async def _read(self) -> None:
        self._inbox = inbox = await self._transport.consume(self.queue, 1)
        try:
            while not self._stopping:
                async with asyncio.timeout(_IDLE_SECONDS):
                    delivery = await inbox.get()
                await self._try(delivery)
        except TimeoutError:
            pass
        finally:
            await self._stop_reading()

    async def _stop_reading(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.stop()

    async def _try(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        row = self.rows.get(envelope.suspect_of)
        strikes = envelope.strikes + (delivery.crashes > 0)
        if not envelope.suspect_of:
            reason = delivery.problem or "it does not name the queue it came from"
            await self._transport.store_dead_letter(
                letter_of(envelope, self.queue.name, reason, "", self._clock.now(), delivery.sender)
            )
            delivery.done()
        elif row is None:  # this process does not read the original queue, or not yet
            await self._move(delivery, envelope.suspect_of, strikes=strikes)
        elif strikes >= MAX_STRIKES:
            reason = f"the process that handled it ended {strikes} times while it handled no other suspect"
            await row.store_dead_letter(delivery, f"{reason}, and before that while it handled several")
        elif delivery.crashes:  # move the message as a new copy, so that `crashes` begins at 0 again
            await self._move(delivery, self.queue.name, strikes=strikes)
        else:
            await self._handle(row, delivery)

    async def _handle(self, row: SuspectRow, delivery: Delivery) -> None:
        limit = asyncio.timeout(ALONE_SECONDS)
        try:
            async with limit:
                await row.handle_alone(delivery)
        except asyncio.CancelledError:  # the process stops: move a copy, because a requeue counts as a strike
            await self._put_back(self._move(delivery, self.queue.name))
            raise
        except Exception:
            if limit.expired():
                await self._put_back(self._move(delivery, delivery.envelope.suspect_of, suspect_of=""))
                return
            log.exception("%s: could not settle", self.queue.name)  # handlers' errors do not get here
            await asyncio.sleep(_FAILED_PAUSE)
            await self._put_back(self._move(delivery, self.queue.name))

    async def _put_back(self, moving: Awaitable[None]) -> None:
        """Wait a few seconds until `moving` has moved a message to another queue. After a timeout, the broker
        redelivers the message later.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PUT_BACK_SECONDS):
                await moving

    async def _move(self, delivery: Delivery, queue: str, **changes: str | int) -> None:
        copy = msgspec.structs.replace(delivery.envelope, framed=False, **changes)
        await self._transport.delay(queue, copy, 0.0)
        delivery.done()
