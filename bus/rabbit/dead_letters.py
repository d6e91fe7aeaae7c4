"""The dead-letter queue: burying, looking without taking, and taking out for good."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiormq import Channel
from aiormq.abc import DeliveredMessage

from bus.errors import Unroutable
from bus.protocol import DeadLetter
from bus.rabbit.connection import BROKEN, cancelled_by_us
from bus.rabbit.link import Link, Post, Session
from bus.rabbit.topology import LETTER
from bus.rabbit.wire import letter, letter_properties

Rescue = Callable[[DeadLetter], Awaitable[None]]


class Graveyard:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._name = link.names.dead
        self._one_at_a_time = asyncio.Lock()  # a letter that one of us looks at is out of the other's sight

    async def bury(self, dead: DeadLetter) -> None:
        post = Post(self._name, LETTER, dead.body, letter_properties(dead), mandatory=True)
        await self._link.insist(lambda session: session.topology.dead())
        try:
            await self._link.post(post)
        except Unroutable:  # somebody has deleted the queue meanwhile
            self._link.forget()
            await self._link.insist(lambda session: session.topology.dead())
            await self._link.post(post)

    async def letters(self, limit: int) -> list[DeadLetter]:
        async def look(session: Session) -> list[DeadLetter]:
            found: dict[str, DeadLetter] = {}
            async with _Opened(session, self._name) as grave:
                while len(found) < limit and (message := await grave.next()) is not None:
                    dead = letter(message)
                    found.setdefault(dead.id, dead)
            return list(found.values())

        async with self._one_at_a_time:
            return await self._link.insist(look)

    async def exhume(self, ids: Collection[str], rescue: Rescue | None) -> int:
        wanted, rescued = set(ids), dict[str, float]()  # id → when it died

        async def take(session: Session) -> Exception | None:
            async with _Opened(session, self._name) as grave:
                while (message := await grave.next()) is not None:
                    dead = letter(message)
                    if dead.id not in wanted:
                        continue
                    if rescue is not None and rescued.get(dead.id, dead.died) != dead.died:
                        continue  # it has died again of what we sent it back to
                    if rescue is not None and dead.id not in rescued:
                        try:
                            await rescue(dead)
                        except Exception as failure:  # not the broker's: no reason to try again
                            return failure
                    rescued[dead.id] = dead.died
                    await grave.remove(message)
            return None

        async with self._one_at_a_time:
            failure = await self._link.insist(take)
        if failure is not None:
            raise failure
        return len(rescued)


class _Opened:
    """The dead-letter queue while somebody looks into it; what is not removed goes back to where it was."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self._channel: Channel
        self._held: dict[int, None] = {}

    async def __aenter__(self) -> "_Opened":
        await self._session.topology.dead()
        self._channel = await self._session.channel()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._held:
                await self._channel.basic_nack(max(self._held), multiple=True, requeue=True)
            await self._channel.close()
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise

    async def next(self) -> DeliveredMessage | None:
        message = await self._channel.basic_get(self._name)
        if message.delivery_tag is None:
            return None
        self._held[message.delivery_tag] = None
        return message

    async def remove(self, message: DeliveredMessage) -> None:
        tag = message.delivery_tag or 0
        await self._channel.basic_ack(tag)
        del self._held[tag]
