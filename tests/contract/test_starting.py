"""The start of workers: queues exist before them, start functions precede consumption, publishers wait."""

import asyncio
import json
import logging

import aio_pika
import pytest

from berth import wiring
from berth.operations.publishing import publish
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.messages import BuildDeleteRequested, BuildRequested, HostReported
from bus.protocol import QueueSpec
from bus.requests import Flavor
from bus.topics import BUILD_REQUESTED
from bus.worker import Worker, central_queues, on
from tests.support.buses import Connect
from tests.support.ids import uid
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


async def test_a_worker_whose_start_never_ends_can_be_stopped(connect: Connect) -> None:
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


def test_the_central_queues_are_those_that_a_scheduler_consumes() -> None:
    workers = [worker for worker in wiring.all_workers_without_a_bus() if worker.name == "scheduler"]
    rows = [row for worker in workers for row in worker.consumes if row.address.topic.expected]
    heard = {spec.name: spec for row in rows if (spec := workers[0].queue_of(row, "r")).durable}
    assert {spec.name: spec for spec in central_queues()} == heard


@pytest.mark.services
async def test_a_request_that_is_published_before_any_scheduler_started_is_handled(
    amqp_url: str, bus_name: str
) -> None:
    settings = Settings().having(amqp_url=amqp_url, exchange=bus_name)
    async with Bus(wiring.transport(settings, "placement")), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(bus_name)
        watching = await channel.declare_queue(exclusive=True)
        await watching.bind(exchange, "#")
        build = "00000000-0000-0000-0000-000000000001"
        request = {"request": build, "instances": [build], "flavor": {"name": "small", "vcpus": 1}}
        message = aio_pika.Message(json.dumps(request).encode())
        await exchange.publish(message, "build.requested", mandatory=True)
        handled: asyncio.Queue[BuildRequested] = asyncio.Queue()
        stopping = asyncio.Event()
        worker = Worker("scheduler", consumes=[on(BUILD_REQUESTED, handled.put)])
        async with Bus(wiring.transport(settings, "scheduler")) as scheduler, asyncio.TaskGroup() as group:
            group.create_task(scheduler.serve(worker, stopping))
            assert (await in_time(handled.get())).request == build
            stopping.set()


REQUEST = BuildRequested(request=uid(1), instances=(uid(2),), flavor=Flavor(name="small", vcpus=1))


async def test_a_publisher_waits_for_a_missing_consumer_and_says_so_once(
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
