"""The client for RabbitMQ: what `publish` and `ask` promise."""

import uuid

import aio_pika
import pytest

from bus.errors import Unroutable
from bus.messages import BuildRequested
from bus.queries import FindWaiting, WaitingFound
from bus.rabbit.topology import BrokerNames
from bus.requests import Flavor
from features.clients.bus_client import BusClient

pytestmark = pytest.mark.rabbitmq


async def test_a_request_that_no_queue_takes_is_an_error_of_the_client(amqp_url: str, bus_name: str) -> None:
    names = BrokerNames(bus_name)
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in (names.exchange, names.clients):
            await channel.declare_exchange(name, "topic", durable=True)
        async with BusClient(amqp_url, exchange=bus_name) as client:
            build = str(uuid.uuid4())
            boot = BuildRequested(request=build, instances=(build,), flavor=Flavor(name="small", vcpus=1))
            with pytest.raises(Unroutable, match="no queue takes messages of client"):
                await client.publish(boot, boot)
            with pytest.raises(Unroutable, match="no queue takes messages of ask"):
                await client.ask("waiting", FindWaiting(), WaitingFound)
