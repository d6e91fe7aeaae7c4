"""Measures the broker and the database of this machine alone, as a yardstick for figures that depend on both.

Never change the loops, or recorded runs cannot be compared.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import aio_pika
import asyncpg

from bench.own_servers import broker_and_database

_TURNS = 4  # the first is not counted
_TURN = 0.2  # seconds
_AT_ONCE = 64  # messages, or rows of a transaction
_BODY = b"." * 300
_QUEUE = "yardstick"


class DurableRates(NamedTuple):
    """The rates, per second, at which a broker and a database store durably."""

    publishes: float  # persistent messages to a quorum queue, each confirmed, 64 at once
    inserts: float  # rows, 64 in a transaction with synchronous_commit = on, one transaction after the other

    def __str__(self) -> str:
        return f"{self.publishes:,.0f} confirmed publishes/s, {self.inserts:,.0f} inserted rows/s"


def durable_rates(amqp_url: str, database_url: str) -> DurableRates:
    return asyncio.run(_durable_rates(amqp_url, database_url))


def of_new_servers() -> DurableRates:
    """Return how much a new broker and a new database store durably in a second; delete both afterwards."""
    with broker_and_database() as (amqp_url, database_url):
        return durable_rates(amqp_url, database_url)


async def _durable_rates(amqp_url: str, database_url: str) -> DurableRates:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(_QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(_BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)

        async def publish() -> None:
            await asyncio.gather(
                *(channel.default_exchange.publish(message, _QUEUE) for _ in range(_AT_ONCE))
            )

        publishes = await _per_second(publish)
        await channel.queue_delete(_QUEUE)
    database = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        await database.execute("SET synchronous_commit = on")
        await database.execute("CREATE TABLE yardstick (id bigserial PRIMARY KEY, body bytea NOT NULL)")

        async def insert() -> None:
            rows = [_BODY] * _AT_ONCE
            await database.execute("INSERT INTO yardstick (body) SELECT unnest($1::bytea[])", rows)

        inserts = await _per_second(insert)
        await database.execute("DROP TABLE yardstick")
    finally:
        await database.close()
    return DurableRates(publishes, inserts)


async def _per_second(work: Callable[[], Awaitable[None]]) -> float:
    rates = []
    for _ in range(_TURNS):
        done, began = 0, time.perf_counter()
        while (clock := time.perf_counter() - began) < _TURN:
            await work()
            done += _AT_ONCE
        rates.append(done / clock)
    return statistics.median(rates[1:])
