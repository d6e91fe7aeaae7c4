"""Messages of the simulated Ironic have the fields and types of those recorded from Ironic 39."""

import asyncio
import json
import random
from typing import Any

import pytest

from bus.clock import Clock
from compute_sim.ironic.allocations import NodeAllocations
from compute_sim.ironic.conductor import Notification, SimPlan
from compute_sim.ironic.envelope import Envelopes, SentNotification
from compute_sim.ironic.notify import IronicExchange
from tests.support.belief_world import recorded
from tests.support.simulated_ironic import NODE, NOW, SimIronicPlayer, a_node, play
from tests.support.virtual_time import run

EVERYTHING = """
    provision manage
    claim
    set instance_uuid null
    maintenance on
    maintenance off
    provision provide
    power power on
    bmc unreachable
    wait 60
    set maintenance false
    fault deploy step
    provision active
    delete
"""


def arrived() -> list[Notification]:
    async def more() -> list[Notification]:
        bench = SimIronicPlayer(SimPlan())
        await bench.api.create({"driver": "fake-hardware", "name": "new"}, 82, "req-1")
        await NodeAllocations(bench.conductor).create({"resource_class": "baremetal"}, "req-1")
        return bench.events

    return play(EVERYTHING, provision_state="enroll", power_state=None).events + run(more())


def sent(
    notification: Notification, topics: tuple[str, ...] = ("ironic_versioned_notifications",)
) -> list[tuple[str, Any]]:
    envelopes = Envelopes(Clock(lambda: NOW, random.Random(1)), "host-1", topics)
    return [(key, json.loads(body)) for key, body in envelopes.of(notification)]


def inside(envelope: dict[str, str]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope["oslo.message"])
    return message


Shape = tuple[list[str], str, str, list[str], str, str, str]


def shape(key: str, message: dict[str, Any]) -> tuple[str, Shape]:
    """The type of a notification; and names, versions and fields of its parts, its key and its publisher."""
    _, kind, action, _ = message["event_type"].split(".")
    payload = message["payload"]
    return f"{kind}.{action}", (
        list(message),
        payload["ironic_object.name"],
        payload["ironic_object.version"],
        list(payload["ironic_object.data"]),
        message["priority"],
        key,
        message["publisher_id"].partition(".")[0],
    )


def test_every_notification_has_the_recorded_fields() -> None:
    messages = [message for step in recorded() for message in step.messages]
    known = [shape(message.key, inside(json.loads(message.body))) for message in messages]
    kinds = set()
    for events in arrived():
        [(key, envelope)] = sent(events)
        assert list(envelope) == ["oslo.version", "oslo.message"]
        assert envelope["oslo.version"] == "2.0"
        message = inside(envelope)
        seen = shape(key, message)
        assert seen in known
        assert message["payload"]["ironic_object.namespace"] == "ironic"
        assert message["_context_request_id"].startswith("req-")
        kinds.add(seen[0])
    assert {kind for kind, _ in known} - kinds == {
        *("port.create", "port.update", "port.delete"),
        *("node.console_set", "allocation.delete"),
    }


def test_times_are_written_as_ironic_writes_them() -> None:
    [(_, envelope)] = sent(SentNotification("update", "end", a_node(created_at=NOW), "req-1"))
    message = inside(envelope)
    assert message["timestamp"] == "2026-11-20 07:37:07.500000"
    assert message["payload"]["ironic_object.data"]["created_at"] == "2026-11-20T07:37:07Z"
    assert message["payload"]["ironic_object.data"]["updated_at"] is None


def test_each_message_has_its_own_time_and_copies_share_the_id() -> None:
    envelopes = Envelopes(Clock(lambda: NOW, random.Random(1)), "host-1", ("one", "two"))
    events = SentNotification("update", "end", a_node(), "req-1")
    first, copy, second, _ = [
        (key, inside(json.loads(body))) for key, body in (*envelopes.of(events), *envelopes.of(events))
    ]
    assert (first[0], copy[0]) == ("one.info", "two.info")
    assert first[1]["message_id"] == copy[1]["message_id"]
    assert first[1]["_unique_id"] != copy[1]["_unique_id"]
    assert first[1]["timestamp"] < second[1]["timestamp"]
    assert first[1]["message_id"] != second[1]["message_id"]


def test_the_start_notification_of_a_creation_has_no_defaults() -> None:
    start, end = [
        inside(sent(events)[0][1])["payload"]["ironic_object.data"]
        for events in arrived()
        if isinstance(events, SentNotification) and events.action == "create"
    ]
    unset = {name for name, value in start.items() if value is None and end[name] is not None}
    assert unset == {
        "console_enabled", "created_at", "disable_power_off", "maintenance", "protected", "retired",
        "bios_interface", "boot_interface", "console_interface", "deploy_interface", "inspect_interface",
        "management_interface", "network_interface", "power_interface", "raid_interface", "rescue_interface",
        "storage_interface", "vendor_interface",
    }  # fmt: skip


def test_passwords_are_never_published() -> None:
    node = a_node(instance_info={"rescue_password": "sekret"}, driver_info={"ipmi_password": "sekret"})
    [(_, envelope)] = sent(SentNotification("update", "end", node, "req-1"))
    assert "sekret" not in envelope["oslo.message"]


@pytest.mark.parametrize(("lossy", "steps"), [(0.0, 300), (1.0, 100), (0.5, 200)])
def test_a_lossy_ironic_loses_only_later_steps(lossy: float, steps: int) -> None:
    exchange = IronicExchange("amqp://localhost/", lossy=lossy, seed=1)
    node = a_node()
    for _ in range(100):
        exchange(SentNotification("provision_set", "start", node, "req-1"))
        exchange(SentNotification("provision_set", "success", node, "req-1"))
        exchange(SentNotification("provision_set", "end", node, "req-1"))
    assert 300 - exchange.lost == pytest.approx(steps, abs=0 if lossy in (0.0, 1.0) else 25)


def test_an_allocation_takes_a_node_without_a_notification() -> None:
    async def story() -> SimIronicPlayer:
        bench = SimIronicPlayer(SimPlan(), a_node(traits=("CUSTOM_A",)))
        allocations = NodeAllocations(bench.conductor)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(bench.conductor.run())
            made = await allocations.create({"resource_class": "baremetal", "traits": ["CUSTOM_A"]}, "req-1")
            none = await allocations.create({"resource_class": "baremetal"}, "req-1")
            await asyncio.sleep(1)
            assert (made.state, made.node_uuid) == ("active", NODE)
            assert none.state == "error"
            assert bench.node.instance_uuid == made.uuid
            await allocations.delete(made.uuid, "req-2")
            running.cancel()
        return bench

    bench = run(story())
    assert bench.node.instance_uuid is None
    assert bench.sent == []
