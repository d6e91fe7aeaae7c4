"""RabbitTransport: the bus over RabbitMQ, with durable queues, publisher confirms and acknowledgements."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from functools import partial

from bus.errors import Unconfirmed
from bus.protocol import BusDepths, DeadLetter, Envelope, Inbox, QueueDepth, QueueSpec, page_of
from bus.rabbit.client_channels import ClientChannels
from bus.rabbit.connection import RequestRefused, broker_url
from bus.rabbit.consuming import RabbitInbox
from bus.rabbit.dead_letters import DeadLetterQueue, UnroutedMessages
from bus.rabbit.publishing import Publisher
from bus.rabbit.reconnecting import Link, Session
from bus.rabbit.topology import DELAYS, BrokerNames, Declared, delay_for
from bus.topics import is_for_clients


class RabbitTransport:
    """The bus's connection to RabbitMQ, reopened whenever it breaks; calls wait until it is open again."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "berth",
        quorum: bool = True,
        name: str = "",
        patience: float = 30.0,
        poll_seconds: float = 2.0,  # seconds between two checks of the exchanges
        declares_shared: bool = False,  # declare the queues that all workers use when the connection opens
        central: Sequence[QueueSpec] = (),  # queues to declare before a missing exchange is declared
    ) -> None:
        self._names = BrokerNames(exchange)
        self._patience = patience
        declared = Declared(central=tuple(central), dead=declares_shared)
        if declares_shared:
            declared.delays = {delay_for(seconds) for seconds in DELAYS}
        self._link = Link(
            broker_url(url, name), self._names, quorum=quorum, poll_seconds=poll_seconds, declared=declared
        )
        self._publisher = Publisher(self._link, self._link.post)
        self._for_clients = Publisher(self._link, ClientChannels(self._link).post)
        self._dead = DeadLetterQueue(self._link)
        self._unrouted = (
            UnroutedMessages(self._link, self._put_back, self._dead.store_dead_letter)
            if declares_shared
            else None
        )
        self._inboxes: list[RabbitInbox] = []

    async def open(self) -> None:
        await self._link.open(self._patience)
        if self._unrouted is not None:
            self._link.spawn(self._unrouted.run())

    async def close(self) -> None:
        try:
            await asyncio.gather(*(inbox.close() for inbox in self._inboxes))
        finally:  # even if this call is cancelled: an open link would continue to consume
            self._inboxes.clear()
            try:
                await self._link.close()
            finally:
                self._publisher.abandon()
                self._for_clients.abandon()

    async def declare(self, *queues: QueueSpec) -> None:
        await self._link.declare(*queues)

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        sent: dict[str, list[tuple[str, Envelope, bool]]] = {}
        for_clients: list[tuple[str, Envelope, bool]] = []
        for envelope, must in zip(envelopes, expected, strict=True):
            key = envelope.key
            if is_for_clients(envelope.type, key):
                for_clients.append((key, envelope, must))
            else:
                sent.setdefault(self._names.exchange_of(key), []).append((key, envelope, must))
        receipt = self._for_clients.start(self._names.exchange, for_clients)
        for exchange, items in sent.items():
            await self._publisher.send(exchange, items)
        if receipt is not None:
            await receipt.done
            if late := receipt.unconfirmed:
                raise Unconfirmed(
                    {each.key for each in late},
                    ids=[each.id for each in late],
                    causes=[each.causation for each in late],
                )

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        if seconds <= 0:
            await self._put_back(queue, [envelope])
            return
        milliseconds = delay_for(seconds)
        delayed = [(self._names.address(queue, milliseconds), envelope, True)]
        await self._link.insist_on_queue(
            partial(self._link.declare_delay, milliseconds),
            partial(self._publisher.send, self._names.delay, delayed),
        )

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        await self._dead.store_dead_letter(letter)

    async def waiting(self, queue: str) -> int:
        name = self._names.queue(queue)
        depth = partial(self._link.insist, lambda session: session.topology.depth(name))
        return (await self._link.undisturbed(depth))[0]

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        inbox = RabbitInbox(self._link, queue, prefetch, self._put_back)
        self._link.declare_on_reconnect(queue)
        await self._link.undisturbed(inbox.start)  # declares the queue, which must not be cancelled
        self._inboxes = [reader for reader in self._inboxes if not reader.ended]
        self._inboxes.append(inbox)
        return inbox

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        """Return the numbers of messages and consumers of the given queues, of dead letters and of delayed
        messages. The queues are queried one by one, because AMQP has no request for several.
        """
        return await self._link.undisturbed(lambda: self._link.insist(partial(_depths, self._names, queues)))

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        return await page_of(self._dead.each(after, beginning), limit)

    def each_dead_letter(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]:
        return self._dead.each(after, beginning)

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        return await self._dead.remove_dead_letters(ids, rescue)

    async def _put_back(self, queue: str, envelopes: Sequence[Envelope]) -> None:
        key = self._names.address(queue)
        await self._publisher.send(self._names.queues, [(key, envelope, True) for envelope in envelopes])


async def _depths(names: BrokerNames, queues: Sequence[str], session: Session) -> BusDepths:
    async def depth(name: str) -> QueueDepth | None:
        try:
            return QueueDepth(*await session.topology.depth(name))
        except RequestRefused as refused:
            if refused.code in ("NOT_FOUND", "RESOURCE_LOCKED"):  # a private queue of another connection
                return None
            raise

    found = {name: await depth(names.queue(name)) for name in dict.fromkeys(queues)}
    delays = [await depth(f"{names.delay}.{delay_for(seconds)}") for seconds in DELAYS]
    delays.append(await depth(names.unrouted))
    dead = await depth(names.dead)
    return BusDepths(
        {name: queue_depth for name, queue_depth in found.items() if queue_depth is not None},
        dead=dead.messages if dead else 0,
        delayed=sum(delay.messages for delay in delays if delay),
    )
