"""Log lines: one per event, with ids, without passwords."""

import json
import logging
from typing import Any

import msgspec
import pytest

from berth.logs import JsonLines, TextLines, ids_of, secrets_of
from berth.settings import Settings
from bus.context import handling
from bus.masking import masked_text
from bus.messages import BuildDeleteRequested
from bus.protocol import Envelope
from tests.support.envelopes import an_envelope

TRACE = "0af7651916cd43dd8448eb211c80319c"
ENVELOPE = an_envelope(
    id="m1",
    type="BuildPlaced",
    body=msgspec.Raw(b'{"request":"r1","build":"b1"}'),
    correlation="m0",
    traceparent=f"00-{TRACE}-b7ad6b7169203331-01",
)
MANY = [f"b{number}" for number in range(99)]
SECRETS = ("geheim-lang", "geheim")


def a_record(text: str, *given: Any, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord("bus.x", logging.WARNING, __file__, 1, text, given, more.pop("exc_info", None))
    vars(record).update(more)
    return record


def a_line(record: logging.LogRecord) -> dict[str, Any]:
    said = JsonLines("scheduler", SECRETS).format(record)
    assert "\n" not in said
    line: dict[str, Any] = json.loads(said)
    return line


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"build":"b1"}', {"build": ["b1"]}),
        (b'{"request":"r1","build":"b1","move":"m1"}', {"request": ["r1"], "build": ["b1"], "move": ["m1"]}),
        (b'{"request":"r1","instances":["b1","b2"]}', {"request": ["r1"], "build": ["b1", "b2"]}),
        (b'{"consumer":"b1"}', {"build": ["b1"]}),
        (b'{"claims":[{"consumer":"b1"},{"consumer":"b2"},{"consumer":"b1"}]}', {"build": ["b1", "b2"]}),
        (json.dumps({"instances": MANY}).encode(), {"build": MANY[:20]}),
        (b'{"n":1}', {}),
        (b'{"build":7,"instances":"b1","claims":{"consumer":"b1"}}', {}),
        (b"[]", {}),
        (b"not JSON", {}),
        (b"\xff", {}),
    ],
)  # fmt: skip
def test_whom_a_message_is_about_is_read_off_it(body: bytes, ids: dict[str, list[str]]) -> None:
    assert ids_of([an_envelope(body=msgspec.Raw(body))]) == ids


def test_a_line_says_what_is_handled_as_it_is_written() -> None:
    with handling([(ENVELOPE, BuildDeleteRequested(build="b1", cell="c1"))]):
        line = a_line(a_record("it is %s", "so"))
    assert {name: line[name] for name in ("process", "level", "logger", "text", "request", "build")} == {
        "process": "scheduler", "level": "warning", "logger": "bus.x", "text": "it is so",
        "request": "r1", "build": "b1",
    }  # fmt: skip
    assert (line["message"], line["type"]) == ("m1", "BuildPlaced")
    assert (line["correlation"], line["trace"]) == ("m0", TRACE)


def test_of_several_together_it_names_all() -> None:
    other = an_envelope(body=msgspec.Raw(b'{"build":"b2"}'))
    delete = [BuildDeleteRequested(build="b", cell="c1") for _ in range(2)]
    with handling(zip((ENVELOPE, other), delete, strict=True)):
        line = a_line(a_record("both"))
        alone = a_line(a_record("one of them", envelopes=(other,)))
    assert line["build"] == ["b1", "b2"]
    assert "message" not in line
    assert alone["build"] == "b2"


def test_where_nothing_is_handled_there_are_no_ids() -> None:
    assert set(a_line(a_record("so"))) == {"time", "level", "process", "pid", "logger", "text"}
    assert TextLines().format(a_record("so")).endswith(" WARNING bus.x: so")


def test_a_line_of_text_ends_with_the_ids() -> None:
    said = TextLines().format(a_record("so", envelopes=(ENVELOPE,)))
    assert said.endswith("WARNING bus.x: so [request=r1 build=b1]")


def test_a_bug_is_one_line_too() -> None:
    try:
        raise ValueError("amqp://u:geheim@h/\nand more")
    except ValueError as problem:
        bug = (ValueError, problem, problem.__traceback__)
    line = a_line(a_record("of\ntwo lines", exc_info=bug))
    assert "ValueError" in line["traceback"]
    assert "geheim" not in json.dumps(line)


@pytest.mark.parametrize("lines", [TextLines("", SECRETS), JsonLines("", SECRETS)], ids=["text", "json"])
@pytest.mark.parametrize(
    "text",
    ["geheim", "amqp://u:geheim@h/", "'postgresql://h/b?password=geheim', amqp://a:geheim@b/", "geheim-lang"],
)  # fmt: skip
def test_no_line_has_a_password(lines: logging.Formatter, text: str) -> None:
    assert "geheim" not in (said := lines.format(a_record("it says %s", text)))
    assert "lang" not in said
    assert "it says" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lost amqp://u:geheim@h:5672/v: it ended", "lost amqp://u:****@h:5672/v: it ended"),
        ("(http://a:geheim@b/) and http://c/d", "(http://a:****@b/) and http://c/d"),
        ("no://secret here", "no://secret here"),
        ("at u:x@h there is none", "at u:x@h there is none"),
    ],
)
def test_urls_in_sentences_are_masked(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_the_secrets_of_the_settings_are_known() -> None:
    settings = Settings().having(
        amqp_url="amqp://u:p%40ss-eins@h/",
        cells=("c1",),
        cell_database_urls={"c1": "postgresql://u:pass-zwei@h/b"},
        database_url="postgresql://u:abc@h/b",
    )
    assert set(secrets_of(settings)) == {"p%40ss-eins", "p@ss-eins", "pass-zwei"}


def test_an_envelope_that_is_no_json_object_is_no_hindrance() -> None:
    envelope: Envelope = an_envelope(body=msgspec.Raw(b"null"), traceparent="", correlation="")
    line = a_line(a_record("so", envelopes=(envelope,)))
    assert line["correlation"] == line["message"]
    assert "trace" not in line
