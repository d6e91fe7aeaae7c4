"""Messages committed with the change they tell of; and their relay, which keeps the order and loses none."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, Table, Text, text
from sqlalchemy.sql.elements import TextClause

from bus.clock import Clock
from bus.context import envelope_of
from bus.database import Conflict, Database, Dialect, Transaction
from bus.messages import Message
from bus.protocol import MAX_FRAME_ENVELOPES, Envelope, Unavailable, Unroutable
from bus.rows import rows
from bus.worker import Undeclared

log = logging.getLogger(__name__)

Publish = Callable[[Sequence[Envelope]], Awaitable[None]]

POLL_SECONDS = 1.0  # for what a killed process left behind; this one's own commits wake the relay at once
PUBLISH_SECONDS = 30.0
PARKED_SECONDS = 5.0
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0
LINGER = 0.01  # between rounds, while commits come one upon the other: a round costs about what a commit does

_envelopes = msgspec.json.Decoder(Envelope)
_encode = msgspec.json.Encoder().encode

_INSERT = text("INSERT INTO outbox (key, type, envelope, created) VALUES (:key, :type, :envelope, :created)")

_Row = tuple[int, str, str]  # id, key, envelope


def outbox_table(metadata: MetaData) -> Table:
    """The outbox, for a store's schema and its migration. Rows are written and deleted, never changed."""
    return Table(
        "outbox",
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("key", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("envelope", Text, nullable=False),
        Column("created", Float(53), nullable=False),
        sqlite_autoincrement=True,  # an id must not come back: another relay may be about to delete it
    )


class Outbox:
    """Makes `tx.emit` work on this database, for the messages its worker announces."""

    def __init__(self, database: Database, clock: Clock, announces: Collection[type[Message]]) -> None:
        self._database = database
        self._clock = clock
        self._announces = frozenset(announces)
        self._woken = asyncio.Event()
        self._parked: dict[str, float] = {}  # keys nobody hears, and when to try them again
        database.outbox = self

    def row(self, message: Message) -> Mapping[str, Any]:
        kind = type(message)
        if kind not in self._announces:
            raise Undeclared(f"{kind.__name__} is emitted, but the worker's table does not announce it")
        envelope = envelope_of(message, self._clock)
        return {
            "key": envelope.key,
            "type": envelope.type,
            "envelope": _encode(envelope).decode(),
            "created": envelope.sent_at,
        }

    async def save(self, tx: Transaction, announced: Sequence[Mapping[str, Any]]) -> None:
        await tx.execute(_INSERT, announced)

    def wake(self) -> None:
        self._woken.set()

    async def relay(self, publish: Publish) -> None:
        """Publish what was committed, oldest first, for ever. A row goes once its publish has returned."""
        wait = SHORTEST_WAIT
        clock = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            began = clock()
            try:
                more = await self._round(publish)
            except (Unavailable, Conflict) as condition:
                if wait == SHORTEST_WAIT:
                    log.warning("the outbox of %s waits: %s", self._database.name, condition)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            wait = SHORTEST_WAIT
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._woken.wait()
                if (early := began + LINGER - clock()) > 0:
                    await asyncio.sleep(early)

    async def _round(self, publish: Publish) -> bool:
        """Publish and forget the oldest rows; whether there may be more."""
        if self._database.dialect == "postgresql":
            # The locked rows keep other processes' relays waiting, and hinder nobody who writes.
            async with self._database.write() as tx:
                oldest = await self._oldest(tx)
                await self._forget(tx, await self._sent(publish, oldest))
        else:
            # Publishing takes its time: not with SQLite's one write lock in hand.
            async with self._database.read() as tx:
                oldest = await self._oldest(tx)
            if ids := await self._sent(publish, oldest):
                async with self._database.write() as tx:
                    await self._forget(tx, ids)
        return len(oldest) == MAX_FRAME_ENVELOPES

    async def _oldest(self, tx: Transaction) -> list[_Row]:
        now = asyncio.get_running_loop().time()
        self._parked = {key: until for key, until in self._parked.items() if until > now}
        parked = rows(tx.dialect, "parked", key=str).bind([(key,) for key in self._parked])
        result = await tx.execute(_select(tx.dialect), parked)
        return [(row.id, row.key, row.envelope) for row in result]

    async def _forget(self, tx: Transaction, ids: Sequence[int]) -> None:
        if ids:
            sent = rows(tx.dialect, "sent", id=int).bind([(id_,) for id_ in ids])
            await tx.execute(_delete(tx.dialect), sent)

    async def _sent(self, publish: Publish, oldest: Sequence[_Row]) -> list[int]:
        """The ids of those that were published: all, unless nobody hears a key."""
        if not oldest:
            return []
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                try:
                    await publish([_envelopes.decode(envelope) for _, _, envelope in oldest])
                    return [id_ for id_, _, _ in oldest]
                except Unroutable:
                    return await self._sent_singly(publish, oldest)
        except TimeoutError:
            raise Unavailable(f"the bus took no messages for {PUBLISH_SECONDS:.0f} s") from None

    async def _sent_singly(self, publish: Publish, oldest: Sequence[_Row]) -> list[int]:
        """A key nobody hears holds up its own messages, in their order, and no others."""
        sent = []
        retry_at = asyncio.get_running_loop().time() + PARKED_SECONDS
        for id_, key, envelope in oldest:
            if key in self._parked:
                continue
            try:
                await publish([_envelopes.decode(envelope)])
                sent.append(id_)
            except Unroutable as nobody:
                log.warning("kept in the outbox of %s: %s", self._database.name, nobody)
                self._parked[key] = retry_at
        return sent


@cache
def _select(dialect: Dialect) -> TextClause:
    locking = "FOR UPDATE" if dialect == "postgresql" else ""
    return text(
        "SELECT id, key, envelope FROM outbox"
        f" WHERE key NOT IN (SELECT parked.key FROM {rows(dialect, 'parked', key=str)})"
        f" ORDER BY id LIMIT {MAX_FRAME_ENVELOPES} {locking}"
    )


@cache
def _delete(dialect: Dialect) -> TextClause:
    return text(f"DELETE FROM outbox WHERE id IN (SELECT sent.id FROM {rows(dialect, 'sent', id=int)})")
