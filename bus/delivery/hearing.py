"""A row that hears a topic: what its handler returns is published to the topics the row declares."""

from bus.clock import Clock
from bus.delivery.emitting import Emitter
from bus.delivery.settling import Made, ServedRow
from bus.protocol import Envelope, Transport
from bus.worker import On, Worker


class HeardRow(ServedRow):
    def __init__(
        self, row: On, worker: Worker, replica: str, transport: Transport, clock: Clock, emitter: Emitter
    ) -> None:
        super().__init__(row, worker, replica, transport, clock)
        self._emits = row.emits
        self._emitter = emitter

    async def _say(self, made: Made) -> None:
        await self._emitter.emit(made, self._emits)

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        return False  # nobody waits for an answer to a message, whatever a stranger wrote beside it
