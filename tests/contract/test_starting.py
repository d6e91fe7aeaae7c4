"""The start of a worker: its start functions come before any consumption, and may be interrupted."""

import asyncio

import pytest

from bus import topics
from bus.delivery.runner import Bus
from bus.messages import HostReported
from bus.worker import Worker, on
from tests.support.buses import Connect
from tests.support.waiting import in_time, until

REPORT = HostReported(cell="c1", agent="a1", sequence=1, hosts=())


async def test_nothing_is_consumed_before_it_has_started(connect: Connect) -> None:
    heard: list[HostReported] = []
    begun, open_, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start() -> None:
        begun.set()
        await open_.wait()

    async def handle(message: HostReported) -> None:
        heard.append(message)

    worker = Worker("late", consumes=[on(topics.HOST_REPORTED, handle)], starts=[start])
    async with Bus(connect()) as bus, asyncio.TaskGroup() as group:
        group.create_task(bus.serve(worker, stopping))
        await in_time(begun.wait())
        await bus.publish(REPORT)
        assert heard == []
        open_.set()
        await until(lambda: heard == [REPORT])
        stopping.set()


async def test_one_that_waits_to_start_in_vain_can_be_stopped(connect: Connect) -> None:
    begun, stopping = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Bus(connect()) as bus, asyncio.TaskGroup() as group:
        serving = group.create_task(bus.serve(Worker("patient", starts=[start]), stopping))
        await in_time(begun.wait())
        stopping.set()
        await in_time(serving)


async def test_why_one_cannot_start_is_raised_as_it_is(connect: Connect) -> None:
    async def start() -> None:
        raise LookupError("no key")

    async with Bus(connect()) as bus:
        with pytest.raises(LookupError, match="no key"):
            await bus.serve(Worker("lost", starts=[start]), asyncio.Event())
