"""Nova's notifications, and the requests in them, as berth reads them."""

import json
from typing import Any

import pytest
from msgspec import structs

from bus.messages import BuildRequested
from features.nova.core.cloud import NovaCloud
from features.nova.core.notifications import NovaNotification, UnreadableNotification, notification_of
from features.nova.core.request_spec import MalformedSpec, RequestSpec, decoded
from features.nova.core.translation import BridgeOptions, CannotJudge, translated
from features.nova.tests.support.nova_builders import CELL, a_cloud, a_host, a_spec, an_aggregate
from features.nova.tests.support.nova_notifications import a_group, a_payload, asked, notification
from features.nova.with_what_if.core.observed_request import (
    check_decidable,
    independent,
    instances_of,
    observed,
    operation_of,
    refused_without_search,
    shown_host,
    shown_roots,
)
from tests.support.ids import uid

CLOUD = a_cloud(
    a_host(1), a_host(2), a_host(3, host="ironic", node="n3"), a_host(4, host="ironic", node="n4")
)


def read(body: bytes) -> NovaNotification:
    found = notification_of(body)
    assert found is not None
    return structs.replace(found, spec=None)


def test_the_format_without_an_envelope_is_read_too() -> None:
    assert read(json.loads(asked())["oslo.message"].encode()) == read(asked())


@pytest.mark.parametrize(
    "event", ["instance.update", "instance.create.start", "instance.evacuate", "service.update"]
)
def test_notifications_about_other_subjects_are_ignored(event: str) -> None:
    assert notification_of(notification(event, a_payload())) is None


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"?", "JSON"),
        (b"[]", "event_type"),
        (notification("scheduler.select_destinations.end", {}), "names no instance"),
        (
            json.dumps({**json.loads(json.loads(asked())["oslo.message"]), "timestamp": "now"}).encode(),
            "timestamp",
        ),
        (
            json.dumps({**json.loads(json.loads(asked())["oslo.message"]), "message_id": ""}).encode(),
            "message_id",
        ),
    ],
)
def test_an_unreadable_message_is_named(body: bytes, names: str) -> None:
    with pytest.raises(UnreadableNotification, match=names):
        notification_of(body)


# Requests


def spec_of(stored: RequestSpec | None = None, **fields: Any) -> RequestSpec:
    found = notification_of(asked(**fields))
    assert found is not None and found.spec is not None
    return observed(found.spec, stored)


def request_of(spec: RequestSpec, cloud: NovaCloud = CLOUD) -> BuildRequested:
    check_decidable(spec)
    found = translated(independent(spec), instances_of(spec, uid(1)), cloud, BridgeOptions(), request=uid(8))
    assert found.group is None, "nothing is created in placement"
    return found.question.request


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"instances": (uid(1),), "project": "p1", "user": "u1"}),
        ({"force_hosts": "compute-2"}, {"forced_host": uid(2, "a")}),
        ({"force_hosts": "ironic", "force_nodes": "n4"}, {"forced_host": uid(4, "a")}),
        ({"ignore_hosts": ["compute-1"]}, {"ignore_hosts": (uid(1, "a"),)}),
        (
            {
                "requested_destination": {
                    "nova_object.data": {
                        "host": "compute-1",
                        "cell": {"nova_object.data": {"uuid": CELL, "name": "cell1", "disabled": False}},
                        "aggregates": [f"{uid(1)},{uid(2)}"],
                    }
                }
            },
            {"wanted_host": uid(1, "a"), "cell": "cell1", "aggregates": ((uid(1), uid(2)),)},
        ),
        ({"availability_zone": "az1"}, {"zone": "az1"}),
        ({"instance_group": a_group("anti-affinity", "compute-1")}, {"ignore_hosts": (uid(1, "a"),)}),
        ({"instance_group": a_group("affinity", "compute-2")}, {"wanted_host": uid(2, "a")}),
        ({"instance_group": a_group("affinity")}, {"wanted_host": ""}),
        ({"instance_group": a_group("anti-affinity", most=3)}, {"ignore_hosts": ()}),
        ({"instance_group": a_group("soft-anti-affinity", "compute-1")}, {"ignore_hosts": ()}),
    ],
)
def test_demands_in_a_notification_are_translated(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    zoned = a_cloud(
        *CLOUD.hosts.values(), aggregates=(an_aggregate(1, "compute-1", availability_zone="az1"),)
    )
    request = request_of(spec_of(**fields), zoned)
    assert {name: getattr(request, name) for name in expected} == expected
    assert not request.parts


@pytest.mark.parametrize(
    ("image", "stored", "disk_gb"),
    [
        ({}, None, 10),
        ({"id": None}, None, 0),  # the image of a volume has no id
        ({}, {"is_bfv": True}, 0),
        ({"id": None}, {"is_bfv": False}, 10),
    ],
)
def test_an_instance_on_a_volume_needs_no_root_disk(
    image: dict[str, Any], stored: dict[str, Any] | None, disk_gb: int
) -> None:
    known = None if stored is None else decoded(a_spec(**stored))
    assert request_of(spec_of(known, image=image)).flavor.disk_gb == disk_gb


def test_a_request_without_a_flavor_is_malformed() -> None:
    with pytest.raises(MalformedSpec, match="no flavor"):
        observed({"instance_uuid": uid(1)}, None)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scheduler_hints": {"_nova_check_type": ["rebuild"]}}, "rebuild"),
        ({"flavor": {"extra_specs": {"accel:device_profile": "fpga"}}}, "device profile"),
        ({"num_instances": 2, "instance_group": a_group("affinity")}, "several instances"),
        ({"instance_group": a_group("anti-affinity", "compute-1", most=3)}, "number of members"),
        ({"instance_group": a_group("affinity", "compute-1", "compute-2")}, "several hosts"),
        (
            {
                "instance_group": a_group("affinity", "compute-1"),
                "requested_destination": {"host": "compute-2"},
            },
            "requested host",
        ),
        ({"numa_topology": {"cells": []}}, "NUMA topology"),
        ({"pci_requests": {"requests": [{"request_id": uid(1), "alias_name": "gpu"}]}}, "alias 'gpu'"),
    ],
)
def test_requests_that_notifications_do_not_describe_are_named(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotJudge, match=why):
        request_of(spec_of(**fields))


def test_a_boot_without_candidates_is_the_request_in_novas_database() -> None:
    stored = decoded(a_spec(force_hosts=["compute-2"]))
    assert request_of(refused_without_search(stored)).forced_host == uid(2, "a")
    with pytest.raises(CannotJudge, match="nor Nova's database has it"):
        refused_without_search(None)
    grouped = decoded(a_spec(instance_group={"uuid": uid(9), "policy": "affinity", "hosts": None}))
    with pytest.raises(CannotJudge, match="were not published"):
        request_of(refused_without_search(grouped))


@pytest.mark.parametrize(
    ("fields", "operation"),
    [
        ({}, "boot"),
        ({"ignore_hosts": ["compute-1"]}, "move"),
        ({"scheduler_hints": {"_nova_check_type": ["rebuild"]}}, "rebuild"),
    ],
)
def test_the_kind_of_a_request_is_read_from_its_demands(fields: dict[str, Any], operation: str) -> None:
    assert operation_of(spec_of(**fields)) == operation


def test_nodes_of_one_service_are_shown_by_their_own_names() -> None:
    assert shown_host(CLOUD, "compute-1", "compute-1-node") == "compute-1"
    assert shown_host(CLOUD, "ironic", "n3") == "n3"
    placed = [(uid(1, "a"), "compute-1", 2), (uid(4, "a"), "ironic", 1), (uid(7, "a"), "elsewhere", 1)]
    assert shown_roots(CLOUD, placed) == ("compute-1", "compute-1", "n4", "elsewhere")
