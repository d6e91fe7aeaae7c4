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
from tests.support.simulated_ironic import INSTANCE, NODE, NOW, SimIronicPlayer, a_node, play
from tests.support.virtual_time import run


def names(text: str) -> list[str]:
    return text.split()


# Recorded: the names in every payload, in their order.
COMMON = names("""
    clean_step conductor_group console_enabled created_at deploy_step description disable_power_off
    driver extra boot_mode secure_boot inspection_finished_at inspection_started_at instance_uuid
    last_error maintenance maintenance_reason fault bios_interface boot_interface console_interface
    deploy_interface inspect_interface management_interface network_interface power_interface
    raid_interface rescue_interface storage_interface vendor_interface name owner lessee power_state
    properties protected protected_reason provision_state provision_updated_at resource_class
    retired retired_reason target_power_state target_provision_state traits updated_at uuid
""")
MESSAGE = names("""
    message_id publisher_id event_type priority payload timestamp _unique_id _context_user
    _context_project_id _context_system_scope _context_project _context_domain _context_user_domain
    _context_project_domain _context_is_admin _context_read_only _context_show_deleted
    _context_auth_token _context_request_id _context_global_request_id _context_resource_uuid
    _context_roles _context_user_identity _context_is_admin_project _context_auth_token_info
""")
CRUD = ("NodeCRUDPayload", "1.15", ["chassis_uuid", "instance_info", "driver_info", *COMMON])
PROVISION = names("""
    instance_info driver_internal_info event previous_provision_state
    previous_target_provision_state
""")
PAYLOADS = {
    "node.create": CRUD,
    "node.update": CRUD,
    "node.delete": CRUD,
    "node.maintenance_set": ("NodePayload", "1.17", COMMON),
    "node.power_set": ("NodeSetPowerStatePayload", "1.17", ["to_power", *COMMON]),
    "node.power_state_corrected": ("NodeCorrectedPowerStatePayload", "1.17", ["from_power", *COMMON]),
    "node.provision_set": ("NodeSetProvisionStatePayload", "1.18", [*PROVISION, *COMMON]),
    "allocation.create": (
        "AllocationCRUDPayload",
        "1.1",
        names("""
            uuid name node_uuid state last_error owner resource_class traits candidate_nodes extra created_at
            updated_at
        """),
    ),
}
FROM_API = {"node.create", "node.update", "node.delete", "node.maintenance_set", "allocation.create"}

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


def heard() -> list[Notification]:
    async def more() -> list[Notification]:
        bench = SimIronicPlayer(SimPlan())
        await bench.api.create({"driver": "fake-hardware", "name": "new"}, 82, "req-1")
        await NodeAllocations(bench.conductor).create({"resource_class": "baremetal"}, "req-1")
        return bench.heard

    return play(EVERYTHING, provision_state="enroll", power_state=None).heard + run(more())


def sent(
    notification: Notification, topics: tuple[str, ...] = ("ironic_versioned_notifications",)
) -> list[tuple[str, Any]]:
    envelopes = Envelopes(Clock(lambda: NOW, random.Random(1)), "host-1", topics)
    return [(key, json.loads(body)) for key, body in envelopes.of(notification)]


def inside(envelope: dict[str, str]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(envelope["oslo.message"])
    return message


def test_every_notification_has_the_recorded_fields() -> None:
    kinds = set()
    for told in heard():
        [(key, envelope)] = sent(told)
        assert list(envelope) == ["oslo.version", "oslo.message"]
        assert envelope["oslo.version"] == "2.0"
        message = inside(envelope)
        assert list(message) == MESSAGE
        baremetal, kind, action, phase = message["event_type"].split(".")
        name, version, fields = PAYLOADS[f"{kind}.{action}"]
        payload = message["payload"]
        assert baremetal == "baremetal"
        assert payload["ironic_object.namespace"] == "ironic"
        assert (payload["ironic_object.name"], payload["ironic_object.version"]) == (name, version)
        assert list(payload["ironic_object.data"]) == fields
        bad = phase == "error"
        assert message["priority"] == ("ERROR" if bad else "INFO")
        assert key == f"ironic_versioned_notifications.{'error' if bad else 'info'}"
        service = "api" if f"{kind}.{action}" in FROM_API else "conductor"
        assert message["publisher_id"] == f"ironic-{service}.host-1"
        assert message["_context_request_id"].startswith("req-")
        kinds.add(f"{kind}.{action}")
    assert kinds == PAYLOADS.keys()


def test_times_are_written_as_ironic_writes_them() -> None:
    [(_, envelope)] = sent(SentNotification("update", "end", a_node(created_at=NOW), "req-1"))
    message = inside(envelope)
    assert message["timestamp"] == "2026-11-20 07:37:07.500000"
    assert message["payload"]["ironic_object.data"]["created_at"] == "2026-11-20T07:37:07Z"
    assert message["payload"]["ironic_object.data"]["updated_at"] is None


def test_no_two_messages_have_the_same_time_and_a_copy_for_a_second_topic_has_the_same_id() -> None:
    envelopes = Envelopes(Clock(lambda: NOW, random.Random(1)), "host-1", ("one", "two"))
    told = SentNotification("update", "end", a_node(), "req-1")
    first, copy, second, _ = [
        (key, inside(json.loads(body))) for key, body in (*envelopes.of(told), *envelopes.of(told))
    ]
    assert (first[0], copy[0]) == ("one.info", "two.info")
    assert first[1]["message_id"] == copy[1]["message_id"]
    assert first[1]["_unique_id"] != copy[1]["_unique_id"]
    assert first[1]["timestamp"] < second[1]["timestamp"]
    assert first[1]["message_id"] != second[1]["message_id"]


def test_before_a_node_is_made_its_defaults_are_not_filled_in() -> None:
    start, end = [
        inside(sent(told)[0][1])["payload"]["ironic_object.data"]
        for told in heard()
        if isinstance(told, SentNotification) and told.action == "create"
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


def test_fields_that_ironic_omits_are_omitted() -> None:
    node = a_node(shard="s1", reservation="host-1", allocation_uuid=INSTANCE)
    [(_, envelope)] = sent(SentNotification("update", "end", node, "req-1"))
    data = inside(envelope)["payload"]["ironic_object.data"]
    assert not {"shard", "reservation", "allocation_uuid", "conductor", "automated_clean"} & data.keys()


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
    assert bench.told == []
