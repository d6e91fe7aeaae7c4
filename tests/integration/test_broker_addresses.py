"""Several addresses of a broker, of which some do not answer: another is connected to within seconds."""

import time
from contextlib import AsyncExitStack

import pytest

from bus.errors import BadCredentials, Unavailable
from bus.protocol import QueueSpec
from bus.rabbit import RabbitTransport, connection
from bus.rabbit.addresses import AddressOrder
from bus.rabbit.connection import dial, hang_up
from deploy.servers import RabbitMQ, free_port
from tests.support.deaf_addresses import black_hole, silent_address
from tests.support.envelopes import an_envelope, number_in
from tests.support.waiting import in_time

pytestmark = [pytest.mark.services, pytest.mark.slow]


class _InSequence(AddressOrder):
    """Tries addresses in the sequence of the URL, the worst case."""

    def __init__(self) -> None:
        super().__init__(type("Unshuffled", (), {"shuffle": lambda self, found: None})())


@pytest.fixture(autouse=True)
def _in_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_order", _InSequence())


def listed(*ports: int) -> str:
    return f"amqp://guest:guest@{','.join(f'127.0.0.1:{port}' for port in ports)}/"


async def test_silent_addresses_delay_a_connection_by_seconds_and_only_once(
    rabbitmq: RabbitMQ, bus_name: str
) -> None:
    async with AsyncExitStack() as deaf:
        silent, hole = [await deaf.enter_async_context(of()) for of in (silent_address, black_hole)]
        url = listed(silent, hole, free_port(), rabbitmq.port)
        began = time.monotonic()
        transport = RabbitTransport(url, exchange=bus_name)
        await in_time(transport.open())
        first = time.monotonic() - began
        try:
            inbox = await transport.consume(QueueSpec("q", ("build.requested",)), 10)
            await transport.publish([an_envelope(1)], expected=[True])
            assert number_in(await in_time(inbox.get())) == 1
        finally:
            await transport.close()
        began = time.monotonic()
        await hang_up(await in_time(dial(url)))
        second = time.monotonic() - began
    assert 3.5 < first < 9  # two addresses of 2 s; the rest for a busy machine
    assert second < 2


async def test_if_no_address_answers_the_error_names_each(rabbitmq: RabbitMQ) -> None:
    closed = free_port()
    async with silent_address() as silent:
        with pytest.raises(Unavailable) as refused:
            await dial(listed(silent, closed))
    assert (
        f"RabbitMQ at guest@127.0.0.1:{silent} does not answer; RabbitMQ at guest@127.0.0.1:{closed} can"
        in str(refused.value)
    )
    with pytest.raises(BadCredentials, match="does not accept these credentials"):
        await dial(listed(closed, rabbitmq.port).replace("guest:guest", "guest:wrong"))
