"""Acknowledgements are combined, and sent before the broker's limit is reached."""

import asyncio
from typing import Any

import pytest

from bus.rabbit import deliveries
from bus.rabbit.deliveries import ACKS_WAIT, Parcel, Reading
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


async def test_those_of_a_moment_are_told_together(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_what_came_back_from_a_reader_who_went_away_is_told_at_once(
    reading: Reading, returned: bool
) -> None:
    parcel = Parcel(reading, 1, 2, asyncio.Event(), lambda *_: None, returned=returned)
    parcel.settled()
    assert not reading.wake.is_set()  # there is another envelope in it
    parcel.settled()
    assert reading.wake.is_set() == returned


async def test_what_goes_back_into_the_queue_is_told_at_once(reading: Reading) -> None:
    reading.nack(1)
    assert reading.wake.is_set()


async def test_what_settles_after_a_telling_waits_its_own_time(reading: Reading) -> None:
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
