"""Golden bytes: every message that an earlier version wrote can be read.

Never edit a line of `golden.txt`, only add lines: a change that makes one of these tests fail would lose
messages that wait in queues during an upgrade.
"""

from pathlib import Path

import msgspec
import pytest

from bus.codec import decode, decode_frame, encode
from bus.errors import Undecodable
from bus.topics import QUERIES, TOPICS
from bus.vocabulary import Message

KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (*(t.message for t in TOPICS), *(k for q in QUERIES for k in (q.asks, q.answer)))
}
# Message or Message.Variant → the JSON that was on the wire
GOLDEN = {
    line.partition(" ")[0]: line.partition(" ")[2].encode()
    for line in (Path(__file__).parent / "golden.txt").read_text().splitlines()
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


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_decode_without_loss_and_unknown_fields_are_ignored(name: str) -> None:
    kind = KINDS[name.partition(".")[0]]
    message = decode(kind, GOLDEN[name], kind.__name__)
    golden = msgspec.json.decode(GOLDEN[name])
    assert holds(msgspec.json.decode(encode(message)), golden)
    assert decode(kind, msgspec.json.encode({**golden, "a_field_of_the_future": {"x": 1}})) == message


REQUEST = msgspec.json.decode(GOLDEN["BuildRequested"])
BAD_REQUESTS = {
    "no flavor": ({k: v for k, v in REQUEST.items() if k != "flavor"}, "`flavor`"),
    "a name for a uuid": ({**REQUEST, "request": "mine"}, "$.request"),
    "no instances": ({**REQUEST, "instances": []}, "$.instances"),
    "negative memory": ({**REQUEST, "flavor": {"name": "f", "memory_mb": -1}}, "$.flavor.memory_mb"),
    "too many alternates": ({**REQUEST, "alternates": 99}, "$.alternates"),
    "a reply_to that is no word": ({**REQUEST, "reply_to": "a.b#"}, "$.reply_to"),
    "a newline after a uuid": ({**REQUEST, "request": REQUEST["request"] + "\n"}, "$.request"),
    "a newline after a word": ({**REQUEST, "reply_to": "me\n"}, "$.reply_to"),
    "a character PostgreSQL does not store": ({**REQUEST, "project": "a\0b"}, "U+0000"),
    "the same behind a backslash": ({**REQUEST, "zone": "\\\0"}, "U+0000"),
    "a zone as long as a book": ({**REQUEST, "zone": "z" * 256}, "$.zone"),
    "a list for the whole": ([REQUEST], "got `array`"),
}


@pytest.mark.parametrize("wrong, names", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_an_invalid_message_is_refused_with_the_field(wrong: object, names: str) -> None:
    with pytest.raises(Undecodable) as refused:
        decode(KINDS["BuildRequested"], msgspec.json.encode(wrong))
    assert names in str(refused.value)


def test_deeply_nested_json_is_refused() -> None:
    deep = b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(Undecodable):
        decode(KINDS["BuildRequested"], deep)


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
