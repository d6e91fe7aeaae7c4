"""Nova's versioned notifications: requests to its scheduler, and their results."""

import calendar
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from features.nova.core.objects import plain

Event = Literal["asked", "selected", "used", "refused"]

NO_VALID_HOST = "NoValidHost"
_EVENTS: Mapping[str, tuple[Event, str]] = {  # event type → event, operation
    "scheduler.select_destinations.start": ("asked", ""),
    "scheduler.select_destinations.end": ("selected", ""),
    "instance.create.end": ("used", "boot"),
    "instance.create.error": ("used", "boot"),
    "instance.resize_finish.end": ("used", "resize"),
    "instance.live_migration_post_dest.end": ("used", "live migration"),
    "instance.rebuild.end": ("used", "evacuation"),
    "instance.unshelve.end": ("used", "unshelve"),
    "compute_task.build_instances.error": ("refused", "boot"),
    "compute_task.migrate_server.error": ("refused", "move"),
    "compute_task.rebuild_server.error": ("refused", "evacuation"),
}
_REMOTE = "_Remote"  # oslo.messaging appends it to the class of an exception that came over RPC
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(?:Z|\+00:00)?", re.ASCII)


class NovaNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification of Nova about an instance. Its `event` is "asked" (hosts were requested), "selected"
    (hosts were selected), "used" (a host finished its build or move) or "refused" (the request was refused).
    """

    id: str  # equal in copies of one notification
    at: float  # seconds since the epoch
    request: str  # id of the request to Nova's API; equal in all notifications that it causes
    instance: str
    event: Event
    operation: str = ""
    host: str = ""  # used: the service host
    node: str = ""
    cause: str = ""  # refused: name of the exception
    reason: str = ""
    spec: dict[str, Any] | None = None  # asked and refused: the RequestSpec's payload, as plain fields


class UnreadableNotification(ValueError):
    """Error: a message is no notification of Nova, or lacks a field; the text names the field."""


def notification_of(body: bytes) -> NovaNotification | None:
    """Return the notification of Nova in a message; None if it is not about the scheduling of an instance.
    Raise UnreadableNotification if it is invalid.
    """
    try:
        message = msgspec.json.decode(body)
        if isinstance(message, dict) and isinstance(message.get("oslo.message"), str):
            message = msgspec.json.decode(message["oslo.message"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UnreadableNotification(f"no JSON: {problem}") from None
    if not isinstance(message, dict) or not isinstance(message.get("event_type"), str):
        raise UnreadableNotification("event_type: there is none")
    known = _EVENTS.get(message["event_type"])
    if known is None:
        return None
    payload = plain(message.get("payload"))
    if not isinstance(payload, dict):
        raise UnreadableNotification("payload: there is none")
    return _read(message, payload, *known)


def _read(
    message: Mapping[str, Any], payload: dict[str, Any], event: Event, operation: str
) -> NovaNotification:
    id_ = message.get("message_id")
    if not isinstance(id_, str) or not id_:
        raise UnreadableNotification("message_id: there is none")
    instance = payload.get("uuid" if event == "used" else "instance_uuid")
    if not isinstance(instance, str) or not instance:
        raise UnreadableNotification("the payload names no instance")
    found: dict[str, Any] = {}
    if event == "used":
        found = _place(str(message.get("publisher_id") or ""), payload)
    elif event == "refused":
        fault = payload.get("reason")
        if not isinstance(fault, dict):
            raise UnreadableNotification("reason: there is none")
        found = {
            "cause": str(fault.get("exception") or "").removesuffix(_REMOTE),
            "reason": str(fault.get("exception_message") or ""),
            "spec": payload.get("request_spec"),
        }
    elif event == "asked":
        found = {"spec": payload}
    return NovaNotification(
        id=id_[:255],
        at=_seconds(message.get("timestamp")),
        request=str(message.get("_context_request_id") or payload.get("request_id") or "")[:255],
        instance=instance.lower()[:255],
        event=event,
        operation=operation,
        **found,
    )


def _place(publisher: str, payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the host and node on which an instance was built or moved. The host is the sender of the
    notification, because Nova removes the host from the instance if a build fails.
    """
    host = publisher.partition(":")[2] or str(payload.get("host") or "")
    if not host:
        raise UnreadableNotification("publisher_id: there is no host")
    node = str(payload.get("node") or "") if payload.get("host") == host else ""
    return {"host": host[:255], "node": node[:255]}


def _seconds(at: object) -> float:
    found = _TIME.fullmatch(at) if isinstance(at, str) else None
    if found is None:
        raise UnreadableNotification(f"timestamp: {at!r} is no time")
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    try:
        whole = calendar.timegm((year, month, day, hour, minute, second))
    except ValueError:
        raise UnreadableNotification(f"timestamp: {at!r} is no time") from None
    return whole + float(found[7] or 0)
