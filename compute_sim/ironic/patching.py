"""Checks the values that a client writes to a node, and applies JSON patches."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from compute_sim.ironic.node import Json, SimNode


class ApiRefusal(Exception):
    """Error: the simulated Ironic refuses a request, with an HTTP status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


_OBJECTS = ("driver_info", "extra", "instance_info", "properties")
PATCHABLE = (
    *_OBJECTS, "conductor_group", "driver", "instance_uuid", "lessee", "name", "owner", "resource_class",
    "shard",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9\-._~]+")


def patched(node: SimNode, operations: object) -> Json:
    """Return the new values of fields that a JSON patch changes; raise ApiRefusal if the patch is invalid."""
    fields: Json = {name: getattr(node, name) for name in PATCHABLE}
    for operation, path, value in _operations(operations):
        fields = _applied(fields, operation, path, value)
    changed = (name for name in PATCHABLE if fields.get(name) != getattr(node, name))
    return {name: _checked(name, fields.get(name)) for name in changed}


def _operations(operations: object) -> Iterator[tuple[str, list[str], Any]]:
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        raise ApiRefusal(400, "Expected a JSON patch: a list of operations")
    for given in operations:
        operation, path = given.get("op"), given.get("path")
        if operation not in ("add", "replace", "remove"):
            raise ApiRefusal(400, f"'{operation}' is not one of ['add', 'replace', 'remove']")
        if not isinstance(path, str) or not re.fullmatch(r"(/[^/]+)+", path):
            raise ApiRefusal(400, f"'{path}' is not a path to a field")
        keys = [key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/")]
        if keys[0] not in PATCHABLE:
            known = ", ".join(PATCHABLE)
            raise ApiRefusal(400, f"Cannot patch {path}: the simulated Ironic only updates {known}")
        yield operation, keys, given.get("value")


def _applied(whole: Json, operation: str, path: Sequence[str], value: Any) -> Json:
    """Return a copy of a JSON document to which one operation of a JSON patch was applied."""
    key, *rest = path
    inner = whole.get(key)
    missing = not isinstance(inner, dict) if rest else operation != "add" and key not in whole
    if missing:
        raise ApiRefusal(
            400, f"Couldn't apply patch. Reason: can't {operation} a non-existent object '{key}'"
        )
    if rest:
        return {**whole, key: _applied(whole[key], operation, rest, value)}
    if operation == "remove":
        return {name: present for name, present in whole.items() if name != key}
    return {**whole, key: value}


def _checked(name: str, value: Any) -> Any:
    """Return the value as a node stores it; raise ApiRefusal if the field cannot have it."""
    if value is None and name != "driver":
        return {} if name in _OBJECTS else "" if name == "conductor_group" else None
    if name in _OBJECTS and isinstance(value, dict):
        return value
    if name in _OBJECTS or not isinstance(value, str):
        raise ApiRefusal(400, f"Schema error for node: {name}: {value!r} is not of the field's type")
    if name == "instance_uuid" and not _is_uuid(value):
        raise ApiRefusal(400, f"Expected UUID for {name}: {value}")
    if name == "name" and (_is_uuid(value) or _NAME.fullmatch(value) is None):
        raise ApiRefusal(400, f"Cannot change name to invalid name '{value}'")
    return value.lower() if name == "conductor_group" else value


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False
