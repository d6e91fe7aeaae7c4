"""Defines a simulated node with the fields that notifications and the API of a real Ironic show."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

import msgspec

Json = dict[str, Any]

HOST = "localhost"  # the name of the only conductor

_NAMES = UUID("9d0f4f0c-5f0e-4c53-8a0e-6a4b1a2f7f6d")
_TIMES = frozenset({"created_at", "updated_at", "provision_updated_at"})


class SimNode(msgspec.Struct, kw_only=True):
    """A simulated node. Times are seconds since the epoch; lists and mappings are replaced, not changed."""

    uuid: str
    name: str | None = None
    driver: str = "fake-hardware"
    created_at: float | None = None
    updated_at: float | None = None
    provision_updated_at: float | None = None
    provision_state: str = "enroll"
    target_provision_state: str | None = None
    power_state: str | None = None
    target_power_state: str | None = None
    maintenance: bool = False
    maintenance_reason: str | None = None
    fault: str | None = None
    last_error: str | None = None
    reservation: str | None = None  # the conductor that has locked the node
    instance_uuid: str | None = None
    instance_info: Json = {}
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    properties: Json = {}
    extra: Json = {}
    driver_info: Json = {}  # `berth_deploy`, `berth_tear_down` or `berth_clean` with the value "fail"
    conductor_group: str = ""
    shard: str | None = None
    owner: str | None = None
    lessee: str | None = None
    protected: bool = False


INTERFACES = (
    "bios_interface", "boot_interface", "console_interface", "deploy_interface", "firmware_interface",
    "inspect_interface", "management_interface", "network_interface", "power_interface", "raid_interface",
    "rescue_interface", "storage_interface", "vendor_interface",
)  # fmt: skip

# Fields of Ironic's nodes with the same value for all simulated nodes.
_CONSTANT: Json = {
    **dict.fromkeys((
        "allocation_uuid", "automated_clean", "boot_mode", "chassis_uuid", "description", "health",
        "inspection_finished_at", "inspection_started_at", "instance_name", "parent_node", "protected_reason",
        "retired_reason", "secure_boot",
    )),
    **dict.fromkeys(("console_enabled", "disable_power_off", "retired"), False),
    "clean_step": {}, "deploy_step": {}, "driver_internal_info": {}, "network_data": {}, "raid_config": {},
    "service_step": {}, "target_raid_config": {},
    **dict.fromkeys(INTERFACES, "fake"),
    "network_interface": "noop",
    "storage_interface": "noop",
    "conductor": HOST,
}  # fmt: skip

FIELDS = (*SimNode.__struct_fields__, *_CONSTANT)


def values_of(node: SimNode, fields: Sequence[str], zone: str) -> Json:
    """Return the values of a node's fields; times end in `zone`: Z in notifications, +00:00 in the API."""
    values = {name: _CONSTANT[name] if name in _CONSTANT else getattr(node, name) for name in fields}
    for name in _TIMES & values.keys():
        if values[name] is not None:
            values[name] = _iso(int(values[name]), zone)
    return values


@lru_cache(maxsize=4096)
def _iso(seconds: int, zone: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + zone


def enrolled(
    count: int,
    *,
    now: float,
    seed: int = 0,
    state: str = "available",
    resource_classes: Sequence[str] = ("baremetal",),
    conductor_groups: Sequence[str] = ("",),
    prefix: str = "metal",
) -> list[SimNode]:
    """Return new nodes with reproducible uuids, spread over resource classes and conductor groups."""
    properties = {"cpus": 32, "memory_mb": 262_144, "local_gb": 2000, "cpu_arch": "x86_64"}
    return [
        SimNode(
            uuid=str(uuid5(_NAMES, f"{seed}/{prefix}{number}")),
            name=f"{prefix}{number + 1:05}",
            created_at=now,
            provision_updated_at=now,
            provision_state=state,
            power_state=None if state == "enroll" else "power off",
            resource_class=resource_classes[number % len(resource_classes)],
            conductor_group=conductor_groups[number % len(conductor_groups)],
            properties={**properties, "rack": f"R{number % 10 + 1}"},
        )
        for number in range(count)
    ]
