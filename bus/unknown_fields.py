"""Reads what decoding a request skips: the fields of features that a client may write like fields of the
kernel, and fields that berth does not know, such as misspelled ones.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from bus.clients import ClientRequested
from bus.errors import Undecodable
from bus.invalid_requests import ACTIONS, KINDS
from bus.parts import TYPES, RequestParts, converted, problem_of
from bus.protocol import M, decode
from bus.vocabulary import Message

Place = tuple[type[RequestParts], str]  # type of the parts of a request, and its field that has an object
MAX_NOTES = 20
_LONGEST = 100  # characters of an unknown name in a note


def read(kind: type[M], body: bytes | msgspec.Raw) -> M:
    """Decode bytes that a client has written to a message of the type `kind`, or raise Undecodable."""
    message = decode(kind, body)
    fields = fields_of(kind, body)
    return message if fields is None else with_flat_parts(message, fields)


def fields_of(kind: type[Message], body: bytes | msgspec.Raw) -> Any:
    """Return the JSON object of a request, or of a message that contains requests; None for other types."""
    return msgspec.json.decode(body) if _is_request(kind) else None


@cache
def _is_request(kind: type[Message]) -> bool:
    return kind is ClientRequested or kind in KINDS or _owner(kind) is not None or bool(_with_requests(kind))


# Fields of parts


def with_flat_parts(message: M, fields: Any, where: str = "") -> M:
    """Return a message with the parts whose fields are written like fields of the kernel in its JSON object
    `fields`, such as `wait`. Raise Undecodable if one is invalid.
    """
    kind = type(message)
    if not isinstance(fields, dict):
        return message
    if isinstance(message, ClientRequested):
        return structs.replace(message, message=_action(message))
    changes: dict[str, Any] = {}
    if (owner := _owner(kind)) is not None:
        try:
            found = TYPES.read_flat(owner, fields)
        except ValueError as problem:
            text, _, path = str(problem).partition("`$")
            raise Undecodable(f"{kind.__name__}: {text}`${where}{path}") from None
        if found:
            changes["parts"] = message.parts.having(*found)  # type: ignore[attr-defined]
    for name in _with_requests(kind):
        value, inner = getattr(message, name), fields.get(name)
        if isinstance(value, Message):
            read_ = with_flat_parts(value, inner, f"{where}.{name}")
            if read_ is not value:
                changes[name] = read_
        elif isinstance(value, tuple) and isinstance(inner, list):
            changes[name] = tuple(
                [
                    with_flat_parts(each, raw, f"{where}.{name}[{at}]")
                    for at, (each, raw) in enumerate(zip(value, inner, strict=True))
                ]
            )
    return structs.replace(message, **changes) if changes else message


def _action(asked: ClientRequested) -> Message:
    """Return the message of a client's request; raise Undecodable if it or the action is invalid."""
    if asked.do not in ACTIONS:
        raise Undecodable(f"ClientRequested: no action {asked.do}, only {', '.join(ACTIONS)} - at `$.do`")
    try:
        message: Message = converted(ACTIONS[asked.do].topic.message, asked.message)
    except msgspec.ValidationError as problem:
        raise Undecodable(f"ClientRequested: {problem_of(problem, 'message')}") from None
    return with_flat_parts(message, asked.message, ".message")


@cache
def _owner(kind: type[Any]) -> type[RequestParts] | None:
    """Return the type of the parts of a request; None for other messages."""
    parts = get_type_hints(kind).get("parts") if issubclass(kind, Message) else None
    return parts if isinstance(parts, type) and issubclass(parts, RequestParts) else None


@cache
def _with_requests(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a message that may hold requests with parts."""
    return tuple(
        name
        for name, annotation in get_type_hints(kind).items()
        if any(_owner(inner) is not None or _with_requests(inner) for inner in _messages_in(annotation))
    )


def _messages_in(annotation: Any) -> Iterator[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        yield annotation
    for inner in get_args(annotation):
        yield from _messages_in(inner)


# Unknown fields


def with_unknown(message: M, fields: Any) -> M:
    """Return a request with a note for each field in the JSON object `fields` that its type does not have;
    messages that are no requests are returned as they are. Raise Undecodable if the request is `strict` and
    has such fields.
    """
    request = message.message if isinstance(message, ClientRequested) else message
    if type(request) not in KINDS:
        return message
    found: list[str] = []
    _look_in(type(message), None, fields, "", found)
    if request is not message:
        _look_in(type(request), None, fields["message"], "", found)
    if not found:
        return message
    noted = _noted(request, tuple(found[:MAX_NOTES]))
    return noted if request is message else structs.replace(message, message=noted)


def _noted(request: Any, notes: tuple[str, ...]) -> Any:
    if request.strict:
        raise Undecodable(notes[0])
    return structs.replace(request, unknown_fields=notes)


def _look_in(kind: Any, of: Place | None, fields: Any, where: str, notes: list[str]) -> None:
    """Add a note for each unknown field of a JSON object, or of each of a list of JSON objects. `of`: the
    place of the object in a request, where features may have fields.
    """
    if isinstance(fields, list):
        for position, item in enumerate(fields):
            _look_in(kind, of, item, f"{where.removesuffix('.')}[{position}].", notes)
    if not isinstance(fields, dict) or len(notes) >= MAX_NOTES:
        return
    owner = _owner(kind)
    known, with_objects = _fields_of(kind, of)
    if not fields.keys() <= known:
        for name in [name for name in fields if name not in known][:MAX_NOTES]:
            like = get_close_matches(name[:_LONGEST], known, n=1)
            meant = f"; did you mean {like[0]}?" if like else ""
            notes.append(f"{where}{name[:_LONGEST]}: not known here{meant}")
    for name, inner in with_objects.items():
        if value := fields.get(name):
            _look_in(inner, (owner, name) if owner is not None else None, value, f"{where}{name}.", notes)


@cache
def _fields_of(kind: Any, of: Place | None) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Return the names of the fields of a type, and the types of JSON objects in fields that hold objects."""
    hints = get_type_hints(kind)
    objects = {name: _object_in(hints[name]) for name in kind.__struct_fields__}
    names = frozenset(objects)
    if of is None and (owner := _owner(kind)) is not None:
        of = owner, ""
    if of is not None:
        flat = TYPES.flat_parts(*of)
        names |= flat.keys()
        objects |= {name: _object_in(annotation) for name, annotation in flat.items()}
    return names, {name: inner for name, inner in objects.items() if inner is not None}


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
