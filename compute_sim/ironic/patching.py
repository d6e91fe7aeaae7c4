"""Decodes requests to the simulated Ironic, and checks the values that a client writes to a node."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bus.errors import NOT_JSON
from compute_sim.core.provider_tree import STANDARD_TRAITS
from compute_sim.ironic.node import Json, SimNode


class SimRequest:
    """An HTTP request to the simulated Ironic, with its API version, request id and body."""

    __slots__ = ("id", "minor", "request", "url")

    def __init__(self, request: Request, minor: int, id_: str) -> None:
        self.request = request
        self.minor = minor
        self.id = id_
        self.url = str(request.base_url).rstrip("/")

    @property
    def ident(self) -> str:
        return str(self.request.path_params["ident"])

    @property
    def trait(self) -> str:
        return str(self.request.path_params["trait"])

    async def body(self) -> Any:
        raw = await self.request.body()
        if not raw:
            return {}
        try:
            return msgspec.json.decode(raw)
        except NOT_JSON as problem:
            raise ApiRefusal(400, f"The body is not JSON: {problem}") from None

    async def fields(self) -> Json:
        body = await self.body()
        if not isinstance(body, dict):
            raise ApiRefusal(400, "The body is not a JSON object")
        return body


def target_of(body: Json) -> str:
    """Return the field `target` of a request's body; raise ApiRefusal if it is missing or no text."""
    target = body.get("target")
    if not isinstance(target, str):
        raise ApiRefusal(400, "Missing mandatory parameter: target")
    return target


def json_response(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


class ApiRefusal(Exception):
    """Error: the simulated Ironic refuses a request, with an HTTP status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def not_found(ident: str) -> ApiRefusal:
    return ApiRefusal(404, f"Node {ident} could not be found.")


def not_acceptable(text: str = "Request not acceptable.") -> ApiRefusal:
    return ApiRefusal(406, text)


def locked(node: SimNode) -> ApiRefusal:
    text = f"Node {node.uuid} is locked by host {node.reservation}"
    return ApiRefusal(409, f"{text}, please retry after the current operation is completed.")


def wrong_state(action: str, node: SimNode, state: str | None) -> ApiRefusal:
    text = f'The requested action "{action}" can not be performed on node "{node.uuid}"'
    return ApiRefusal(400, f'{text} while it is in state "{state}".')


PATCHABLE = (
    "automated_clean", "bios_interface", "boot_interface", "chassis_uuid", "conductor_group",
    "console_interface", "deploy_interface", "description", "disable_power_off", "driver", "driver_info",
    "extra", "inspect_interface", "instance_info", "instance_name", "instance_uuid", "lessee", "maintenance",
    "management_interface", "name", "network_data", "network_interface", "owner", "power_interface",
    "properties", "protected", "protected_reason", "raid_interface", "rescue_interface", "resource_class",
    "retired", "retired_reason", "shard", "storage_interface", "vendor_interface", "parent_node",
    "firmware_interface",
)  # fmt: skip
CREATABLE = (*PATCHABLE, "uuid", "boot_mode", "console_enabled", "secure_boot")

_BOOLEANS = {
    "automated_clean", "console_enabled", "disable_power_off", "maintenance", "protected", "retired",
    "secure_boot",
}  # fmt: skip
_NOT_NULL = {"maintenance": False, "protected": False, "retired": False, "disable_power_off": False}
_UUIDS = {"chassis_uuid", "instance_uuid", "uuid"}
_OBJECTS = {"driver_info", "extra", "instance_info", "network_data", "properties"}
_LONGEST = {"resource_class": 80, "description": 4096, "instance_name": 255, "parent_node": 36, "name": 255}
_TRUE, _FALSE = {"true", "t", "1", "yes", "y", "on"}, {"false", "f", "0", "no", "n", "off"}
_NAME = re.compile(r"[A-Za-z0-9\-._~]+")
_TRAIT = re.compile(r"[A-Z][A-Z0-9_]{0,254}")
_RESERVED = {"detail", "maintenance", "management", "states", "traits", "validate", "vendor_passthru"}


def is_uuid(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(UUID(text))
    except ValueError:
        return False


def good_name(name: object) -> bool:
    valid = isinstance(name, str) and _NAME.fullmatch(name) is not None
    return valid and name not in _RESERVED and not is_uuid(name)


def good_trait(name: object) -> bool:
    """Return whether a value is the name of a standard trait or a valid custom trait."""
    if not isinstance(name, str) or _TRAIT.fullmatch(name) is None:
        return False
    return name.startswith("CUSTOM_") or name in STANDARD_TRAITS


def new_node(given: Mapping[str, Any]) -> Json:
    """Return the fields of the Ironic node that a client requests to create; raise ApiRefusal if a field is
    invalid.
    """
    if unknown := ", ".join(sorted(given.keys() - set(CREATABLE))):
        text = f"Schema error for node: Additional properties are not allowed ({unknown} unexpected)"
        raise ApiRefusal(400, text)
    if not given.get("driver"):
        raise ApiRefusal(400, "Schema error for node: 'driver' is a required property")
    if (name := given.get("name")) is not None and not good_name(name):
        raise ApiRefusal(400, f"Cannot create node with invalid name '{name}'")
    return _as_ironic_keeps_it({field: _checked(field, value) for field, value in given.items()})


def patched(node: SimNode, operations: object) -> Json:
    """Return the fields of an Ironic node that a JSON patch (`operations`) changes, with their new values;
    raise ApiRefusal if the patch is invalid.
    """
    whole: Json = {field: getattr(node, field) for field in PATCHABLE}
    for operation, path, value in _operations(operations):
        whole = _applied(whole, operation, path, value)
    changed = (field for field in PATCHABLE if whole.get(field) != getattr(node, field))
    return _as_ironic_keeps_it({field: _checked(field, whole.get(field)) for field in changed})


def names_in(operations: object) -> list[Any]:
    """Return all values that a JSON patch gives to a node's `name`; raise ApiRefusal for an invalid patch."""
    found = _operations(operations)
    return [value for operation, path, value in found if path == ["name"] and operation != "remove"]


def _as_ironic_keeps_it(fields: Json) -> Json:
    for field, value in fields.items():
        if value is None and field in _NOT_NULL:
            fields[field] = _NOT_NULL[field]
        elif value is None and field in _OBJECTS:
            fields[field] = {}
    if "conductor_group" in fields:
        fields["conductor_group"] = (fields["conductor_group"] or "").lower()
    return fields


def _operations(operations: object) -> Iterator[tuple[str, list[str], Any]]:
    if not isinstance(operations, list):
        raise ApiRefusal(400, "Expected a JSON patch: a list of operations")
    for patch_operation in operations:
        if not isinstance(patch_operation, dict):
            raise ApiRefusal(400, f"Not an operation of a JSON patch: {patch_operation!r}")
        operation, path = patch_operation.get("op"), patch_operation.get("path")
        if operation not in ("add", "replace", "remove"):
            raise ApiRefusal(400, f"'{operation}' is not one of ['add', 'replace', 'remove']")
        if not isinstance(path, str) or not re.fullmatch(r"(/[^/]+)+", path):
            raise ApiRefusal(400, f"'{path}' is not a path to a field")
        if operation != "remove" and "value" not in patch_operation:
            raise ApiRefusal(400, "'add' and 'replace' operations need a value")
        keys = [key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/")]
        if keys[0] == "traits":
            use = "Node traits should be updated via the node traits API."
            raise ApiRefusal(400, f"Cannot update node traits via node patch. {use}")
        if keys[0] not in PATCHABLE:
            known = ", ".join(PATCHABLE)
            raise ApiRefusal(400, f"Cannot patch {path}. Only the following can be updated: {known}")
        yield operation, keys, patch_operation.get("value")


def _applied(whole: Json, operation: str, path: Sequence[str], value: Any) -> Json:
    """Return a copy of a JSON document to which one operation of a JSON patch was applied."""
    key, *rest = path
    if rest:
        inner = whole.get(key)
        if not isinstance(inner, dict):
            raise _cannot(operation, path, f"member '{key}' not found")
        return {**whole, key: _applied(inner, operation, rest, value)}
    if operation == "add":
        return {**whole, key: value}
    if key not in whole:
        raise _cannot(operation, path, f"can't {operation} a non-existent object '{key}'")
    if operation == "replace":
        return {**whole, key: value}
    return {name: present for name, present in whole.items() if name != key}


def _cannot(operation: str, path: Sequence[str], reason: str) -> ApiRefusal:
    patch = {"op": operation, "path": "/" + "/".join(path)}
    return ApiRefusal(400, f"Couldn't apply patch '{patch}'. Reason: {reason}")


def _checked(field: str, value: Any) -> Any:
    if value is None:
        if field == "driver":
            raise ApiRefusal(400, "Schema error for node: 'driver' is a required property")
        return None
    if field in _BOOLEANS:
        if str(value).lower() not in _TRUE | _FALSE or not isinstance(value, bool | str):
            raise ApiRefusal(400, f"Invalid {field}: Unrecognized value '{value}'")
        return str(value).lower() in _TRUE
    kind = dict if field in _OBJECTS else str
    if not isinstance(value, kind):
        raise ApiRefusal(400, f"Schema error for node: {field}: {value!r} is not of type '{kind.__name__}'")
    if field in _UUIDS:
        if not is_uuid(value):
            raise ApiRefusal(400, f"Expected UUID for {field}: {value}")
        return str(UUID(str(value)))
    if kind is str and len(value) > _LONGEST.get(field, 255):
        raise ApiRefusal(400, f"Schema error for node: {field}: {value!r} is too long")
    return value
