"""Encodes notifications as Ironic's versioned payloads in oslo.messaging's envelope 2.0."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from bus.clock import Clock
from compute_sim.ironic.node import Json, Phase, SimNode, fields_of_node, masked

Action = Literal[
    "create", "update", "delete", "maintenance_set", "provision_set", "power_set", "power_state_corrected",
]  # fmt: skip

COMMON = (
    "clean_step", "conductor_group", "console_enabled", "created_at", "deploy_step", "description",
    "disable_power_off", "driver", "extra", "boot_mode", "secure_boot", "inspection_finished_at",
    "inspection_started_at", "instance_uuid", "last_error", "maintenance", "maintenance_reason", "fault",
    "bios_interface", "boot_interface", "console_interface", "deploy_interface", "inspect_interface",
    "management_interface", "network_interface", "power_interface", "raid_interface", "rescue_interface",
    "storage_interface", "vendor_interface", "name", "owner", "lessee", "power_state", "properties",
    "protected", "protected_reason", "provision_state", "provision_updated_at", "resource_class", "retired",
    "retired_reason", "target_power_state", "target_provision_state", "traits", "updated_at", "uuid",
)  # fmt: skip

# The payload of each action: name, version, and fields in addition to COMMON.
_CRUD = ("NodeCRUDPayload", "1.15", ("chassis_uuid", "instance_info", "driver_info"))
_PAYLOADS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "create": _CRUD,
    "update": _CRUD,
    "delete": _CRUD,
    "maintenance_set": ("NodePayload", "1.17", ()),
    "provision_set": ("NodeSetProvisionStatePayload", "1.18", ("instance_info", "driver_internal_info")),
    "power_set": ("NodeSetPowerStatePayload", "1.17", ()),
    "power_state_corrected": ("NodeCorrectedPowerStatePayload", "1.17", ()),
}
_FROM_API = frozenset({"create", "update", "delete", "maintenance_set"})
_UNSET_BEFORE_CREATE = (
    "console_enabled", "disable_power_off", "maintenance", "protected", "retired", "created_at",
)  # fmt: skip
_CONTEXT: Json = {
    "_context_user": None, "_context_project_id": None, "_context_system_scope": None,
    "_context_project": None, "_context_domain": None, "_context_user_domain": None,
    "_context_project_domain": None, "_context_is_admin": False, "_context_read_only": False,
    "_context_show_deleted": False, "_context_auth_token": None, "_context_request_id": "",
    "_context_global_request_id": None, "_context_resource_uuid": None, "_context_roles": [],
    "_context_user_identity": "- - - - -", "_context_is_admin_project": True,
    "_context_auth_token_info": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SentNotification:
    """A notification of the simulated Ironic: a node changed, or an API call began or was refused."""

    action: Action
    phase: Phase
    node: SimNode  # the node's real state
    request: str
    shown: SimNode | None = None  # shown in the payload instead: requested values, or an older state
    asked: bool = False  # the payload only shows requested values
    silent: bool = False  # a change that Ironic does not notify
    more: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocationNotification:
    """A notification about an allocation in Ironic; `data` is the payload."""

    phase: Phase
    action: Literal["create", "delete"]
    data: Json
    request: str


def event_type(notification: SentNotification | AllocationNotification) -> str:
    kind = "node" if isinstance(notification, SentNotification) else "allocation"
    return f"baremetal.{kind}.{notification.action}.{notification.phase}"


def payload(notification: SentNotification | AllocationNotification) -> Json:
    """Return the object that a notification contains, in Ironic's format: name, version and fields."""
    if isinstance(notification, AllocationNotification):
        return _versioned("AllocationCRUDPayload", "1.1", notification.data)
    name, version, further = _PAYLOADS[notification.action]
    node = notification.shown or notification.node
    data = {**fields_of_node(node, further, "Z"), **notification.more, **fields_of_node(node, COMMON, "Z")}
    for secret in ("instance_info", "driver_info", "driver_internal_info"):
        if secret in data:
            data[secret] = masked(data[secret])
    # Ironic sends this notification before it sets default values.
    if notification.action == "create" and notification.phase == "start":
        data.update(dict.fromkeys(_UNSET_BEFORE_CREATE))
    return _versioned(name, version, data)


def _versioned(name: str, version: str, data: Json) -> Json:
    return {
        "ironic_object.name": name,
        "ironic_object.namespace": "ironic",
        "ironic_object.version": version,
        "ironic_object.data": data,
    }


class Envelopes:
    """Wraps notifications in envelopes as oslo.messaging does, each with a different timestamp."""

    def __init__(self, clock: Clock, host: str, topics: Sequence[str]) -> None:
        self._clock = clock
        self._host = host
        self._topics = tuple(topics)
        self._last = 0  # microseconds

    def of(self, notification: SentNotification | AllocationNotification) -> list[tuple[str, bytes]]:
        """Return a notification as AMQP messages (routing key, body), one for each configured topic, all with
        one message id.
        """
        self._last = max(self._last + 1, int(self._clock.now() * 1_000_000))
        seconds, micros = divmod(self._last, 1_000_000)
        level = "error" if notification.phase == "error" else "info"
        by_api = isinstance(notification, AllocationNotification) or notification.action in _FROM_API
        message: dict[str, Any] = {
            "message_id": self._clock.uuid(),
            "publisher_id": f"ironic-{'api' if by_api else 'conductor'}.{self._host}",
            "event_type": event_type(notification),
            "priority": level.upper(),
            "payload": payload(notification),
            "timestamp": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{micros:06}",
            "_unique_id": "",
            **_CONTEXT,
        }
        message["_context_request_id"] = notification.request
        bodies = []
        for topic in self._topics:
            message["_unique_id"] = self._clock.uuid().replace("-", "")
            inner = msgspec.json.encode(message).decode()
            body = msgspec.json.encode({"oslo.version": "2.0", "oslo.message": inner})
            bodies.append((f"{topic}.{level}", body))
        return bodies
