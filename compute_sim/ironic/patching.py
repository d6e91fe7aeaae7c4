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


# Fields that a client may set when it creates a node.
CREATABLE = ("uuid", "driver", *(name for name in PATCHABLE if name not in ("driver", "instance_uuid")))
DRIVER = "fake-hardware"  # the only driver of the simulated Ironic
_TRAIT = re.compile(r"(CUSTOM_[A-Z0-9_]+|(HW|COMPUTE|STORAGE|MISC|OWNER)_[A-Z0-9_]+)")
_MAX_TRAIT = 255


def created(values: Json, uuid: str) -> Json:
    """Return the fields of a new node as it stores them; `uuid` is used if the client gives none. Raise
    ApiRefusal if a field is missing, unknown or wrong.
    """
    if unknown := ", ".join(sorted(values.keys() - set(CREATABLE))):
        raise ApiRefusal(400, f"Schema error for node: {unknown}: the simulated Ironic has no such field")
    if not values.get("driver"):
        raise ApiRefusal(400, "Schema error for node: 'driver' is a required property")
    if values["driver"] != DRIVER:
        text = "No valid host was found. Reason: No conductor service registered which supports driver"
        raise ApiRefusal(400, f"{text} {values['driver']}: the simulated Ironic only has {DRIVER}.")
    given = values.get("uuid") or uuid
    if not isinstance(given, str) or not _is_uuid(given):
        raise ApiRefusal(400, f"Expected UUID for uuid: {given}")
    fields = {name: _checked(name, value) for name, value in values.items() if name != "uuid"}
    return {**fields, "uuid": str(UUID(given))}


def checked_traits(traits: object) -> tuple[str, ...]:
    """Return the traits of a node without duplicates, sorted; raise ApiRefusal if one is no valid name."""
    if not isinstance(traits, list):
        raise ApiRefusal(400, "Expected a list of traits")
    for trait in traits:
        if not isinstance(trait, str) or len(trait) > _MAX_TRAIT or not _TRAIT.fullmatch(trait):
            text = "Please use either a standard trait from the os-traits library or a custom trait"
            raise ApiRefusal(400, f"Invalid traits {trait!r}. {text} that begins with CUSTOM_.")
    return tuple(sorted({*traits}))


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
