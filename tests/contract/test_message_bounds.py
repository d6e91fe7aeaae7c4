"""Every field of every message has a bound: its largest value is accepted, one more is refused by name."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from bus.topics import QUERIES, TOPICS
from bus.vocabulary import LONG, MAX_ORDINAL, Message

KINDS: set[type[Message]] = {t.message for t in TOPICS} | {k for q in QUERIES for k in (q.asks, q.answer)}
LARGEST_NUMBER = 3.5e38


def structs() -> dict[str, inspect.StructType]:
    """Return every struct that some message holds, by name."""
    found: dict[str, inspect.StructType] = {}

    def visit(type_: Any) -> None:
        if isinstance(type_, inspect.StructType):
            if type_.cls.__name__ in found:
                return
            found[type_.cls.__name__] = type_
            for field in type_.fields:
                visit(field.type)
        for name in ("type", "item_type", "key_type", "value_type"):
            if (inner := getattr(type_, name, None)) is not None:
                visit(inner)
        for name in ("types", "item_types"):
            for inner in getattr(type_, name, ()):
                visit(inner)

    for kind in KINDS:
        visit(inspect.type_info(kind))
    return found


STRUCTS = structs()


def sample(type_: Any, number: int = 0) -> Any:
    match type_:
        case inspect.StructType():
            return filled(type_, {})
        case inspect.Metadata(type=inner):
            return sample(inner, number)
        case inspect.UnionType(types=types):
            return sample(types[0], number)
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.StrType(pattern=None, min_length=least):
            return str(number).ljust(least or 0, "x")
        case inspect.StrType(pattern=pattern):
            texts = (f"{number:08x}-0000-0000-0000-000000000000", f"A{number}", "1s", "")
            return next(text for text in texts if re.search(pattern or "", text))
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            return max(least or 0, 0)
        case inspect.VarTupleType(item_type=item, min_length=least):
            return [sample(item)] * (least or 0)
        case inspect.TupleType(item_types=items):
            return [sample(type_) for type_ in items]
        case inspect.DictType():
            return {}
        case inspect.BoolType():
            return False
    assert isinstance(type_, inspect.NoneType), type_
    return None


def filled(struct: inspect.StructType, values: dict[str, Any]) -> Any:
    last = max((at for at, field in enumerate(struct.fields) if field.name in values), default=-1)
    chosen = [
        field
        for at, field in enumerate(struct.fields)
        if field.required or (struct.array_like and at <= last)
    ]
    whole = {field.name: sample(field.type) for field in chosen} | values
    if struct.array_like:
        return list(whole.values())
    return whole | ({struct.tag_field: struct.tag} if struct.tag_field else {})


def limits(type_: Any) -> Iterator[tuple[Any, Any]]:
    match type_:
        case inspect.StrType(pattern=pattern, max_length=None):
            assert pattern is not None, "a text without a bound"
            yield sample(type_), (sample(type_) or "A") * 256
        case inspect.StrType(max_length=most):
            assert most is not None and most <= 4000, "a text without a bound"
            yield "x" * most, "x" * (most + 1)
        case inspect.IntType(ge=least, le=most):
            assert least is not None, "a number without a least value"
            assert most is not None and most <= MAX_ORDINAL, "a number without a bound"
            yield from ((most, most + 1), (least, least - 1))
        case inspect.FloatType(ge=least, le=most):
            assert least is not None, "a number without a least value"
            assert most is not None and most <= LARGEST_NUMBER, "a number without a bound"
            yield from ((most, most * 1.01), (least, least * 1.01 - 1))
        case inspect.VarTupleType(item_type=item, max_length=most):
            assert most is not None and most <= LONG, "a list without a bound"
            value = sample(item)
            yield [value] * most, [value] * (most + 1)
            yield from (([good], [bad]) for good, bad in limits(item))
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            assert most is not None and most <= LONG, "a mapping without a bound"
            content = {sample(key, number): sample(value) for number in range(most + 1)}
            yield dict(list(content.items())[:most]), content
            yield from (({good: sample(value)}, {bad: sample(value)}) for good, bad in limits(key))
            yield from (({sample(key): good}, {sample(key): bad}) for good, bad in limits(value))
        case inspect.TupleType(item_types=items):
            for at, item in enumerate(items):
                rest = [sample(type_) for type_ in items]
                for good, bad in limits(item):
                    yield [*rest[:at], good, *rest[at + 1 :]], [*rest[:at], bad, *rest[at + 1 :]]
        case inspect.UnionType(types=types):
            for type_ in types:
                yield from limits(type_)
        case inspect.Metadata(type=inner):
            yield from limits(inner)
        case _:
            known = (inspect.StructType, inspect.LiteralType, inspect.BoolType, inspect.NoneType)
            assert isinstance(type_, known), f"{type_} has no bound"


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_each_field_accepts_its_largest_value_and_refuses_more(name: str) -> None:
    struct = STRUCTS[name]
    decoder = msgspec.json.Decoder(struct.cls)
    for at, field in enumerate(struct.fields):
        where = f"$[{at}]" if struct.array_like else f".{field.encode_name}"
        try:
            for good, bad in limits(field.type):
                decoder.decode(msgspec.json.encode(filled(struct, {field.name: good})))
                with pytest.raises(msgspec.ValidationError) as refused:
                    decoder.decode(msgspec.json.encode(filled(struct, {field.name: bad})))
                assert where in str(refused.value)
        except AssertionError as problem:
            raise AssertionError(f"{name}.{field.name}: {problem}") from problem
