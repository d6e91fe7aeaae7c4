"""Finds the objects that a message names, such as instances, groups, projects and hosts: in flat fields,
hints, parts of features and nested requests.

The type of a field declares what the field names (`bus.vocabulary.names`). For each type of message, the
fields that name objects are found once.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from bus.parts import TYPES, Part, Parts
from bus.vocabulary import Message, ObjectKind, naming


class NamedObject(NamedTuple):
    """An object that a message names, and the path of the field, such as `hints.same_host[0]`."""

    kind: ObjectKind
    id: str
    path: str
    is_new: bool  # the message gives the id to a new object


# adds the named objects to a list, from the value of a field and its path
Reader = Callable[[Any, str, list[NamedObject]], None]


def named_objects(message: Message) -> list[NamedObject]:
    """Return the objects that a message names. Empty texts and defaults name nothing."""
    found: list[NamedObject] = []
    _read_object(message, "", found)
    return found


def _read_object(value: msgspec.Struct, path: str, found: list[NamedObject]) -> None:
    for name, written, default, read in _fields(type(value)):
        inner = getattr(value, name)
        if inner and inner is not default:
            read(inner, f"{path}.{written}" if path and written is name else written, found)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, str, Any, Reader], ...]:
    """Return the fields of a type that may name objects: name, path as clients write it, default, reader."""
    flat = kind.flat if issubclass(kind, Part) else {}
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in structs.fields(kind):
        if (reader := _reader(hints[field.name])) is not None:
            written = field.name
            if object_ := flat.get(field.name):
                written = f"{object_}.{field.name}"
            found.append((field.name, written, field.default, reader))
    return tuple(found)


def _reader(annotation: Any, metas: tuple[Any, ...] = ()) -> Reader | None:
    """Return the reader of a field with this annotation; None if the field never names an object."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _reader(inner[0], (*metas, *inner[1:]))
    if annotation is str:
        declared = naming(metas)
        return None if declared is None or declared[0] is None else _text_reader(declared[0], declared[1])
    if isinstance(annotation, type) and issubclass(annotation, Parts):
        return _read_parts
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _read_object if _fields(annotation) else None
    readers = {each: reader for each in inner if (reader := _reader(each)) is not None}
    if not readers:
        return None
    if origin is tuple:
        return _items_reader(readers[inner[0]])
    if origin is dict:
        return _mapping_reader(readers.get(inner[0]), readers.get(inner[1]))
    assert origin in (Union, UnionType), annotation
    return _union_reader([reader for reader in readers.values() if reader is not _read_object])


def _text_reader(kind: ObjectKind, is_new: bool) -> Reader:
    def read(value: str, path: str, found: list[NamedObject]) -> None:
        found.append(NamedObject(kind, value, path, is_new))

    return read


def _items_reader(read_item: Reader) -> Reader:
    def read(values: tuple[Any, ...], path: str, found: list[NamedObject]) -> None:
        for position, value in enumerate(values):
            read_item(value, f"{path}[{position}]", found)

    return read


def _mapping_reader(read_key: Reader | None, read_value: Reader | None) -> Reader:
    def read(values: dict[str, Any], path: str, found: list[NamedObject]) -> None:
        for key, value in values.items():
            if read_key is not None:
                read_key(key, path, found)
            if read_value is not None:
                read_value(value, f"{path}.{key}", found)

    return read


def _union_reader(of_others: Sequence[Reader]) -> Reader:
    """Return the reader of a field that holds an object, or a value for which `of_others` has the reader."""

    def read(value: Any, path: str, found: list[NamedObject]) -> None:
        if isinstance(value, msgspec.Struct):
            _read_object(value, path, found)
        else:
            for read_other in of_others:
                read_other(value, path, found)

    return read


def _read_parts(parts: Parts[Any], path: str, found: list[NamedObject]) -> None:
    for feature, part in TYPES.written(parts).items():
        _read_object(part, f"{path}.{feature}", found)
