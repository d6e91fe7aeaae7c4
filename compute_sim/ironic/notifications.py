"""Encodes notifications as Ironic's versioned payloads in oslo.messaging's envelope 2.0, and sends them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from bus.clock import Clock
from bus.rabbit.foreign.publisher import ForeignPublisher
from compute_sim.ironic.node import HOST, Json, SimNode, values_of
from compute_sim.ironic.states import Phase

TOPIC = "ironic_versioned_notifications"
MOST_WAITING = 20_000  # notifications that wait for the broker

Action = Literal["create", "update", "maintenance_set", "provision_set", "power_set", "power_state_corrected"]
FROM_API = ("create", "update", "maintenance_set")  # their `.start` and `.error` show requested values

_COMMON = (
    "clean_step", "conductor_group", "console_enabled", "created_at", "deploy_step", "description",
    "disable_power_off", "driver", "extra", "boot_mode", "secure_boot", "inspection_finished_at",
    "inspection_started_at", "instance_uuid", "last_error", "maintenance", "maintenance_reason", "fault",
    "bios_interface", "boot_interface", "console_interface", "deploy_interface", "inspect_interface",
    "management_interface", "network_interface", "power_interface", "raid_interface", "rescue_interface",
    "storage_interface", "vendor_interface", "name", "owner", "lessee", "power_state", "properties",
    "protected", "protected_reason", "provision_state", "provision_updated_at", "resource_class", "retired",
    "retired_reason", "target_power_state", "target_provision_state", "traits", "updated_at", "uuid",
)  # fmt: skip

_CRUD = "NodeCRUDPayload", "1.15", ("chassis_uuid", "instance_info", "driver_info")
# The payload of each action: name, version, and fields before _COMMON.
_PAYLOADS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "create": _CRUD,
    "update": _CRUD,
    "maintenance_set": ("NodePayload", "1.17", ()),
    "provision_set": ("NodeSetProvisionStatePayload", "1.18", ("instance_info", "driver_internal_info")),
    "power_set": ("NodeSetPowerStatePayload", "1.17", ()),
    "power_state_corrected": ("NodeCorrectedPowerStatePayload", "1.17", ()),
}
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
    """A notification of the simulated Ironic: a node changed, or a request began or was refused."""

    action: Action
    phase: Phase
    node: SimNode  # the node's real state
    request: str
    shown: SimNode | None = None  # shown in the payload instead: requested values, or an older state
    more: Json = field(default_factory=dict)  # further fields of the payload


def payload(notification: SentNotification) -> Json:
    """Return the object that a notification contains, in Ironic's format: name, version and fields."""
    action, node = notification.action, notification.shown or notification.node
    name, version, further = _PAYLOADS[action]
    data = {**values_of(node, further, "Z"), **notification.more, **values_of(node, _COMMON, "Z")}
    return {
        "ironic_object.name": name,
        "ironic_object.namespace": "ironic",
        "ironic_object.version": version,
        "ironic_object.data": data,
    }


class Envelopes:
    """Wraps notifications in envelopes as oslo.messaging does, each with a different timestamp."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0  # microseconds

    def of(self, notification: SentNotification) -> tuple[str, bytes]:
        """Return a notification as an AMQP message: routing key and body."""
        self._last = max(self._last + 1, int(self._clock.now() * 1_000_000))
        seconds, micros = divmod(self._last, 1_000_000)
        level = "error" if notification.phase == "error" else "info"
        service = "api" if notification.action in FROM_API else "conductor"
        message: dict[str, Any] = {
            "message_id": self._clock.uuid(),
            "publisher_id": f"ironic-{service}.{HOST}",
            "event_type": f"baremetal.node.{notification.action}.{notification.phase}",
            "priority": level.upper(),
            "payload": payload(notification),
            "timestamp": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{micros:06}",
            "_unique_id": self._clock.uuid().replace("-", ""),
            **_CONTEXT,
            "_context_request_id": notification.request,
        }
        inner = msgspec.json.encode(message).decode()
        body = msgspec.json.encode({"oslo.version": "2.0", "oslo.message": inner})
        return f"{TOPIC}.{level}", body


class NotificationSink(Protocol):
    """The interface of an object that sends the notifications of the simulated Ironic to a destination."""

    def __call__(self, notification: SentNotification, /) -> None: ...

    async def run(self) -> None:
        """Send notifications until the task is cancelled."""


class IronicExchange:
    """Publishes notifications to Ironic's exchange; the publisher queues them."""

    def __init__(self, publisher: ForeignPublisher) -> None:
        self._publisher = publisher
        self._envelopes = Envelopes(Clock())

    def __call__(self, notification: SentNotification) -> None:
        self._publisher.add([self._envelopes.of(notification)])

    async def run(self) -> None:
        """Publish until cancelled; raise BadCredentials if the broker rejects the credentials."""
        await self._publisher.run(ends_if_rejected=True)
