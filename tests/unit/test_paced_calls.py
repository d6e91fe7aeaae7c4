"""Handlers whose calls with lists of messages begin at a pace."""

import asyncio
from collections.abc import Sequence
from random import Random

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested
from bus.worker import Worker, on_many
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time

PACE = 1.0
FULL = 64


class PacedHandler:
    """A handler that records when it is called, and with how many messages."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int]] = []
        row = on_many(topics.BUILD_CANCEL, self.handle_many, concurrency=8, batch=FULL, pace=PACE)
        self.worker = Worker("scheduler", consumes=[row])
        self._numbers = iter(range(10_000))
        loop = asyncio.get_running_loop()
        self._clock = Clock(now=loop.time, monotonic=loop.time, chance=Random(7))

    async def handle_many(self, messages: Sequence[BuildCancelRequested]) -> Sequence[None]:
        self.calls.append((self._clock.monotonic(), len(messages)))
        return [None] * len(messages)

    async def called(self, *arrivals: tuple[float, int]) -> list[tuple[float, int]]:
        """Return the calls after these numbers of messages arrived, each number after a pause in seconds."""
        stopping = asyncio.Event()
        async with Bus(LocalTransport(LocalBroker()), self._clock) as bus, asyncio.TaskGroup() as group:
            serving = group.create_task(bus.serve(self.worker, stopping))
            await asyncio.sleep(1.0)
            began, self.calls = self._clock.monotonic(), []
            for pause, count in arrivals:
                await asyncio.sleep(pause)
                numbers = [next(self._numbers) for _ in range(count)]
                await bus.publish(
                    *(BuildCancelRequested(build=uid(number), reply_to="client") for number in numbers)
                )
            await asyncio.sleep(2 * PACE)
            stopping.set()
            await serving
        return [(round(at - began, 3), count) for at, count in self.calls]


@in_virtual_time
async def test_while_lists_are_long_the_next_call_begins_at_the_pace() -> None:
    assert await PacedHandler().called((5.0, 20), (0.1, 3), (0.2, 4), (0.5, 2), (0.4, 5)) == [
        (5.0, 20),
        (6.0, 9),
        (7.0, 5),
    ]


@in_virtual_time
async def test_single_messages_do_not_wait_for_the_pace() -> None:
    assert await PacedHandler().called((5.0, 1), (0.1, 1), (0.1, 1)) == [(5.0, 1), (5.1, 1), (5.2, 1)]


@in_virtual_time
async def test_a_full_list_does_not_wait_for_the_pace() -> None:
    assert await PacedHandler().called((5.0, 20), (0.1, FULL + 1)) == [(5.0, 20), (5.1, FULL), (6.1, 1)]
