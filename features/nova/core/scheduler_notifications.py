"""The notifications of Nova's scheduler about a call for hosts, with the fields that Nova 34 writes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from features.nova.core.objects import DATA, NAME, plain

Phase = Literal["start", "end"]
Fields = Mapping[str, Any]

# The fields of an RPC call's context that are published: all fields without credentials.
_CONTEXT = """
    user user_id user_name project project_id project_name domain user_domain project_domain user_identity
    system_scope is_admin is_admin_project read_only show_deleted read_deleted request_id global_request_id
    roles timestamp quota_class
""".split()  # noqa: SIM905 - shorter than a list
_SPEC = """
    instance_uuid project_id user_id availability_zone num_instances ignore_hosts scheduler_hints
""".split()  # noqa: SIM905
_FLAVOR = """
    flavorid memory_mb vcpus root_gb ephemeral_gb name swap rxtx_factor vcpu_weight disabled is_public
    extra_specs projects description
""".split()  # noqa: SIM905
_IMAGE = """
    id name status visibility protected checksum owner size virtual_size container_format disk_format
    created_at updated_at tags direct_url min_ram min_disk
""".split()  # noqa: SIM905
_NUMA_CELL = """
    id cpuset pcpuset cpuset_reserved memory pagesize cpu_pinning_raw cpu_policy cpu_thread_policy
""".split()  # noqa: SIM905
_CPU_TOPOLOGY = ("sockets", "cores", "threads")
_PCI_REQUEST = ("count", "spec", "alias_name", "request_id", "numa_policy")
_GROUP = ("uuid", "name", "user_id", "project_id", "policies", "members", "hosts", "policy")
_LEGACY_INSTANCE = ("numa_topology", "pci_requests", "project_id", "user_id", "availability_zone")
_LEGACY_FLAVOR = ("root_gb", "ephemeral_gb", "memory_mb", "vcpus")


@dataclass(frozen=True)
class NotificationOptions:
    """The options of Nova that decide which notifications its services publish, and to which topics."""

    form: str = "both"  # Nova's option notification_format: versioned, unversioned or both
    topics: Sequence[str] = ("versioned_notifications",)  # Nova's option versioned_notifications_topics
    unversioned_topics: Sequence[str] = ("notifications",)


def notifications_of(
    spec: Fields, context: Fields, phase: Phase, host: str, options: NotificationOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield routing key and content of each notification that Nova's scheduler publishes when a call starts
    or ends (`phase`); the content lacks message id and time."""
    content = {
        "event_type": f"scheduler.select_destinations.{phase}",
        "priority": "INFO",
        **{f"_context_{name}": context[name] for name in _CONTEXT if name in context},
    }
    if options.form != "versioned":
        payload = {"request_spec": legacy_spec(spec)}
        unversioned = {**content, "publisher_id": f"scheduler.{host}", "payload": payload}
        yield from ((f"{topic}.info", unversioned) for topic in options.unversioned_topics)
    if options.form != "unversioned":
        versioned = {**content, "publisher_id": f"nova-scheduler:{host}", "payload": payload_of(spec)}
        yield from ((f"{topic}.info", versioned) for topic in options.topics)


def legacy_spec(spec: Fields) -> dict[str, Any]:
    """Return the RequestSpec of an RPC call as unversioned notifications contain it."""
    fields = plain(spec)
    flavor = fields.get("flavor") or {}
    return {
        "num_instances": fields.get("num_instances", 1),
        "image": fields.get("image") or {},
        "instance_properties": {
            **_picked(fields, _LEGACY_INSTANCE),
            "uuid": fields.get("instance_uuid"),
            **_picked(flavor, _LEGACY_FLAVOR),
        },
        "instance_type": flavor,
    }


def payload_of(spec: Fields) -> dict[str, Any]:
    """Return the RequestSpec of an RPC call as versioned notifications contain it."""
    fields = plain(spec)

    def part(name: str, convert: Callable[[Fields], dict[str, Any]]) -> dict[str, Any] | None:
        return None if fields.get(name) is None else convert(fields[name])

    def for_instance(convert: Callable[[Fields], dict[str, Any]]) -> Callable[[Fields], dict[str, Any]]:
        return lambda found: convert({"instance_uuid": fields.get("instance_uuid"), **found})

    return _object(
        "RequestSpecPayload",
        "1.1",
        {
            **_picked(fields, _SPEC),
            "flavor": part(
                "flavor", lambda flavor: _object("FlavorPayload", "1.4", _picked(flavor, _FLAVOR))
            ),
            "image": part("image", _image),
            "numa_topology": part("numa_topology", for_instance(_numa_topology)),
            "pci_requests": part("pci_requests", for_instance(_pci_requests)),
            "instance_group": part("instance_group", _group),
            "requested_destination": part("requested_destination", _destination),
            "retry": part("retry", _retry),
            "force_hosts": (fields.get("force_hosts") or [None])[0],
            "force_nodes": (fields.get("force_nodes") or [None])[0],
            "security_groups": [
                group.get("uuid", group.get("name"))
                for group in (fields.get("security_groups") or {}).get("objects", ())
            ],
        },
    )


def _image(image: Fields) -> dict[str, Any]:
    properties = dict(image.get("properties") or {})
    properties.pop("hw_ephemeral_encryption_secret_uuid", None)
    made = _object("ImageMetaPropsPayload", "1.20", properties)
    return _object("ImageMetaPayload", "1.0", {**_picked(image, _IMAGE), "properties": made})


def _numa_topology(topology: Fields) -> dict[str, Any]:
    cells = [
        _object("InstanceNUMACellPayload", "1.2", {
            **_picked(cell, _NUMA_CELL),
            "cpu_topology": cell.get("cpu_topology")
            and _object("VirtCPUTopologyPayload", "1.0", _picked(cell["cpu_topology"], _CPU_TOPOLOGY)),
        })
        for cell in topology["cells"]
    ]  # fmt: skip
    picked = _picked(topology, ("instance_uuid", "emulator_threads_policy"))
    return _object("InstanceNUMATopologyPayload", "1.0", {**picked, "cells": cells})


def _pci_requests(found: Fields) -> dict[str, Any]:
    requests = [
        _object("InstancePCIRequestPayload", "1.1", _picked(each, _PCI_REQUEST)) for each in found["requests"]
    ]
    fields = {"instance_uuid": found["instance_uuid"], "requests": requests}
    return _object("InstancePCIRequestsPayload", "1.0", fields)


def _group(group: Fields) -> dict[str, Any]:
    fields = {**_picked(group, _GROUP), "rules": group.get("_rules") or {}}
    return _object("ServerGroupPayload", "1.1", fields)


def _destination(place: Fields) -> dict[str, Any]:
    fields = {name: place[name] for name in ("host", "node", "cell") if place.get(name) is not None}
    if cell := fields.get("cell"):
        cell = {**_picked(cell, ("uuid", "name")), "disabled": cell.get("disabled", False)}
        fields["cell"] = _object("CellMappingPayload", "2.0", cell)
    return _object("DestinationPayload", "1.0", {**fields, "aggregates": place.get("aggregates")})


def _retry(retry: Fields) -> dict[str, Any]:
    hosts = [node.get("hypervisor_hostname") for node in (retry.get("hosts") or {}).get("objects", ())]
    return _object("SchedulerRetriesPayload", "1.0", {"num_attempts": retry["num_attempts"], "hosts": hosts})


def _object(name: str, version: str, fields: Fields) -> dict[str, Any]:
    """Return a versioned object in the format of notifications, which lacks RPC's list of changed fields."""
    return {NAME: name, "nova_object.namespace": "nova", "nova_object.version": version, DATA: dict(fields)}


def _picked(fields: Fields, names: Sequence[str]) -> dict[str, Any]:
    return {name: fields.get(name) for name in names}
