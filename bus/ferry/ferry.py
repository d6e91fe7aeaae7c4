"""The ferry of one cell: runs all its crossings between the central broker and the cell's broker.

It stores nothing. If it or one of the brokers is unavailable, messages wait at the other broker in one queue
for each crossing, and publishers are not affected.
"""

import asyncio
import logging
from collections.abc import Sequence

from bus.backoff import Backoff
from bus.clock import Clock
from bus.errors import BrokerRefused, Unavailable
from bus.ferry.crossings import Crossing, Way
from bus.ferry.passage import LAG, UNHEARD_SECONDS, WAITING, Passage
from bus.protocol import Transport
from bus.worker import Worker

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two measurements of the queues' depths


def ferry(
    crossings: Sequence[Crossing],
    middle: Transport,
    own: Transport,
    clock: Clock,
    look_seconds: float = LOOK_SECONDS,
    unheard_seconds: float = UNHEARD_SECONDS,
) -> Worker:
    """Return the ferry's worker, to be served on a bus of the central broker. `own` is the cell's broker; it
    is opened when it becomes available.
    """
    (cell,) = {crossing.cell for crossing in crossings}
    into = [Passage(one, middle, own, clock, unheard_seconds) for one in crossings if one.way is Way.IN]
    out = [Passage(one, own, middle, clock, unheard_seconds) for one in crossings if one.way is Way.OUT]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for passage in into:  # messages published in the meantime wait in the queues
                group.create_task(passage.run())
            await _opened(own, clock)
            for passage in out:
                group.create_task(passage.run())
            for side, passages in ((middle, into), (own, out)):
                group.create_task(_look(side, passages, clock, look_seconds))

    return Worker(f"ferry.{cell}", runs=[run])


async def _opened(own: Transport, clock: Clock) -> None:
    backoff = Backoff(clock)
    while True:
        try:
            await own.open()
            return
        except (Unavailable, BrokerRefused) as problem:
            log.warning("the broker of the cell: %s; trying again", problem)
        await backoff.pause()


async def _look(side: Transport, passages: Sequence[Passage], clock: Clock, seconds: float) -> None:
    while True:
        for passage in passages:
            crossing = passage.crossing
            of = crossing.cell, crossing.way.value, crossing.name
            try:
                behind = await side.waiting(crossing.queue.name)
            except (Unavailable, BrokerRefused):  # it is just being made
                behind = 0
            WAITING.labels(*of).set(behind + passage.in_hand)
            LAG.labels(*of).set(max(clock.now() - passage.oldest, 0.0) if passage.in_hand else 0.0)
        await asyncio.sleep(seconds)
