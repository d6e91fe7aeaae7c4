"""A broker with berth's exchanges has the scheduler's queues: no request is lost before a scheduler runs."""

import asyncio
import json

import aio_pika
import pytest

from berth import wiring
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.topics import BUILD_REQUESTED
from bus.worker import Worker, central_queues, on
from tests.support.waiting import in_time


def test_they_are_all_that_a_scheduler_must_hear() -> None:
    workers = [worker for worker in wiring.all_workers_without_a_bus() if worker.name == "scheduler"]
    rows = [row for worker in workers for row in worker.consumes if row.address.topic.expected]
    heard = {spec.name: spec for row in rows if (spec := workers[0].queue_of(row, "r")).durable}
    assert {spec.name: spec for spec in central_queues()} == heard


@pytest.mark.services
async def test_a_request_that_is_published_before_any_scheduler_started_is_handled(
    amqp_url: str, bus_name: str
) -> None:
    settings = Settings().having(amqp_url=amqp_url, exchange=bus_name)
    async with (
        Bus(wiring.transport(settings, "placement")),
        await aio_pika.connect(amqp_url) as connection,
    ):
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
        async with (
            Bus(wiring.transport(settings, "scheduler")) as scheduler,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(scheduler.serve(worker, stopping))
            assert (await in_time(handled.get())).request == build
            stopping.set()
