"""Envelopes of the simulated Ironic's notifications, and their publication."""

import json
from typing import Any

import pytest

from bus.clock import Clock
from bus.errors import BadCredentials, Unavailable
from bus.rabbit.foreign.publisher import BATCH
from compute_sim.ironic.notifications import Envelopes, IronicExchange, SentNotification
from compute_sim.ironic.simulation import Simulation
from tests.support.foreign_publishers import PublisherWithoutBroker
from tests.support.simulated_ironic import NOW, a_node
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import patience


def inside(envelope: dict[str, str]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope["oslo.message"])
    return message


def test_no_two_messages_have_the_same_time() -> None:
    envelopes = Envelopes(Clock(lambda: NOW))
    notification = SentNotification("update", "end", a_node(), "req-1")
    first, second = (inside(json.loads(envelopes.of(notification)[1])) for _ in range(2))
    assert first["timestamp"] < second["timestamp"]


@in_virtual_time
async def test_notifications_during_a_broker_outage_are_sent_later() -> None:
    publisher = PublisherWithoutBroker(Unavailable("the broker is restarted"))
    exchange = IronicExchange(publisher)
    for _ in range(BATCH + 1):
        exchange(SentNotification("update", "end", a_node(), "req-1"))
    with pytest.raises(TimeoutError):
        async with patience():
            await exchange.run()
    messages = [inside(json.loads(body)) for _, body in publisher.published]
    times = [message["timestamp"] for message in messages]
    assert times == sorted(times)
    assert len({message["message_id"] for message in messages}) == BATCH + 1


@in_virtual_time
async def test_rejected_credentials_end_the_simulated_ironic() -> None:
    publisher = PublisherWithoutBroker(BadCredentials("the password is wrong"))
    simulation = Simulation([], sink=IronicExchange(publisher))
    publisher.add([("key", b"")])
    with pytest.raises(ExceptionGroup) as ended:
        await simulation.run()
    assert ended.group_contains(BadCredentials)
