"""Decodes messages of Ironic's notification exchange.

oslo.messaging wraps a message in an envelope of version 2.0, {"oslo.version", "oslo.message": JSON}. Version
1 has no envelope. Unknown fields of either are ignored.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ironic_sync.core.node import IronicNode, Malformed, from_payload, is_uuid, seconds

Phase = Literal["start", "end", "error", "success"]
Reason = Literal["not a node", "unknown event", "unreadable"]

NODE = "baremetal.node."
ALLOCATION = "baremetal.allocation."
EVENTS = frozenset(
    {
        "create",
        "update",
        "delete",
        "maintenance_set",
        "provision_set",
        "power_set",
        "power_state_corrected",
        "console_set",
        "console_restore",
    }
)
_PHASES: frozenset[str] = frozenset({"start", "end", "error", "success"})


class ReceivedNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification about a node. Without `node` it only hints that this node, or some node, has changed."""

    event: str  # one of EVENTS, or "allocation"
    phase: Phase
    at: float  # seconds since the epoch
    id: str = ""
    publisher: str = ""
    uuid: str  # empty: unknown
    node: IronicNode | None = None


class Skipped(msgspec.Struct, frozen=True):
    """A message that is not about nodes or cannot be read; `why` has the detail."""

    reason: Reason
    why: str


def opened(body: bytes) -> ReceivedNotification | Skipped:
    """Decode a message. Never raises: anything published there is either a notification or skipped."""
    try:
        message = msgspec.json.decode(body)
        if isinstance(message, dict) and "oslo.message" in message:
            message = message["oslo.message"]
            if isinstance(message, str):
                message = msgspec.json.decode(message)
        if not isinstance(message, dict):
            return Skipped("unreadable", "the message is no JSON object")
        return _read(message)
    except Malformed as problem:
        return Skipped("unreadable", str(problem))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return Skipped("unreadable", f"no JSON: {problem}")


def _read(message: Mapping[str, Any]) -> ReceivedNotification | Skipped:
    kind = message.get("event_type")
    if not isinstance(kind, str):
        return Skipped("unreadable", "event_type: there is none")
    if not kind.startswith((NODE, ALLOCATION)):
        return Skipped("not a node", kind[:200])
    event, _, phase = kind.removeprefix(NODE).rpartition(".")
    if kind.startswith(ALLOCATION):
        event = "allocation"
    elif event not in EVENTS:
        return Skipped("unknown event", kind[:200])
    if phase not in _PHASES:
        return Skipped("unknown event", kind[:200])
    data = message.get("payload")
    if isinstance(data, dict):
        data = data.get("ironic_object.data", data)
    if not isinstance(data, dict):
        return Skipped("unreadable", "payload: there is none")
    node = from_payload(data) if event != "allocation" else None
    uuid = node.uuid if node is not None else data.get("node_uuid")
    if not isinstance(uuid, str) or not is_uuid(uuid):
        if kind != ALLOCATION + "create.end":  # an allocation names no node before Ironic has chosen one
            return Skipped("not a node", f"{kind} of no node")
        uuid = ""
    return ReceivedNotification(
        event=event,
        phase=phase,  # type: ignore[arg-type]  # checked above
        at=_time(message),
        id=_text(message, "message_id"),
        publisher=_text(message, "publisher_id"),
        uuid=uuid,
        node=node,
    )


def _time(message: Mapping[str, Any]) -> float:
    at = message.get("timestamp")
    try:
        return seconds(at) if isinstance(at, str) else float(at)  # type: ignore[arg-type]  # or TypeError
    except (TypeError, ValueError, OverflowError):
        raise Malformed(f"timestamp: {at!r} is no time") from None


def _text(message: Mapping[str, Any], field: str) -> str:
    value = message.get(field)
    return value[:255] if isinstance(value, str) else ""
