"""Compares a repeated request with the first request of the same id.

A repetition of the same content is answered like the first request. A repetition of another content is
refused (`BuildConflict`), and does not change the first request.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, get_args, get_type_hints
from zlib import crc32

import msgspec

from bus.messages import BuildConflict, BuildRequested
from bus.parts import TYPES, Parts
from bus.vocabulary import Id, Message, cause_of

# Fields that a repetition may have with other values. Each instance is compared for itself, and a waiting
# request loses the instances that ended before.
DELIVERY = frozenset({"instances", "at_least", "reply_to", "strict", "unknown_fields"})
CONFLICT = "conflict"  # code of a refused repetition in a result of the REST API
NO_CELL = "-"  # in a conflict that a scheduler noticed
_SCHEME = 8  # characters at the start of a digest

Request = TypeVar("Request", bound=Message)


def differing(first: Request, second: Request, delivery: frozenset[str] = DELIVERY) -> tuple[str, ...]:
    """Return the names of the fields in which the contents of two requests differ; the fields `delivery` are
    no content.
    """
    names = [name for name in first.__struct_fields__ if name not in delivery]
    return tuple([name for name in names if getattr(first, name) != getattr(second, name)])


def refused_repetition(first: BuildRequested, second: BuildRequested) -> BuildConflict | None:
    """Return the refusal of the request `second` if the first request of its id has other content."""
    if not (fields := differing(first, second)):
        return None
    return conflict(first.request, first.instances, fields, second.reply_to)


def scheme_of(*more: str, kind: type[Message] = BuildRequested) -> str:
    """Return the start of digests of requests of this type. Digests with different starts cannot be compared:
    the releases or features that made them know other fields, or the texts `more` differ.
    """
    described = "\n".join([*sorted(set(_described(kind, set()))), *more])
    return f"{crc32(described.encode()):0{_SCHEME}x}"


def _described(annotation: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the names of the structures in a type of fields, each with the names of its fields."""
    inner: Iterable[Any] = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Parts):
        parts = TYPES.of(annotation)
        yield f"{annotation.__name__}: {' '.join(sorted(parts))}"
        inner = parts.values()
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        if annotation in seen:
            return
        seen.add(annotation)
        yield f"{annotation.__name__}: {' '.join(annotation.__struct_fields__)}"
        inner = get_type_hints(annotation).values()
    for each in inner:
        yield from _described(each, seen)


def is_other(first: str, second: str) -> bool:
    """Return whether two digests show that the contents of two requests differ."""
    if first == second or not first or not second:
        return False
    return first[:_SCHEME] == second[:_SCHEME]


def conflict(
    request: Id, instances: tuple[Id, ...], fields: tuple[str, ...], reply_to: str, *, cell: str = NO_CELL
) -> BuildConflict:
    """Return the refusal of a request whose id, or instances, belong to a request with other content."""
    return refusal(request, instances, in_words(fields), reply_to, cell=cell, fields=fields)


def in_words(fields: Sequence[str]) -> str:
    """Return a phrase that says which fields differ."""
    return f"{', '.join(fields)} {'differ' if len(fields) > 1 else 'differs'}"


def refusal(
    request: Id,
    instances: tuple[Id, ...],
    why: str,
    reply_to: str,
    *,
    cell: str = NO_CELL,
    fields: tuple[str, ...] = (),
) -> BuildConflict:
    """Return the messages that refuse a repeated request with other content, one for each instance."""
    return BuildConflict(
        request=request,
        instances=instances,
        cell=cell,
        reason=cause_of(f"the ids of {request} are in use by a request with other content: {why}"),
        fields=fields,
        reply_to=reply_to,
    )
