"""Messages of the simulated Ironic have the fields and types of those recorded from Ironic 39."""

import asyncio
import json
import random
from typing import Any

import pytest

from bus.clock import Clock
from bus.errors import BadCredentials, Unavailable
from bus.rabbit.foreign_publisher import BATCH
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.notifications import Envelopes, IronicExchange, SentNotification
from compute_sim.ironic.simulation import Simulation
from tests.support.foreign_publishers import PublisherWithoutBroker
from tests.support.simulated_ironic import NOW, SimIronicPlayer, a_node, play
from tests.support.virtual_time import in_virtual_time, run

EVERYTHING = """
    provision manage
    claim
    set instance_uuid null
    maintenance on
    maintenance off
    provision provide
    power power on
    fail deploy
    provision active
    delete
"""


def emitted() -> list[SentNotification]:
    async def created() -> list[SentNotification]:
        player = SimIronicPlayer(SimPlan())
        await player.api.create({"driver": "fake-hardware", "name": "new"}, "req-1")
        return player.events

    return play(EVERYTHING, provision_state="enroll", power_state=None).events + run(created())


def wrapped(notification: SentNotification) -> tuple[str, Any]:
    key, body = Envelopes(Clock(lambda: NOW, random.Random(1))).of(notification)
    return key, json.loads(body)


def inside(envelope: dict[str, str]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope["oslo.message"])
    return message


def test_no_two_messages_have_the_same_time() -> None:
    envelopes = Envelopes(Clock(lambda: NOW))
    notification = SentNotification("update", "end", a_node(), "req-1")
    first, second = (inside(json.loads(envelopes.of(notification)[1])) for _ in range(2))
    assert first["timestamp"] < second["timestamp"]


def test_the_start_notification_of_a_creation_has_no_defaults() -> None:
    start, end = [
        inside(wrapped(notification)[1])["payload"]["ironic_object.data"]
        for notification in emitted()
        if notification.action == "create"
    ]
    unset = {name for name, value in start.items() if value is None and end[name] is not None}
    assert unset == {
        "console_enabled", "created_at", "disable_power_off", "maintenance", "protected", "retired",
        "bios_interface", "boot_interface", "console_interface", "deploy_interface", "inspect_interface",
        "management_interface", "network_interface", "power_interface", "raid_interface", "rescue_interface",
        "storage_interface", "vendor_interface",
    }  # fmt: skip


@in_virtual_time
async def test_notifications_during_a_broker_outage_are_sent_later() -> None:
    publisher = PublisherWithoutBroker(Unavailable("the broker is restarted"))
    exchange = IronicExchange(publisher)
    for _ in range(BATCH + 1):
        exchange(SentNotification("update", "end", a_node(), "req-1"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
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
