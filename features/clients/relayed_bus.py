"""The connection of an operator who uses the RabbitMQ user of a client with a role.

Such a user may send one query only, `scheduler.relay.NAME`. A scheduler checks the role, records the act,
sends the message on, and returns the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import structs

from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus, Listener
from bus.errors import AnswerRefused, OperationRefused, Unavailable, Unroutable
from bus.protocol import QueueSpec, Transport, decode, encode
from bus.topics import TOPIC_OF, Address, Query
from bus.vocabulary import Message, cause_of
from features.clients.messages import CLIENT_RELAY, ClientRelay, RelayAnswered

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)

RELAY_SECONDS = 5.0  # added to the time limit of a relayed query, for relaying query and answer


class RelayedBus(RecordingBus):
    """The connection of a client with a role: a scheduler checks each message, records the client as its
    sender, and sends it on.
    """

    def __init__(self, transport: Transport, client: str) -> None:
        super().__init__(transport)
        self._client = client

    async def publish(self, *messages: Message) -> None:
        self.check_rehearsal(messages)
        for message in messages:
            reply_to = getattr(message, "reply_to", "")
            if reply_to:  # a client can receive results only under routing keys with its name
                message = structs.replace(message, reply_to=f"{self._client}_{reply_to}")
            await self._relay(TOPIC_OF[type(message)].pattern, message, RELAY_SECONDS)

    def asker_of_many(
        self, query: Query[A, R], timeout: float = 10.0
    ) -> Callable[[Sequence[A]], Awaitable[Sequence[R]]]:
        async def ask(questions: Sequence[A]) -> Sequence[R]:
            self.check_rehearsal(questions)
            answers = await asyncio.gather(*(self._relay(query.name, each, timeout) for each in questions))
            return [decode(query.answer, answer.encode()) for answer in answers]

        return ask

    async def listen(self, address: Address[M], prefetch: int = 1000) -> Listener[M]:
        name = f"client.{self._client}.{self.replica}.{self.clock.uuid()[:8]}"
        key, _, reply_to = address.key.rpartition(".")
        if address.topic.outsiders and key.count(".") == address.topic.pattern.count("."):
            address = Address(address.topic, f"{key}.{self._client}_{reply_to}")
        queue = QueueSpec(name, (address.key,), durable=False)
        await self.transport.declare(queue)
        return Listener(address, await self.transport.consume(queue, prefetch))

    async def _relay(self, to: str, message: Message, timeout: float) -> str:
        ask = Bus.asker_of_many(self, CLIENT_RELAY, timeout + RELAY_SECONDS)
        relay = ClientRelay(client=self._client, to=to, message=encode(message).decode(), seconds=timeout)
        (answered,) = await ask([relay])
        if answered.problem:
            raise _ERRORS[answered.problem](answered.why)
        return answered.answer


_ERRORS: dict[str, Callable[[str], Exception]] = {
    "denied": OperationRefused,
    "refused": AnswerRefused,
    "unavailable": Unavailable,
    "unroutable": Unroutable,
}


def relay_problem(error: Exception) -> RelayAnswered:
    """Return an answer to a relayed message that makes the sender's `RelayedBus` raise this error again."""
    name = next(name for name, kind in _ERRORS.items() if isinstance(error, kind))  # type: ignore[arg-type]
    return RelayAnswered(problem=name, why=cause_of(str(error)))  # type: ignore[arg-type]
