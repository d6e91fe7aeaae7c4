"""Golden bytes: every message that an earlier version wrote can be read.

Never edit a line of `golden.txt`, only add lines: a change that makes one of these tests fail would lose
messages that wait in queues during an upgrade.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from bus.clock import Clock
from bus.context import follow
from bus.errors import Undecodable
from bus.parts import OWNERS, TYPES, Parts
from bus.parts import decoder as decoder_of
from bus.protocol import decode, decode_frame, encode
from bus.topics import QUERIES, TOPICS
from bus.vocabulary import LONG, MADE, MAX_ORDINAL, LargeMap, LongList, Message
from tests.support.golden_messages import GOLDEN

KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (*(t.message for t in TOPICS), *(k for q in QUERIES for k in (q.asks, q.answer)))
}


def holds(now: object, then: object) -> bool:
    match now, then:
        case dict(), dict():
            return all(key in now and holds(now[key], value) for key, value in then.items())
        case list(), list():
            return len(now) >= len(then) and all(map(holds, now, then))
        case _:
            return now == then


def test_every_message_has_golden_bytes() -> None:
    assert {name.partition(".")[0] for name in GOLDEN} == KINDS.keys()


def test_golden_bytes_decode_without_loss_and_unknown_fields_are_ignored() -> None:
    for name, sent in GOLDEN.items():
        kind = KINDS[name.partition(".")[0]]
        message = decode(kind, sent, kind.__name__)
        golden = msgspec.json.decode(sent)
        assert holds(msgspec.json.decode(encode(message)), golden), name
        later = msgspec.json.encode({**golden, "a_field_of_the_future": {"x": 1}})
        assert decode(kind, later) == message, name


REQUEST = msgspec.json.decode(GOLDEN["BuildRequested"])
BAD_REQUESTS = {
    "no flavor": ({k: v for k, v in REQUEST.items() if k != "flavor"}, "`flavor`"),
    "a name for a uuid": ({**REQUEST, "request": "mine"}, "$.request"),
    "a reply_to that is no word": ({**REQUEST, "reply_to": "a.b#"}, "$.reply_to"),
    "a newline after a uuid": ({**REQUEST, "request": REQUEST["request"] + "\n"}, "$.request"),
    "a newline after a word": ({**REQUEST, "reply_to": "me\n"}, "$.reply_to"),
    "a character PostgreSQL does not store": ({**REQUEST, "project": "a\0b"}, "U+0000"),
    "the same behind a backslash": ({**REQUEST, "zone": "\\\0"}, "U+0000"),
    "a list for the whole": ([REQUEST], "got `array`"),
}


@pytest.mark.parametrize("wrong, names", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_an_invalid_message_is_refused_with_the_field(wrong: object, names: str) -> None:
    with pytest.raises(Undecodable) as refused:
        decode(KINDS["BuildRequested"], msgspec.json.encode(wrong))
    assert names in str(refused.value)


def test_an_escaped_backslash_before_u0000_is_text() -> None:
    message = decode(KINDS["BuildRequested"], msgspec.json.encode({**REQUEST, "zone": "\\u0000"}))
    assert encode(message).count(b"u0000") == 1


@pytest.mark.parametrize(
    "wrong", [{"correlation": "x" * 256}, {"traceparent": "x" * 256}, {"faults": "nine"}]
)
def test_the_envelope_of_a_message_in_a_frame_has_bounds(wrong: dict[str, object]) -> None:
    good = {"id": "1", "type": "", "key": "k", "body": {}}
    assert len(decode_frame(msgspec.json.encode([good]))) == 1
    with pytest.raises(Undecodable, match=next(iter(wrong))):
        decode_frame(msgspec.json.encode([good | wrong]))


BOUNDED_KINDS: set[type[Message]] = {t.message for t in TOPICS} | {
    k for q in QUERIES for k in (q.asks, q.answer)
}
LARGEST_NUMBER = 3.5e38
FILLED = 1000  # entries; longer lists and mappings of 250 fields would take a minute


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

    for kind in (*BOUNDED_KINDS, *(part for owner in OWNERS for part in TYPES.of(owner).values())):
        visit(inspect.type_info(kind))
    return found


STRUCTS = structs()


def sample(type_: Any, number: int = 0) -> Any:
    match type_:
        case inspect.StructType():
            return filled(type_, {})
        case inspect.AnyType():
            return {}
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
        case inspect.RawType():  # any JSON, which its receiver decodes as a message
            return {}
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
        case inspect.AnyType():  # decoded a second time, by the type of the action or query
            return
        case inspect.StrType(pattern=pattern, max_length=None):
            assert pattern is not None, "a text without a bound"
            yield sample(type_), (sample(type_) or "A") * 256
        case inspect.StrType(max_length=most):
            assert most is not None and most <= 1_000_000, "a text without a bound"
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
            if most <= FILLED:
                value = sample(item)
                yield [value] * most, [value] * (most + 1)
            yield from (([good], [bad]) for good, bad in limits(item))
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            assert most is not None and most <= LONG, "a mapping without a bound"
            if most <= FILLED:
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
            # a custom type has the parts of features, each of which is visited
            assert isinstance(type_, (*known, inspect.RawType, inspect.CustomType)), f"{type_} has no bound"


def test_each_field_accepts_its_largest_value_and_refuses_more() -> None:
    for name, struct in STRUCTS.items():
        decoder = decoder_of(struct.cls)
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


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (LongList[int], [0] * LONG, [0] * (LONG + 1)),
        (LargeMap[str, int], {str(n): n for n in range(LONG)}, {str(n): n for n in range(LONG + 1)}),
    ],
    ids=["list", "mapping"],
)
def test_the_longest_list_and_mapping_are_accepted_and_one_entry_more_is_refused(
    kind: Any, good: object, bad: object
) -> None:
    msgspec.json.decode(msgspec.json.encode(good), type=kind)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(bad), type=kind)


def with_long_causes(type_: Any) -> Any:
    """Return a value of this type with reasons of 10,000 characters; None: the type has no reasons."""
    match type_:
        case inspect.Metadata(extra=extra) if extra == MADE:
            return "x" * 10_000
        case inspect.Metadata(type=inner):
            return with_long_causes(inner)
        case inspect.StructType(cls=kind):
            values = {field.name: with_long_causes(field.type) for field in type_.fields}
            values = {name: value for name, value in values.items() if value is not None}
            if not values:
                return None
            whole = msgspec.json.encode(filled(type_, {}))
            return msgspec.structs.replace(decoder_of(kind).decode(whole), **values)
        case inspect.CustomType(cls=kind) if issubclass(kind, Parts):
            parts = [with_long_causes(inspect.type_info(part)) for part in TYPES.of(kind).values()]
            return kind(*parts) if any(parts) else None
        case inspect.VarTupleType(item_type=item):
            return None if (value := with_long_causes(item)) is None else (value, value)
        case inspect.DictType(key_type=key, value_type=item):
            return None if (value := with_long_causes(item)) is None else {sample(key): value}
        case inspect.UnionType(types=types):
            return next((value for each in types if (value := with_long_causes(each)) is not None), None)
    return None


LONG_CAUSES = {
    kind: message
    for kind in BOUNDED_KINDS
    if (message := with_long_causes(inspect.type_info(kind))) is not None
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in sorted(KINDS.items()) if kind in LONG_CAUSES]
)
def test_a_reason_of_any_length_reaches_the_receiver(kind: type[Message]) -> None:
    envelope = follow(LONG_CAUSES[kind], "key", Clock())
    received = decode(kind, envelope.body)
    assert envelope.message == received and b"xxx ..." in encode(received)


# Reasons that people write, with the limit of a name.
WRITTEN = {"MaintenanceWindow.reason"}
MADE_OF_OTHERS = re.compile(
    "reason|why.*|notes?|causes?|lack.*|refused|refusals?|problems?|detail|result|constraint|warnings?|error"
)


def test_reasons_are_texts_that_programs_make() -> None:
    def is_text(type_: Any) -> bool:
        inner = getattr(type_, "item_type", type_)
        return isinstance(inner, inspect.StrType) and inner.max_length is not None

    names = {
        f"{name}.{field.name}"
        for name, struct in STRUCTS.items()
        for field in struct.fields
        if MADE_OF_OTHERS.fullmatch(field.name) and is_text(field.type)
    }
    assert names <= WRITTEN
