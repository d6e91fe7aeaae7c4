"""A client may publish immediately: a consumer that is still starting is awaited. On both buses."""

import asyncio
import logging

import pytest

from berth.publishing import publish
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.messages import BuildDeleteRequested, BuildRequested
from bus.protocol import QueueSpec
from bus.requests import Flavor
from tests.support.buses import Connect
from tests.support.ids import uid
from tests.support.waiting import in_time, until

REQUEST = BuildRequested(request=uid(1), instances=(uid(2),), flavor=Flavor(name="small", vcpus=1))


async def test_who_is_not_there_yet_is_waited_for_and_that_is_said_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    queue = QueueSpec("scheduler.late", ("build.requested",))
    async with Bus(connect()) as client, Bus(connect()) as late, asyncio.TaskGroup() as group:
        publishing = group.create_task(publish(client, REQUEST))
        await until(lambda: bool(caplog.records), "it says for what it waits")
        assert not publishing.done()
        inbox = await late.transport.consume(queue, 10)
        await in_time(publishing)
        assert (await in_time(inbox.get())).envelope.type == "BuildRequested"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [warning.getMessage() for warning in warnings] == [
        "no queue hears build.requested: not up yet: scheduler; trying again for 10 s"
    ]


async def test_when_nobody_comes_it_says_who_is_missing(connect: Connect) -> None:
    async with Bus(connect()) as client:
        with pytest.raises(Unroutable, match=r"no queue hears build\.requested: not running: scheduler"):
            await publish(client, REQUEST, patience=0.0)
        with pytest.raises(
            Unroutable, match=r"build\.delete\.c7: not running: that cell.s conductor \(tried"
        ):
            await publish(client, BuildDeleteRequested(build=uid(2), cell="c7"), patience=0.2)
