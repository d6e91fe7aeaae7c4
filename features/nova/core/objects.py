"""Converts Nova's versioned objects from and to JSON: `plain` reads them, `versioned` writes them."""

from collections.abc import Mapping
from typing import Any

DATA, NAME = "nova_object.data", "nova_object.name"


def plain(primitive: Any) -> Any:
    """Return decoded JSON in which a dictionary of fields replaces each versioned object of Nova."""
    match primitive:
        case {"nova_object.data": data}:
            return {key: plain(value) for key, value in data.items()}
        case dict():
            return {key: plain(value) for key, value in primitive.items()}
        case list() | tuple():
            return [plain(value) for value in primitive]
    return primitive


def versioned(name: str, version: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a versioned object as Nova's RPC encodes it, with every field marked as changed."""
    return {
        NAME: name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        DATA: dict(fields),
        "nova_object.changes": sorted(fields),
    }
