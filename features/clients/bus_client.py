"""A client on RabbitMQ, with the credentials of `berth access client create` (features/clients/README.md)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import PublishError
from msgspec import structs

from berth.kit import add_messages
from bus import protocol
from bus.broker_urls import client_user, user_of
from bus.clock import Clock
from bus.errors import AnswerRefused, NoAnswer, Unroutable
from bus.invalid_requests import KINDS
from bus.parts import converted
from bus.rabbit.topology import BrokerNames
from bus.topics import client_topics
from bus.vocabulary import Message
from features.clients.messages import ClientAnswered, ClientAsked, ClientRequested

A = TypeVar("A", bound=Message)

add_messages()
_KINDS = {topic.message.__name__: topic.message for topic in client_topics()}


class BusClient:
    """A registered client on RabbitMQ, for `async with`. It receives all results of its requests.

    Programs that share a client's credentials use different values of `number`, from 0 to 99. With
    `is_durable` the queue of results remains while the program does not run; RabbitMQ then drops the oldest
    results beyond 64 MiB.
    """

    def __init__(
        self, url: str, number: int = 0, *, exchange: str = "berth", is_durable: bool = False
    ) -> None:
        self._url = url
        self.name = (user_of(url) or "").removeprefix(client_user("", exchange))
        self._queue = f"client.{self.name}.{number}"
        self._reply_to = f"{self._queue}.answers"
        self._names = BrokerNames(exchange)
        self._is_durable = is_durable
        self._clock = Clock()
        self._stack = AsyncExitStack()
        self._results: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[AbstractIncomingMessage]] = {}
        self._exchange: AbstractExchange  # of clients' requests

    async def __aenter__(self) -> Self:
        connection = await self._stack.enter_async_context(await aio_pika.connect_robust(self._url))
        channel: AbstractChannel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchange = await channel.get_exchange(self._names.clients, ensure=False)
        results = await channel.get_exchange(self._names.exchange, ensure=False)
        name = self._names.queue(self._queue)
        if self._is_durable:
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        else:
            queue = await channel.declare_queue(name, exclusive=True)
        for topic in client_topics():
            await queue.bind(results, topic.at(reply_to=self.name).key)
        await queue.bind(results, self._reply_to)
        await queue.consume(self._receive)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def publish(self, *acts: Message) -> None:
        """Publish requests, and wait until the broker has stored all of them; raise Unroutable if no queue
        takes one. A repeated request has no effect.
        """
        sends = []
        for act in acts:
            request = structs.replace(act, reply_to=self.name)
            asked = ClientRequested(client=self.name, do=KINDS[type(act)].action, message=request)
            sends.append(self._send(f"client.{self.name}", asked))
        for problem in await asyncio.gather(*sends, return_exceptions=True):
            if problem is not None:
                raise problem

    async def results(self) -> AsyncIterator[Message]:
        """Yield the results of this client's requests, without end; a result may be yielded twice."""
        while True:
            yield await self._results.get()

    async def ask(self, query: str, question: Message, answer: type[A], timeout: float = 10.0) -> A:
        """Send a query, such as `decision`; return the answer, a message of the type `answer`, or raise
        AnswerRefused or NoAnswer.
        """
        id_ = self._clock.uuid()
        self._answers[id_] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                asked = ClientAsked(client=self.name, query=query, message=question)
                await self._send(f"ask.scheduler.client.{self.name}", asked, id_, self._reply_to)
                message = await self._answers[id_]
        except TimeoutError:
            raise NoAnswer(f"no scheduler answered within {timeout:g} s") from None
        finally:
            del self._answers[id_]
        if error := message.headers.get("error"):
            raise AnswerRefused(str(error))
        answered = protocol.decode(ClientAnswered, message.body)
        if answered.refused:
            raise AnswerRefused(answered.refused)
        return converted(answer, answered.answer)

    async def _send(self, key: str, message: Message, id_: str | None = None, reply_to: str = "") -> None:
        sent = aio_pika.Message(
            protocol.encode(message),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=id_,
            reply_to=reply_to or None,
        )
        try:
            await self._exchange.publish(sent, key, mandatory=True)
        except PublishError:
            raise Unroutable(
                f"no queue takes messages of {key}: no scheduler has served this client"
            ) from None

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        async with message.process():
            if message.routing_key == self._reply_to:
                waiting = self._answers.get(str(message.headers.get("causation_id")))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
                return
            if message.type == protocol.FRAME_TYPE:
                for envelope in protocol.decode_frame(message.body):
                    self._results.put_nowait(protocol.decode(_KINDS[envelope.type], envelope.body))
            else:
                self._results.put_nowait(protocol.decode(_KINDS[message.type or ""], message.body))
