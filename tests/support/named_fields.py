"""Lists all texts in the fields of a message type, with what each is declared to name."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from bus.parts import TYPES, Parts
from bus.vocabulary import ObjectKind, naming


class TextField(NamedTuple):
    path: str
    kind: ObjectKind | None  # None: the text names no object
    is_new: bool
    is_declared: bool


def text_fields(annotation: Any, path: str = "", metas: tuple[Any, ...] = ()) -> Iterator[TextField]:
    """Yield the texts in a type of messages or fields, also those in parts of all features."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from text_fields(inner[0], path, (*metas, *inner[1:]))
    elif annotation is str:
        declared = naming(metas)
        kind, is_new = declared or (None, False)
        yield TextField(path.removeprefix("."), kind, is_new, declared is not None)
    elif isinstance(annotation, type) and issubclass(annotation, Parts):
        for feature, part in TYPES.of(annotation).items():
            yield from text_fields(part, f"{path}.{feature}")
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        for name, each in get_type_hints(annotation, include_extras=True).items():
            if name in annotation.__struct_fields__:
                yield from text_fields(each, f"{path}.{name}")
    elif origin is tuple:
        yield from text_fields(inner[0], f"{path}[]")
    elif origin is dict:
        yield from text_fields(inner[0], f"{path}{{key}}")
        yield from text_fields(inner[1], f"{path}{{}}")
    elif origin in (Union, UnionType):
        for each in inner:
            yield from text_fields(each, path)
