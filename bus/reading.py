"""Reads a message, and what decoding a request skips: the fields of features that a client may write
like fields of the kernel, and fields that berth does not know, such as misspelled ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from bus.errors import Undecodable
from bus.invalid_requests import KINDS, T, in_words
from bus.parts import TYPES, RequestParts, converted, problem_of
from bus.protocol import MAX_MESSAGE_BYTES, Envelope, M, decode, message_in
from bus.vocabulary import Message

Place = tuple[type[RequestParts], str]  # type of the parts of a request, and its field that has an object
MAX_NOTES = 20
_LONGEST = 100  # characters of an unknown name in a note


def read(kind: type[T], body: bytes | msgspec.Raw, named: str = "", *, most: int = MAX_MESSAGE_BYTES) -> T:
    """Decode bytes that a program or user has written to a value of the type `kind`. A request gets notes
    about the fields that its type does not have. Raise Undecodable, with the wrong field first, also for such
    a note if the request is `strict`. `named` and `most` as in `bus.protocol.decode`.
    """
    try:
        message = decode(kind, body, named, most=most)
        return _as_written(message, msgspec.json.decode(body)) if _is_request(kind) else message
    except Undecodable as problem:
        raise Undecodable(in_words(problem, kind)) from None


def read_envelope(kind: type[M], envelope: Envelope) -> M:
    """Return an envelope's message, read like `read` unless it comes from this process."""
    if envelope.message is not None:
        return message_in(envelope, kind)
    return read(kind, envelope.body, envelope.type)


def read_object(kind: type[M], given: Any, within: str) -> M:
    """Return a message that is given as a JSON value in the field `within` of another one, or as a message;
    raise Undecodable like `read`.
    """
    if isinstance(given, kind):
        return given
    try:
        return _as_written(converted(kind, given), given, f".{within}")
    except msgspec.ValidationError as problem:
        raise Undecodable(in_words(problem_of(problem, within), kind)) from None
    except Undecodable as problem:
        raise Undecodable(in_words(problem, kind)) from None


@cache
def _is_request(kind: type[Message]) -> bool:
    return kind in KINDS or _owner(kind) is not None or bool(_with_requests(kind))


def _as_written(message: T, fields: Any, where: str = "") -> T:
    """Return a message with the parts whose fields are written like fields of the kernel in its JSON object
    `fields`, such as `wait`, and with notes about unknown fields. Raise Undecodable if a part is invalid, or
    if a request is `strict` and has unknown fields.
    """
    kind = type(message)
    if not isinstance(fields, dict):
        return message
    changes: dict[str, Any] = {}
    if (owner := _owner(kind)) is not None:
        try:
            found = TYPES.read_flat(owner, fields, message.parts)  # type: ignore[attr-defined]
        except ValueError as problem:
            text, _, path = str(problem).partition("`$")
            raise Undecodable(f"{text}`${where}{path}") from None
        if found:
            changes["parts"] = message.parts.having(*found)  # type: ignore[attr-defined]
    for name in _with_requests(kind):
        value, inner = getattr(message, name), fields.get(name)
        if isinstance(value, Message):
            read_ = _as_written(value, inner, f"{where}.{name}")
            if read_ is not value:
                changes[name] = read_
        elif isinstance(value, tuple) and isinstance(inner, list):
            changes[name] = tuple(
                [
                    _as_written(each, raw, f"{where}.{name}[{at}]")
                    for at, (each, raw) in enumerate(zip(value, inner, strict=True))
                ]
            )
    written = structs.replace(message, **changes) if changes else message
    notes: list[str] = []
    if kind in KINDS:
        _look_in(kind, None, fields, "", notes)
    return with_notes(written, notes, where) if notes else written


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


def with_notes(request: Any, notes: Sequence[str], where: str = "") -> Any:
    """Return a request with notes about its unknown fields; raise Undecodable if it is `strict`. `where`: the
    path of the request in a message.
    """
    if getattr(request, "strict", False):
        raise Undecodable(f"{where}.{notes[0]}".removeprefix("."))
    return structs.replace(request, unknown_fields=tuple(notes[:MAX_NOTES]))


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
    if owner is not None and isinstance(given := fields.get("parts"), dict):
        for feature, part in TYPES.of(owner).items():
            _look_in(part, None, given.get(feature), f"{where}parts.{feature}.", notes)
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
