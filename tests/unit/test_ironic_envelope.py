"""Bytes of Ironic's notifications are decoded, or skipped with a reason."""

import json
from typing import Any

import pytest

from ironic_sync.core.node import Malformed, ReceivedNotification, Skipped, from_rest, opened, seconds
from tests.support.belief_world import recorded
from tests.support.ids import uid

NODE = uid(1, "c")
DATA: dict[str, Any] = {
    "uuid": NODE,
    "name": "n1",
    "resource_class": "gold",
    "provision_state": "available",
    "power_state": "power off",
    "maintenance": False,
    "instance_uuid": None,
    "traits": ["CUSTOM_A"],
    "conductor_group": "rack1",
    "owner": "somebody",
    "properties": {"cpus": 16},
    "extra": {"rack": "R1"},
    "updated_at": "2026-11-20T07:37:17Z",
}


def a_message(**changes: Any) -> dict[str, Any]:
    return {
        "message_id": "6bc8636c-1272-42de-98b3-6b04d904f321",
        "publisher_id": "ironic-conductor.host1",
        "event_type": "baremetal.node.provision_set.end",
        "priority": "INFO",
        "payload": {
            "ironic_object.name": "NodeSetProvisionStatePayload",
            "ironic_object.namespace": "ironic",
            "ironic_object.version": "1.18",
            "ironic_object.data": DATA,
        },
        "timestamp": "2026-11-20 07:37:17.551497",
    } | changes


def with_data(**changes: Any) -> dict[str, Any]:
    return a_message(payload={"ironic_object.data": DATA | changes})


def version_2(message: Any) -> bytes:
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)}).encode()


def bare(message: Any) -> bytes:
    return json.dumps(message).encode()


def understood(body: bytes) -> ReceivedNotification:
    reply = opened(body)
    assert isinstance(reply, ReceivedNotification)
    return reply


@pytest.mark.parametrize("wrap", [version_2, bare])
def test_both_versions_of_the_envelope_are_read(wrap: Any) -> None:
    reply = understood(wrap(a_message()))
    assert (reply.event, reply.phase, reply.uuid) == ("provision_set", "end", NODE)
    assert reply.id == "6bc8636c-1272-42de-98b3-6b04d904f321"
    assert reply.at == pytest.approx(1795160237.551497, abs=1e-6)
    assert reply.node == from_rest(DATA, whole=False)


def test_unknown_fields_of_envelopes_and_nodes_are_ignored() -> None:
    message = with_data(something_new={"a": 1}) | {"_unique_id": "x", "_context_something": [1]}
    body = json.dumps({"oslo.version": "3.0", "oslo.message": json.dumps(message), "oslo.new": 1}).encode()
    assert understood(body) == understood(version_2(a_message()))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (a_message(event_type="baremetal.port.create.end"), "not a node"),
        (a_message(event_type="baremetal.chassis.update.end"), "not a node"),
        (a_message(event_type="compute.instance.create.end"), "not a node"),
        (a_message(event_type="baremetal.node.juggled.end"), "unknown event"),
        (a_message(event_type="baremetal.node.update.halfway"), "unknown event"),
        (a_message(event_type="baremetal.node."), "unknown event"),
        (a_message(event_type=None), "unreadable"),
        (a_message(payload=None), "unreadable"),
        (a_message(payload={"ironic_object.data": []}), "unreadable"),
        (a_message(timestamp=None), "unreadable"),
        (a_message(timestamp="yesterday"), "unreadable"),
        (with_data(uuid=None), "unreadable"),
        (with_data(uuid="../../v1/ports"), "unreadable"),
        (with_data(provision_state=7), "unreadable"),
        (with_data(maintenance="no"), "unreadable"),
        (with_data(traits="CUSTOM_A"), "unreadable"),
        (with_data(properties=[]), "unreadable"),
        (with_data(updated_at="today"), "unreadable"),
        ([1, 2], "unreadable"),
        ("text", "unreadable"),
        (None, "unreadable"),
    ],
)
@pytest.mark.parametrize("wrap", [version_2, bare])
def test_anything_else_is_skipped_with_a_reason(message: Any, reason: str, wrap: Any) -> None:
    skipped = opened(wrap(message))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == reason and skipped.why


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"oslo.message": "{"}', b'{"oslo.message": 7}', b"[" * 100_000],
    ids=["nothing", "half", "binary", "half inside", "number inside", "deep"],
)
def test_bytes_that_are_no_message_are_skipped(body: bytes) -> None:
    skipped = opened(body)
    assert isinstance(skipped, Skipped) and skipped.reason == "unreadable"


def test_all_that_was_recorded_is_understood() -> None:
    bodies = [message.body.encode() for step in recorded() for message in step.messages]
    reply = [opened(body) for body in bodies]
    skipped = [one for one in reply if isinstance(one, Skipped)]
    assert len(bodies) == 278 and len(skipped) == 10
    assert {one.reason for one in skipped} == {"not a node"}, "ports, and allocations that have no node yet"


# Nodes


def test_null_fields_equal_missing_fields() -> None:
    """So it is in the notification that a node is about to be created."""
    node = from_rest({"uuid": NODE, "maintenance": None, "traits": None, "conductor_group": None})
    assert (node.maintenance, node.traits, node.conductor_group) == (False, (), "")
    assert node.power_state is None and node.updated_at is None


def test_a_read_node_equals_a_notified_node() -> None:
    rest = DATA | {"updated_at": "2026-11-20T07:37:17+00:00", "shard": "s1", "links": []}
    node, reply = from_rest(rest), from_rest(DATA, whole=False)
    assert (node.whole, node.shard, reply.whole, reply.shard) == (True, "s1", False, None)
    assert node.updated_at == reply.updated_at


def test_a_uuid_is_known_however_it_is_written() -> None:
    assert from_rest({"uuid": NODE.upper()}).uuid == NODE


@pytest.mark.parametrize("uuid", [None, "", "node-1", f"{NODE}\n", f"{NODE}/../x", 7])
def test_a_node_without_a_uuid_is_malformed(uuid: Any) -> None:
    with pytest.raises(Malformed, match="uuid"):
        from_rest({"uuid": uuid})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T07:37:17Z", 1795160237.0),
        ("2026-11-20T07:37:17+00:00", 1795160237.0),
        ("2026-11-20 07:37:17", 1795160237.0),
        ("2026-11-20T09:37:17.250+0200", 1795160237.25),
        ("2026-11-20T06:07:17.25-01:30", 1795160237.25),
        ("2028-02-29T00:00:00Z", 1835395200.0),
    ],
)
def test_a_time_is_read_with_or_without_a_zone(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-11-20", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-11-20T24:00:00Z",
     "2026-11-20T07:60:00Z", "2026-11-20T07:37:17Zx", "2026-11-20T07:37:17Z\n", "٢٠٢٦-11-20T07:37:17Z"],
)  # fmt: skip
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        seconds(text)
