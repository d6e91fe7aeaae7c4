"""Callers are served in batches, and acknowledgements are combined."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from bus.rabbit import deliveries
from bus.rabbit.deliveries import ACKS_WAIT, Parcel, Reading
from placement_worker.transactions import AT_ONCE, Batched
from tests.support.waiting import until


class TagsTold:
    def __init__(self) -> None:
        self.acks: list[tuple[int, bool]] = []
        self.nacks: list[int] = []

    async def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.acks.append((tag, multiple))

    async def nack(self, tag: int) -> None:
        self.nacks.append(tag)


@pytest.fixture
async def reading() -> Reading:
    made = Reading(TagsTold())  # type: ignore[arg-type]
    made.in_advance = 64
    made.unsettled = dict.fromkeys(range(1, 65))
    return made


def told(reading: Reading) -> Any:
    return reading.channel


async def test_acknowledgements_of_one_moment_are_combined(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "ACKS_WAIT", 0.01)
    begun = asyncio.get_running_loop().time()
    reading.ack(1)
    assert not reading.wake.is_set()
    reading.ack(2)
    reading.ack(4)
    await until(reading.wake.is_set)
    assert asyncio.get_running_loop().time() >= begun + 0.01
    await reading.settle()
    assert told(reading).acks == [(2, True), (4, False)]


@pytest.mark.parametrize(("in_advance", "enough"), [(64, 16), (4, 1), (1, 1), (0, 1)])
async def test_before_the_broker_has_nothing_more_to_send_it_is_told(
    reading: Reading, in_advance: int, enough: int
) -> None:
    reading.in_advance = in_advance
    for tag in range(1, enough):
        reading.ack(tag)
    assert not reading.wake.is_set()
    reading.ack(enough)
    assert reading.wake.is_set()


@pytest.mark.parametrize("returned", [False, True])
async def test_messages_of_a_consumer_that_left_are_returned_immediately(
    reading: Reading, returned: bool
) -> None:
    parcel = Parcel(reading, 1, 2, asyncio.Event(), lambda *_: None, returned=returned)
    parcel.settled()
    assert not reading.wake.is_set()  # there is another envelope in it
    parcel.settled()
    assert reading.wake.is_set() == returned


async def test_requeued_messages_are_returned_immediately(reading: Reading) -> None:
    reading.nack(1)
    assert reading.wake.is_set()


async def test_a_message_settled_after_an_acknowledgement_waits_for_the_next(reading: Reading) -> None:
    loop = asyncio.get_running_loop()
    reading.ack(1)
    await reading.settle()  # as by a nack, or at a stop
    reading.wake.clear()
    begun = loop.time()
    reading.ack(2)
    await until(reading.wake.is_set)
    assert loop.time() >= begun + ACKS_WAIT
    await reading.settle()
    assert told(reading).acks == [(1, True), (2, True)]


class Work:
    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int]:
        self.lists.append(list(numbers))
        await self.go_on.wait()
        if 13 in numbers:
            raise ValueError("thirteen")
        return [2 * number for number in numbers]


@asynccontextmanager
async def at_work(work: Work) -> AsyncIterator[Batched[int, int]]:
    together = Batched(work)
    running = asyncio.ensure_future(together.run())
    try:
        yield together
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def calls(together: Batched[int, int], work: Work, *numbers: int) -> list[asyncio.Task[int]]:
    """Call with each in turn, until all are in work or waiting."""
    tasks = []
    for number in numbers:
        before = len(work.lists)
        tasks.append(asyncio.ensure_future(together(number)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(work.lists) >= before
    return tasks


async def test_callers_during_a_running_batch_wait_for_the_next_one() -> None:
    work = Work()
    async with at_work(work) as together:
        tasks = await calls(together, work, *range(AT_ONCE + 3))
        assert work.lists == [[number] for number in range(AT_ONCE)]
        work.go_on.set()
        assert await asyncio.gather(*tasks) == [2 * number for number in range(AT_ONCE + 3)]
        assert work.lists[AT_ONCE:] == [[AT_ONCE, AT_ONCE + 1, AT_ONCE + 2]]


async def test_an_error_concerns_its_batch_only() -> None:
    work = Work()
    async with at_work(work) as together:
        work.go_on.set()
        with pytest.raises(ValueError, match="thirteen"):
            await together(13)
        assert await together(4) == 8


async def test_a_caller_who_left_is_not_served() -> None:
    work = Work()
    async with at_work(work) as together:
        first, second, third, fourth = await calls(together, work, 1, 2, 3, 4)
        third.cancel()
        work.go_on.set()
        assert [await task for task in (first, second, fourth)] == [2, 4, 8]
        assert work.lists == [[1], [2], [4]]
