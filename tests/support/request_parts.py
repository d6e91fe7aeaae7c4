"""Requests whose fields of features are given by their names, as clients write them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import structs

from bus.parts import TYPES, RequestParts

R = TypeVar("R")


def with_parts(fields: Mapping[str, Any], parts: RequestParts | None = None) -> dict[str, Any]:
    """Return fields of a request in which those of features are in `parts`, with the given parts."""
    left = dict(fields)
    found: RequestParts = left.pop("parts", parts if parts is not None else RequestParts())
    for type_ in TYPES.of(type(found)).values():
        names = [name for name in type_.__struct_fields__ if not type_.flat.get(name)]
        if given := {name: left.pop(name) for name in names if name in left}:
            part = structs.replace(found.get(type_) or type_(), **given)
            found = found.without(type_) if part == type_() else found.having(part)
    return {**left, "parts": found}


def changed(request: R, /, **fields: Any) -> R:
    """Return a copy of a request with other values of fields, also of those of features."""
    return structs.replace(request, **with_parts(fields, request.parts))  # type: ignore[attr-defined, type-var]


def field_of(request: Any, name: str) -> Any:
    """Return a field of a request, also one of a feature."""
    if name in request.__struct_fields__:
        return getattr(request, name)
    for type_ in TYPES.of(type(request.parts)).values():
        if name in type_.__struct_fields__:
            return getattr(request.parts.get(type_) or type_(), name)
    raise AttributeError(name)
