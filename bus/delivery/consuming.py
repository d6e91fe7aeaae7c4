"""Rows that consume a topic: messages returned by the handler are published to the declared topics."""

import logging

from bus.clock import Clock
from bus.delivery.emitting import Emitter
from bus.delivery.settling import Made, ServedRow
from bus.delivery.suspects import Suspects
from bus.errors import Unroutable
from bus.protocol import Envelope, Transport
from bus.vocabulary import Message
from bus.worker import On, Worker, messages_of

log = logging.getLogger(__name__)


class ConsumedRow(ServedRow):
    def __init__(
        self,
        row: On,
        worker: Worker,
        replica: str,
        transport: Transport,
        clock: Clock,
        suspects: Suspects,
        emitter: Emitter,
    ) -> None:
        super().__init__(row, worker, replica, transport, clock, suspects)
        self._emits = row.emits
        self._unheard = row.unheard
        self._unheard_after = row.unheard_after
        self._emitter = emitter
        self._topic = row.address.topic

    def _key_of(self, message: Message) -> str:
        return self._topic.key(message)

    async def _publish(self, made: Made) -> None:
        try:
            await self._emitter.emit(made, self._emits)
        except Unroutable:
            cause = made[0][0]
            of_several = any(envelope is not cause for envelope, _ in made)
            if self._unheard is None or of_several or cause.attempt < self._unheard_after:
                raise
            for _, message in made:
                await self._publish_or_undo(cause, message)

    async def _publish_or_undo(self, cause: Envelope, message: Message) -> None:
        """Publish the message; if it stays without a consumer, let the worker undo it and publish that."""
        assert self._unheard is not None
        try:
            await self._emitter.emit([(cause, message)], self._emits)
        except Unroutable as nobody:
            log.warning("%s: given up: %s", self.queue.name, nobody)
            instead = messages_of(await self._unheard(message))
            await self._emitter.emit([(cause, one) for one in instead], self._emits)

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        return False  # a message expects no reply, whatever its reply address
