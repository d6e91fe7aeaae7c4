"""Nova's versioned objects as JSON: `plain` reads them, `versioned` writes them."""

from collections.abc import Mapping
from typing import Any

DATA, NAME = "nova_object.data", "nova_object.name"


def plain(primitive: Any) -> Any:
    """Return a primitive with each versioned object replaced by its fields; unset fields are absent."""
    match primitive:
        case {"nova_object.data": data}:
            return {key: plain(value) for key, value in data.items()}
        case dict():
            return {key: plain(value) for key, value in primitive.items()}
        case list() | tuple():
            return [plain(value) for value in primitive]
    return primitive


def versioned(name: str, version: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a versioned object of Nova as its RPC sends it, with all of the fields changed."""
    return {
        NAME: name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        DATA: dict(fields),
        "nova_object.changes": sorted(fields),
    }
