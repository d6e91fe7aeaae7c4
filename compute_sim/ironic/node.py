"""Defines simulated nodes with all fields of Ironic's notifications and API, and their state machine."""

from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid5

import msgspec

_NAMES = UUID("9d0f4f0c-5f0e-4c53-8a0e-6a4b1a2f7f6d")

Json = dict[str, Any]

INTERFACES = (
    "bios_interface", "boot_interface", "console_interface", "deploy_interface", "firmware_interface",
    "inspect_interface", "management_interface", "network_interface", "power_interface", "raid_interface",
    "rescue_interface", "storage_interface", "vendor_interface",
)  # fmt: skip
TIMES = frozenset({
    "created_at", "updated_at", "provision_updated_at", "inspection_started_at", "inspection_finished_at",
})  # fmt: skip


class SimNode(msgspec.Struct, kw_only=True):
    """A simulated node. Times are seconds since the epoch; lists and mappings are replaced, not changed."""

    uuid: str
    name: str | None = None
    driver: str = "fake-hardware"
    created_at: float | None = None
    updated_at: float | None = None
    provision_updated_at: float | None = None
    inspection_started_at: float | None = None
    inspection_finished_at: float | None = None
    provision_state: str = "enroll"
    target_provision_state: str | None = None
    power_state: str | None = None
    target_power_state: str | None = None
    maintenance: bool = False
    maintenance_reason: str | None = None
    fault: str | None = None
    last_error: str | None = None
    reservation: str | None = None
    instance_uuid: str | None = None
    instance_name: str | None = None
    instance_info: Json = {}
    allocation_uuid: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    properties: Json = {}
    extra: Json = {}
    driver_info: Json = {}
    driver_internal_info: Json = {}
    conductor_group: str = ""
    conductor: str | None = None
    shard: str | None = None
    owner: str | None = None
    lessee: str | None = None
    description: str | None = None
    protected: bool = False
    protected_reason: str | None = None
    retired: bool = False
    retired_reason: str | None = None
    automated_clean: bool | None = None
    disable_power_off: bool = False
    console_enabled: bool = False
    clean_step: Json = {}
    deploy_step: Json = {}
    service_step: Json = {}
    boot_mode: str | None = None
    secure_boot: bool | None = None
    chassis_uuid: str | None = None
    parent_node: str | None = None
    health: str | None = None
    network_data: Json = {}
    raid_config: Json = {}
    target_raid_config: Json = {}
    bios_interface: str | None = "fake"
    boot_interface: str | None = "fake"
    console_interface: str | None = "fake"
    deploy_interface: str | None = "fake"
    firmware_interface: str | None = "fake"
    inspect_interface: str | None = "fake"
    management_interface: str | None = "fake"
    network_interface: str | None = "noop"
    power_interface: str | None = "fake"
    raid_interface: str | None = "fake"
    rescue_interface: str | None = "fake"
    storage_interface: str | None = "noop"
    vendor_interface: str | None = "fake"

    def with_changes(self, changes: Json) -> "SimNode":
        other = copy(self)
        for field, value in changes.items():
            setattr(other, field, value)
        return other


FIELDS = SimNode.__struct_fields__


@lru_cache(maxsize=4096)
def iso(seconds: int, zone: str) -> str:
    """Format a time as Ironic does: ending in `Z` in notifications, and in `+00:00` in the API."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + zone


def fields_of_node(node: SimNode, fields: Sequence[str], zone: str) -> Json:
    values: Json = {field: getattr(node, field) for field in fields}
    for field in TIMES & values.keys():
        if values[field] is not None:
            values[field] = iso(int(values[field]), zone)
    return values


def masked(info: Json) -> Json:
    """Return a node's `driver_info` or similar, with asterisks for fields named like `password`."""
    if any("password" in key for key in info):
        return {key: "******" if "password" in key else value for key, value in info.items()}
    return info


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
    """Return new Ironic nodes with reproducible names, spread over resource classes and conductor groups."""
    properties = {"cpus": 32, "memory_mb": 262_144, "local_gb": 2000, "cpu_arch": "x86_64"}
    places = [{**properties, "rack": f"R{rack + 1}"} for rack in range(10)]
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
            properties=places[number % len(places)],
        )
        for number in range(count)
    ]


Phase = Literal["start", "end", "success", "error"]

# The transitions of each state, as in Ironic 39.
PATHS: dict[str, dict[str, str]] = {
    "enroll": {"manage": "verifying"},
    "verifying": {"done": "manageable", "fail": "enroll"},
    "manageable": {
        "provide": "cleaning", "clean": "cleaning", "inspect": "inspecting", "adopt": "adopting",
    },
    "inspecting": {"done": "manageable", "fail": "inspect failed", "wait": "inspect wait"},
    "inspect wait": {
        "done": "manageable", "fail": "inspect failed", "abort": "inspect failed", "resume": "inspecting",
    },
    "inspect failed": {"manage": "manageable", "inspect": "inspecting"},
    "adopting": {"done": "active", "fail": "adopt failed"},
    "adopt failed": {"adopt": "adopting", "manage": "manageable"},
    "cleaning": {
        "done": "available", "manage": "manageable", "fail": "clean failed", "wait": "clean wait",
        "hold": "clean hold",
    },
    "clean wait": {
        "resume": "cleaning", "fail": "clean failed", "abort": "clean failed", "hold": "clean hold",
    },
    "clean hold": {"unhold": "clean wait", "abort": "clean failed"},
    "clean failed": {"manage": "manageable"},
    "available": {"deploy": "deploying", "manage": "manageable"},
    "deploying": {
        "done": "active", "fail": "deploy failed", "wait": "wait call-back", "hold": "deploy hold",
    },
    "wait call-back": {
        "resume": "deploying", "fail": "deploy failed", "abort": "deploy failed", "hold": "deploy hold",
        "delete": "deleting",
    },
    "deploy hold": {"unhold": "wait call-back", "abort": "deploy failed"},
    "deploy failed": {"deploy": "deploying", "rebuild": "deploying", "delete": "deleting"},
    "active": {
        "rebuild": "deploying", "delete": "deleting", "rescue": "rescuing", "service": "servicing",
    },
    "deleting": {"clean": "cleaning", "fail": "error"},
    "error": {"rebuild": "deploying", "delete": "deleting"},
    "rescuing": {"done": "rescue", "fail": "rescue failed", "wait": "rescue wait"},
    "rescue wait": {
        "resume": "rescuing", "fail": "rescue failed", "abort": "rescue failed", "delete": "deleting",
    },
    "rescue": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "rescue failed": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "unrescuing": {"done": "active", "fail": "unrescue failed"},
    "unrescue failed": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "servicing": {
        "done": "active", "fail": "service failed", "wait": "service wait", "hold": "service hold",
    },
    "service wait": {
        "resume": "servicing", "fail": "service failed", "abort": "service failed", "hold": "service hold",
        "delete": "deleting",
    },
    "service hold": {
        "unhold": "service wait", "service": "servicing", "fail": "service failed",
        "abort": "service failed",
    },
    "service failed": {
        "service": "servicing", "rescue": "rescuing", "wait": "service wait", "hold": "service hold",
        "delete": "deleting", "abort": "active",
    },
}  # fmt: skip

# The target state of each transient state.
_BOUND_FOR = {
    "verifying": "manageable", "inspecting": "manageable", "inspect wait": "manageable",
    "inspect failed": "manageable", "adopting": "active", "adopt failed": "active", "cleaning": "available",
    "clean wait": "available", "clean hold": "available", "clean failed": "available",
    "deleting": "available", "deploying": "active", "wait call-back": "active", "deploy hold": "active",
    "deploy failed": "active", "rescuing": "rescue", "rescue wait": "rescue", "rescue failed": "rescue",
    "unrescuing": "active", "unrescue failed": "active", "servicing": "active", "service wait": "active",
    "service hold": "active", "service failed": "active",
}  # fmt: skip

STABLE = frozenset(PATHS) - frozenset(_BOUND_FOR)
UNSTABLE = frozenset({
    "deploying", "wait call-back", "cleaning", "clean wait", "verifying", "deleting", "inspecting",
    "inspect wait", "adopting", "rescuing", "rescue wait", "unrescuing", "servicing", "service wait",
})  # fmt: skip

# States in which a node in transition may be changed, and in which a node may be deleted.
CHANGEABLE = frozenset({
    "deploy failed", "inspect failed", "inspect wait", "clean failed", "error", "verifying", "adopt failed",
    "rescue failed", "unrescue failed", "service hold", "service failed",
})  # fmt: skip
DELETABLE = ("manageable", "enroll", "adopt failed", "available")
NEW_CLASS_IN = ("enroll", "inspecting", "inspect wait", "manageable", "available")

# The target in a request, and the event that it stands for.
VERBS = {
    "active": "deploy", "deploy": "deploy", "rebuild": "rebuild", "deleted": "delete", "undeploy": "delete",
    "manage": "manage", "provide": "provide", "inspect": "inspect", "abort": "abort", "clean": "clean",
    "adopt": "adopt", "rescue": "rescue", "unrescue": "unrescue", "unhold": "unhold", "service": "service",
}  # fmt: skip


class Move(NamedTuple):
    state: str
    target: str | None
    phase: Phase


def event_of(target: str, state: str) -> str | None:
    """Return the event of Ironic's state machine that a request for `target`, such as `provide`, causes in a
    provision state; None if it is not permitted.
    """
    event = VERBS.get(target)
    return event if event in PATHS[state] else None


def move(state: str, event: str, *, working: bool = False, bound_for: str | None = None) -> Move:
    """Return the provision state and target state to which an event changes a node, and the phase of the
    notification. `working`: an operation continues, so the target stays set even in a stable state.

    `bound_for`: the target state, if not the usual one of the new provision state.
    """
    new = PATHS[state][event]
    target = bound_for if bound_for is not None else _BOUND_FOR.get(new)
    if new in STABLE and not working:
        target = None
    return Move(new, target, phase(state, new, event))


def phase(state: str, new: str, event: str) -> Phase:
    """Return the phase (start, end, success or error) of the notification of this change of state."""
    if event == "fail":
        return "error"
    before, after = state in UNSTABLE, new in UNSTABLE
    if before == after:
        return "success"
    return "start" if after else "end"
