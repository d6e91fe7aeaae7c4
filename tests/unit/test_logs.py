"""Log lines: one per event, with ids; passwords are masked."""

import json
import logging
from typing import Any

import msgspec
import pytest

from berth.logs import JsonLines, TextLines, ids_of, secrets_of
from berth.settings import Settings
from bus.context import handling
from bus.masking import masked, masked_text
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
def test_ids_of_a_message_are_logged(body: bytes, ids: dict[str, list[str]]) -> None:
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


def test_a_batch_logs_the_ids_of_all_its_messages() -> None:
    other = an_envelope(body=msgspec.Raw(b'{"build":"b2"}'))
    delete = [BuildDeleteRequested(build="b", cell="c1") for _ in range(2)]
    with handling(zip((ENVELOPE, other), delete, strict=True)):
        line = a_line(a_record("both"))
        alone = a_line(a_record("one of them", envelopes=(other,)))
    assert line["build"] == ["b1", "b2"]
    assert "message" not in line
    assert alone["build"] == "b2"


def test_log_lines_outside_a_handler_have_no_ids() -> None:
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


SECRET = "geheim"


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        # user and password
        ("amqp://u:****@h/", f"amqp://u:{SECRET}@h/"),
        ("AMQPS://u:****@h/", f"AMQPS://u:{SECRET}@h/"),
        ("amqp://u:****@h:5672/v", f"amqp://u:{SECRET}@h:5672/v"),
        ("amqp://u:****@[::1]:5672/v", f"amqp://u:{SECRET}@[::1]:5672/v"),
        ("amqp://:****@h/", f"amqp://:{SECRET}@h/"),
        ("postgresql+asyncpg://u:****@h/b", f"postgresql+asyncpg://u:{SECRET}@h/b"),
        # with what people forget to escape
        ("amqp://u:****@h/", f"amqp://u:{SECRET}@{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET} {SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}/{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}?{SECRET}#{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}:{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}\n{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u: {SECRET}@h/"),
        ("amqp://a user:****@h/", f"amqp://a user:{SECRET}@h/"),
        ("amqp://me@corp:****@h/", f"amqp://me@corp:{SECRET}@h/"),
        ("amqp://a/b:****@h/", f"amqp://a/b:{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:a://{SECRET}@h/"),
        # without a scheme, or with half of one
        ("u:****@h/", f"u:{SECRET}@h/"),
        ("u:****@h:5672", f"u:{SECRET}@h:5672"),
        ("//u:****@h/", f"//u:{SECRET}@h/"),
        ("amqp:****@h/", f"amqp:u:{SECRET}@h/"),
        ("amqp:****@h/", f"amqp:/u:{SECRET}@h/"),
        ("c1=amqp://u:****@h/", f"c1=amqp://u:{SECRET}@h/"),
        ("c1=amqp://u:****@h2/", f"c1=amqp://u:{SECRET}@h1/,c2=amqp://u:{SECRET}@h2/"),
        ("amqp://u:****", f"amqp://u:{SECRET}"),
        ("amqp://u:****/v", f"amqp://u:{SECRET}/v"),
        # as a parameter
        ("postgresql://h/b?password=****&x=1", f"postgresql://h/b?password={SECRET}&x=1"),
        ("postgresql://h/b?PASSWORD=****&x=1", f"postgresql://h/b?PASSWORD={SECRET}&x=1"),
        ("postgresql://h/b?x=1&sslpassword=****", f"postgresql://h/b?x=1&sslpassword={SECRET}"),
        ("postgresql://h/b?SslPassword=****", f"postgresql://h/b?SslPassword={SECRET}"),
        ("postgresql://h/b?pass%77ord=****", f"postgresql://h/b?pass%77ord={SECRET}"),
        ("postgresql://h/b?password=****&x=1", f"postgresql://h/b?password={SECRET} {SECRET}&x=1"),
        ("postgresql://h/b?password=****", f"postgresql://h/b?password={SECRET}#{SECRET}"),
        ("postgresql://h/b?password=****", f"postgresql://h/b?password=a={SECRET}"),
        ("postgresql://u:****@h/b?password=****", f"postgresql://u:{SECRET}@h/b?password={SECRET}"),
        ("http://h/?access_token=****&a=b", f"http://h/?access_token={SECRET}&a=b"),
        ("host=h password=****", f"host=h password={SECRET} user=u"),
        ("host=h password = ****", f"host=h password = '{SECRET}'"),
        # in other values
        ({"c1": "postgresql://u:****@h/b"}, {"c1": f"postgresql://u:{SECRET}@h/b"}),
        (("a://u:****@h",), (f"a://u:{SECRET}@h",)),
        (["a://u:****@h"], [f"a://u:{SECRET}@h"]),
    ],
)  # fmt: skip
def test_a_password_is_stars(shown: Any, value: Any) -> None:
    assert masked(value) == shown
    assert SECRET not in str(masked(value))


@pytest.mark.parametrize(
    "value",
    [
        "", "postgresql://u@h:5432/b", "amqp://h:5672", "amqp://h:5672?heartbeat=5", "amqp://127.0.0.1:5672/",
        "amqp://[::1]:5672/", "sqlite+aiosqlite:////a/b.db", "postgresql://h/b?host=/run/pg&sslmode=require",
        "postgresql://h/b?password=", "postgresql://h/b?passfile=/p", "no url: at all", "constant:1",
        "127.0.0.1:8778", "ironic_versioned_notifications", "tokens.toml", "properties.rack", 5, 2.5, True,
        None, {"free_ram": 2.0}, ("c1", "c2"),
    ],
)  # fmt: skip
def test_everything_else_is_shown_as_it_is(value: Any) -> None:
    assert masked(value) == value
