"""Decodes Ironic nodes and notifications, and defines groups of provision states."""

import calendar
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from bus.messages import InventoryReported
from bus.resources import Provider
from bus.vocabulary import END

_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" + END
_Uuid = Annotated[str, Meta(pattern=_UUID)]

_TIME = re.compile(
    r"([1-9]\d{3})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class Malformed(ValueError):
    """The error for data that describes no valid node; the text names the field."""


class IronicNode(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an Ironic node at one time. Unknown fields are ignored."""

    uuid: _Uuid
    name: str | None = None
    resource_class: str | None = None
    provision_state: str | None = None  # null: available, as called before Kilo
    target_provision_state: str | None = None
    power_state: str | None = None  # null: never read, or the BMC is unreachable
    maintenance: bool = False
    fault: str | None = None
    instance_uuid: str | None = None
    traits: tuple[str, ...] = ()
    conductor_group: str = ""
    owner: str | None = None
    lessee: str | None = None
    shard: str | None = None  # not in notifications: a null means nothing unless `whole`
    properties: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    updated_at: float | None = None  # seconds since the epoch, in whole seconds
    whole: bool = False  # read from the API; else the payload of a notification


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The place of an Ironic node in berth: cell, agent, availability zone, aggregates and labels."""

    cell: str
    agent: str
    zone: str = ""
    aggregates: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    @staticmethod
    def of(owned: InventoryReported | Provider) -> "Place":
        """Return a node's cell, agent and zone from its last report or provider, to report its deletion."""
        return Place(cell=owned.cell, agent=owned.agent, zone=owned.zone)


# The fields that a read must ask for.
FIELDS = tuple(name for name in IronicNode.__struct_fields__ if name != "whole")

_NULL_IS_DEFAULT = ("maintenance", "traits", "conductor_group", "properties", "extra")


@lru_cache(4096)
def seconds(text: str) -> float:
    """Convert a time in Ironic's format, in UTC unless it has a zone, to seconds since the epoch."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:50]!r} is no time")
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    if not (0 < day <= calendar.monthrange(year, month)[1] and hour < 24 and minute < 60 and second <= 60):
        raise ValueError(f"{text[:50]!r} is no time")
    fraction, sign, hours, minutes = found.group(7, 8, 9, 10)
    whole = calendar.timegm((year, month, day, hour, minute, second))
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    return whole - offset + float(fraction or 0)


def is_uuid(text: str) -> bool:
    return re.match(_UUID, text) is not None


def from_rest(data: Mapping[str, Any], *, whole: bool = True) -> IronicNode:
    """Make a node from fields of Ironic's API or, unless `whole`, of a notification, which has no shard."""
    found: dict[str, Any] = {"whole": whole}
    for field in FIELDS:
        value = data.get(field)
        if value is None and field in _NULL_IS_DEFAULT:
            continue
        if value is not None and field == "updated_at":
            try:
                value = float(int(seconds(value)))  # a read has microseconds, a notification does not
            except (TypeError, ValueError):
                raise Malformed(f"{field}: {value!r} is no time") from None
        found[field] = value.lower() if field == "uuid" and isinstance(value, str) else value
    try:
        return msgspec.convert(found, IronicNode)
    except msgspec.ValidationError as problem:
        raise Malformed(str(problem)) from None


FREE = frozenset({"available", None})  # an instance can be deployed
DEPLOYING = frozenset({"deploying", "wait call-back", "deploy hold"})
# A node enters one of these states from active only: the deployment was completed.
DEPLOYED = frozenset({
    "active", "rescuing", "rescue wait", "rescue", "rescue failed", "unrescuing", "unrescue failed",
    "servicing", "service wait", "service hold", "service failed",
})  # fmt: skip
CLEANING = frozenset({"deleting", "cleaning", "clean wait", "clean hold", "clean failed"})
# Ironic waits for an operator, and the node has no instance that runs.
FAILED = frozenset({"error", "inspect failed", "adopt failed", "clean failed", "deploy failed"})
UNDEPLOYABLE = frozenset({
    "active", "deploy failed", "wait call-back", "error", "rescue", "rescue wait", "rescue failed",
    "unrescue failed", "service wait", "service failed",
})  # fmt: skip
# Ironic must first abort the deployment or service of a node in such a state before it can undeploy the node.
HELD = frozenset({"deploy hold", "service hold"})
# Nothing is deployed on a node in such a state, even if its instance_uuid is set.
UNUSED = frozenset({
    "available", None, "manageable", "enroll", "verifying", "inspect failed", "inspect wait",
    "clean failed", "adopt failed",
})  # fmt: skip
# Ironic accepts writes to a node in such a state; in any other it is busy or about to be.
WRITABLE = UNUSED | {
    "active", "rescue", "deploy failed", "error", "rescue failed", "unrescue failed", "service hold",
    "service failed",
}  # fmt: skip


Phase = Literal["start", "end", "error", "success"]
Reason = Literal["not a node", "unknown event", "unreadable"]

NODE = "baremetal.node."
ALLOCATION = "baremetal.allocation."
EVENTS = frozenset({
    "create", "update", "delete", "maintenance_set", "provision_set", "power_set", "power_state_corrected",
    "console_set", "console_restore",
})  # fmt: skip
_PHASES: tuple[str, ...] = get_args(Phase)


class ReceivedNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification that a node changed, with its new state `node`, if known; `uuid` is empty if unknown."""

    event: str  # one of EVENTS, or "allocation"
    phase: Phase
    at: float  # seconds since the epoch
    id: str = ""
    uuid: str  # empty: unknown
    node: IronicNode | None = None


class Skipped(msgspec.Struct, frozen=True):
    """A message of Ironic's exchange that is unreadable or not about nodes; `why` has the reason."""

    reason: Reason
    why: str


def opened(body: bytes) -> ReceivedNotification | Skipped:
    """Decode a message of Ironic's exchange as a notification, or as skipped with a reason; never raises."""
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
    node = from_rest(data, whole=False) if event != "allocation" else None
    uuid = node.uuid if node is not None else data.get("node_uuid")
    if not isinstance(uuid, str) or not is_uuid(uuid):
        if kind != ALLOCATION + "create.end":  # an allocation names no node before Ironic has chosen one
            return Skipped("not a node", f"{kind} of no node")
        uuid = ""
    return ReceivedNotification(
        event=event,
        phase=phase,  # type: ignore[arg-type]  # checked above
        at=_time(message),
        id=str(message.get("message_id") or "")[:255],
        uuid=uuid,
        node=node,
    )


def _time(message: Mapping[str, Any]) -> float:
    at = message.get("timestamp")
    try:
        return seconds(at) if isinstance(at, str) else float(at)  # type: ignore[arg-type]  # or TypeError
    except (TypeError, ValueError, OverflowError):
        raise Malformed(f"timestamp: {at!r} is no time") from None
