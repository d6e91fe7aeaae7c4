"""Publishing what a worker's handlers returned, each message as a consequence of the one it answers to."""

from collections.abc import Sequence

from bus.clock import Clock
from bus.context import envelope_of
from bus.protocol import Envelope, Transport
from bus.topics import TOPIC_OF
from bus.vocabulary import Message
from bus.worker import Undeclared

Emit = tuple[Envelope | None, Message]  # its cause (None for a timer), and the message to publish


class Emitter:
    def __init__(self, worker: str, transport: Transport, clock: Clock) -> None:
        self.worker = worker
        self._transport = transport
        self._clock = clock

    async def emit(self, made: Sequence[Emit], declared: frozenset[type[Message]]) -> None:
        """Publish the messages and wait for the broker's confirms; refuse a message type that the row does
        not declare.
        """
        if not made:
            return
        envelopes, expected = [], []
        for cause, message in made:
            if type(message) not in declared:
                raise Undeclared(
                    f"{self.worker} emitted {type(message).__name__}, which its row does not declare"
                )
            envelopes.append(envelope_of(message, self._clock, cause))
            expected.append(TOPIC_OF[type(message)].expected)
        await self._transport.publish(envelopes, expected=expected)
