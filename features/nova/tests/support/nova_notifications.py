"""Builders of Nova's versioned notifications, with the fields that Nova's own classes write (version 34)."""

import json
from typing import Any

from features.nova.core.objects import versioned
from tests.support.ids import uid

START = 1_800_000_000.0
_FLAVOR: dict[str, Any] = {
    "flavorid": "1", "name": "m1", "vcpus": 2, "memory_mb": 512, "root_gb": 10, "ephemeral_gb": 0, "swap": 0,
    "rxtx_factor": 1.0, "vcpu_weight": None, "disabled": False, "is_public": True, "extra_specs": {},
    "projects": None, "description": None,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "id": uid(5, "e"), "name": "debian", "status": "active", "visibility": "public", "disk_format": "qcow2",
    "container_format": "bare", "size": 1, "min_ram": 0, "min_disk": 0, "tags": [], "owner": None,
}  # fmt: skip


def a_payload(instance: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a RequestSpecPayload; `flavor` and `image` are fields that differ from the usual ones."""
    flavor = versioned("FlavorPayload", "1.4", {**_FLAVOR, **fields.pop("flavor", {})})
    properties = versioned("ImageMetaPropsPayload", "1.20", fields.pop("properties", {}))
    image = versioned(
        "ImageMetaPayload", "1.0", {**_IMAGE, **fields.pop("image", {}), "properties": properties}
    )
    usual: dict[str, Any] = {
        "instance_uuid": uid(instance), "project_id": "p1", "user_id": "u1", "availability_zone": None,
        "force_hosts": None, "force_nodes": None, "ignore_hosts": None, "instance_group": None,
        "numa_topology": None, "pci_requests": None, "num_instances": 1, "requested_destination": None,
        "retry": None, "scheduler_hints": {}, "security_groups": [],
    }  # fmt: skip
    return versioned("RequestSpecPayload", "1.1", {**usual, "flavor": flavor, "image": image, **fields})


def a_group(policy: str, *hosts: str, most: int = 1) -> dict[str, Any]:
    fields = {
        "uuid": uid(9), "name": "g", "user_id": "u1", "project_id": "p1", "policies": [policy],
        "policy": policy, "members": [uid(1)], "hosts": list(hosts),
        "rules": {"max_server_per_host": str(most)} if policy == "anti-affinity" else {},
    }  # fmt: skip
    return versioned("ServerGroupPayload", "1.1", fields)


def notification(
    event: str,
    payload: dict[str, Any],
    *,
    id: int = 1,
    after: float = 0.0,
    request: str = "req-1",
    publisher: str = "nova-scheduler:controller",
) -> bytes:
    """Return a notification as oslo.messaging's driver messagingv2 sends it; `after` is in seconds."""
    minutes, seconds = divmod(after, 60)
    message = {
        "message_id": uid(id, "f"), "publisher_id": publisher, "event_type": event,
        "priority": "ERROR" if event.endswith("error") else "INFO", "payload": payload,
        "timestamp": f"2027-01-15 08:{int(minutes):02}:{seconds:09.6f}", "_unique_id": f"{id:032}",
        "_context_request_id": request, "_context_project_id": "p1",
    }  # fmt: skip
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)}).encode()


def asked(
    instance: int = 1, *, id: int = 1, after: float = 0.0, request: str = "req-1", **fields: Any
) -> bytes:
    event = "scheduler.select_destinations.start"
    return notification(event, a_payload(instance, **fields), id=id, after=after, request=request)


def selected(instance: int = 1, *, id: int = 2, after: float = 0.1, request: str = "req-1") -> bytes:
    event = "scheduler.select_destinations.end"
    return notification(event, a_payload(instance), id=id, after=after, request=request)


def used(
    host: str,
    instance: int = 1,
    *,
    event: str = "instance.create.end",
    id: int = 3,
    after: float = 2.0,
    request: str = "req-1",
    has_host: bool = True,
) -> bytes:
    """Return a notification of a compute service; without `has_host`, the instance has no host any more."""
    fields = {"uuid": uid(instance), "tenant_id": "p1", "state": "active", "request_id": request}
    place = {"host": host, "node": f"{host}-node"} if has_host else {"host": None, "node": None}
    payload = versioned("InstanceCreatePayload", "1.13", {**fields, **place})
    return notification(event, payload, id=id, after=after, request=request, publisher=f"nova-compute:{host}")


def refused(
    instance: int = 1,
    *,
    event: str = "compute_task.build_instances.error",
    cause: str = "NoValidHost",
    reason: str = "No valid host was found. There are not enough hosts available.",
    id: int = 4,
    after: float = 0.2,
    request: str = "req-1",
) -> bytes:
    fault = versioned(
        "ExceptionPayload",
        "1.1",
        {
            "module_name": "nova.conductor.manager", "function_name": "schedule", "exception": cause,
            "exception_message": reason, "traceback": "",
        },
    )  # fmt: skip
    fields = {
        "instance_uuid": uid(instance), "request_spec": a_payload(instance), "state": "error", "reason": fault
    }  # fmt: skip
    payload = versioned("ComputeTaskPayload", "1.0", fields)
    return notification(
        event, payload, id=id, after=after, request=request, publisher="nova-conductor:controller"
    )
