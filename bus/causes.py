"""Shortens the reasons in outgoing messages: fields of the type `Cause`, whose texts programs make of names
and numbers.

Receivers refuse a message with a longer text. The sender of an answer has stored its result by then.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct, inspect, structs

from bus.parts import Parts
from bus.vocabulary import MAX_CAUSE, cause_of

S = TypeVar("S", bound=Struct)
Shorten = Callable[[Any], Any]  # returns its argument if no text in it is too long


def with_short_causes(message: S) -> S:
    """Return a message whose causes have at most MAX_CAUSE characters; the same object if all have."""
    changes = {}
    for name, shorten in _fields_with_causes(type(message)):
        value = getattr(message, name)
        if value and (short := shorten(value)) is not value:
            changes[name] = short
    return structs.replace(message, **changes) if changes else message


def may_have_long_cause(encoded: bytes) -> bool:
    """Return whether an encoded message is so long that a cause in it may exceed its bound."""
    return len(encoded) > MAX_CAUSE


@cache
def _fields_with_causes(kind: type[Struct]) -> tuple[tuple[str, Shorten], ...]:
    type_ = inspect.type_info(kind)
    assert isinstance(type_, inspect.StructType)
    found = [(field.name, _shortener(field.type)) for field in type_.fields]
    return tuple([(name, shorten) for name, shorten in found if shorten is not None])


def _shortener(type_: inspect.Type) -> Shorten | None:
    """Return the function that shortens the causes in a value of this type; None: the type has none."""
    match type_:
        case inspect.Metadata(extra=extra) if extra and extra.get("made"):
            return cause_of
        case inspect.Metadata(type=inner):
            return _shortener(inner)
        case inspect.StructType(cls=kind):
            return with_short_causes if _fields_with_causes(kind) else None
        case inspect.CustomType(cls=kind) if issubclass(kind, Parts):
            return _in_parts
        case inspect.VarTupleType(item_type=item):
            return None if (shorten := _shortener(item)) is None else _InTuple(shorten)
        case inspect.DictType(value_type=value):
            return None if (shorten := _shortener(value)) is None else _InMapping(shorten)
        case inspect.UnionType(types=types):
            return _in_union if any(_shortener(each) is not None for each in types) else None
    return None


def _in_union(value: Any) -> Any:
    """Shorten a struct, or a text, as the only union with a text is `Cause | None`."""
    return with_short_causes(value) if isinstance(value, Struct) else cause_of(value)


def _in_parts(parts: Parts[Any]) -> Parts[Any]:
    return parts.having(*[short for part in parts if (short := with_short_causes(part)) is not part])


class _InTuple:
    def __init__(self, shorten: Shorten) -> None:
        self._shorten = shorten

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        shorten = self._shorten
        for value in values:
            if shorten(value) is not value:
                return tuple([shorten(each) for each in values])
        return values


class _InMapping:
    def __init__(self, shorten: Shorten) -> None:
        self._shorten = shorten

    def __call__(self, values: Mapping[Any, Any]) -> Mapping[Any, Any]:
        shorten = self._shorten
        for value in values.values():
            if shorten(value) is not value:
                return {key: shorten(each) for key, each in values.items()}
        return values
