"""Finds fields of a request that berth does not know, such as misspelled ones: decoding skips them."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from bus.clients import ClientRequested
from bus.errors import Undecodable
from bus.guests import BuildAdoptRequested
from bus.messages import BuildCancelRequested, BuildDeleteRequested, BuildRequested
from bus.moves import MoveRequested, MoveSteered
from bus.protocol import M

Request = (
    BuildRequested
    | BuildCancelRequested
    | BuildDeleteRequested
    | BuildAdoptRequested
    | MoveRequested
    | MoveSteered
)
REQUESTS = (*get_args(Request), ClientRequested)

MAX_NOTES = 20
_LONGEST = 100  # characters of an unknown name in a note


def with_unknown(message: M, body: bytes | msgspec.Raw) -> M:
    """Return a request with a note for each field in `body` that its type does not have; messages that are no
    requests are returned as they are. Raise Undecodable if the request is `strict` and has such fields.
    """
    if not isinstance(message, REQUESTS):
        return message
    notes = unknown_in(type(message), body)
    if not notes:
        return message
    noted: M = (
        _noted_action(message, notes) if isinstance(message, ClientRequested) else _noted(message, notes)
    )
    return noted


def _noted_action(asked: Any, notes: tuple[str, ...]) -> Any:
    for name in ("boot", "delete", "move", "steer"):
        if (action := getattr(asked, name)) is not None:
            of_action = tuple([note.removeprefix(f"{name}.") for note in notes])
            asked = msgspec.structs.replace(asked, **{name: _noted(action, of_action)})
    return asked


def _noted(request: Any, notes: tuple[str, ...]) -> Any:
    if request.strict:
        raise Undecodable(notes[0])
    return msgspec.structs.replace(request, unknown_fields=notes)


def unknown_in(kind: Any, body: bytes | msgspec.Raw) -> tuple[str, ...]:
    """Return a note for each field of the JSON object `body` that the type `kind` does not have; at most
    MAX_NOTES.
    """
    notes: list[str] = []
    _look_in(kind, msgspec.json.decode(body), "", notes)
    return tuple(notes[:MAX_NOTES])


def _look_in(kind: Any, fields: Any, where: str, notes: list[str]) -> None:
    """Add a note for each unknown field of a JSON object, or of each of a list of JSON objects."""
    if isinstance(fields, list):
        for position, item in enumerate(fields):
            _look_in(kind, item, f"{where.removesuffix('.')}[{position}].", notes)
    if not isinstance(fields, dict) or len(notes) >= MAX_NOTES:
        return
    known, with_objects = _fields_of(kind)
    if not fields.keys() <= known:
        for name in [name for name in fields if name not in known][:MAX_NOTES]:
            like = get_close_matches(name[:_LONGEST], known, n=1)
            meant = f"; did you mean {like[0]}?" if like else ""
            notes.append(f"{where}{name[:_LONGEST]}: not known here{meant}")
    for name, inner in with_objects.items():
        if value := fields.get(name):
            _look_in(inner, value, f"{where}{name}.", notes)


@cache
def _fields_of(kind: Any) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Return the names of the fields of a type, and the types of JSON objects in fields that hold objects."""
    hints = get_type_hints(kind)
    objects = {name: _object_in(hints[name]) for name in kind.__struct_fields__}
    return frozenset(objects), {name: inner for name, inner in objects.items() if inner is not None}


def _object_in(annotation: Any) -> type[Any] | None:
    """Return the only type of JSON objects that a field or its list may hold; None if there is no such type,
    or several."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        config = annotation.__struct_config__
        return None if config.array_like or config.tag is not None else annotation
    origin = get_origin(annotation)
    if origin not in (Union, UnionType, tuple, Annotated):
        return None
    found = {_object_in(inner) for inner in get_args(annotation)} - {None}
    return found.pop() if len(found) == 1 else None
