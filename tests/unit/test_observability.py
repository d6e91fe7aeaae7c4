"""Log lines: one per event, with ids; passwords are masked."""

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import Histogram

from berth import command_table, logs, reference_tables
from berth.__main__ import app
from berth.features import features, meters
from berth.logs import JsonLines, TextLines, exporter_named, secrets_of, without_secrets
from berth.problems.alerts import alerts_yaml
from berth.settings import BadSetting, Settings
from bus.context import current_tracer, handling
from bus.masking import masked, masked_text
from bus.messages import BuildDeleteRequested
from bus.protocol import Envelope
from tests.support.envelopes import an_envelope

_VALUES = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]""")  # strings and ranges
_GROUPS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_METRICS = re.compile(
    r"\b(?!(?:and|or|unless|bool|offset)\b)([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\s*\{([^}]*)\})?"
)
_AGGREGATIONS = re.compile(r"\b\w+\s*(?=\()")


@dataclass
class AskedOfPrometheus:
    metrics: dict[str, set[str]] = field(default_factory=dict)  # with the labels each is picked by
    sorted_by: set[str] = field(default_factory=set)


def asked(expression: str) -> AskedOfPrometheus:
    text, found = _VALUES.sub(" ", expression), AskedOfPrometheus()
    if text.count("(") != text.count(")"):
        raise ValueError(f"{expression!r}: brackets do not match")
    for names in _GROUPS.findall(text):
        found.sorted_by |= set(re.findall(r"\w+", names))
    for name, selectors in _METRICS.findall(_AGGREGATIONS.sub(" ", _GROUPS.sub("", text))):
        found.metrics.setdefault(name, set()).update(re.findall(r"\w+", selectors))
    return found


TRACE = "0af7651916cd43dd8448eb211c80319c"
ENVELOPE = an_envelope(
    id="m1",
    type="BuildPlaced",
    body=msgspec.Raw(b'{"request":"r1","build":"b1"}'),
    correlation="m0",
    traceparent=f"00-{TRACE}-b7ad6b7169203331-01",
)
SECRETS = ("geheim-lang", "geheim")


def a_record(text: str, *given: Any, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord("bus.x", logging.WARNING, __file__, 1, text, given, more.pop("exc_info", None))
    vars(record).update(more)
    return record


def a_line(record: logging.LogRecord) -> dict[str, Any]:
    reply = JsonLines("scheduler", SECRETS).format(record)
    assert "\n" not in reply
    line: dict[str, Any] = json.loads(reply)
    return line


def test_a_batch_logs_the_ids_of_all_its_messages() -> None:
    other = an_envelope(body=msgspec.Raw(b'{"build":"b2"}'))
    delete = [BuildDeleteRequested(build="b", cell="c1") for _ in range(2)]
    with handling(zip((ENVELOPE, other), delete, strict=True)):
        line = a_line(a_record("both"))
        alone = a_line(a_record("one of them", envelopes=(other,)))
    assert line["build"] == ["b1", "b2"]
    assert "message" not in line
    assert alone["build"] == "b2"


def test_a_text_log_line_ends_with_the_ids() -> None:
    reply = TextLines().format(a_record("so", envelopes=(ENVELOPE,)))
    assert reply.endswith("WARNING bus.x: so [request=r1 build=b1]")


def test_an_exception_is_one_log_line() -> None:
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
def test_no_log_line_has_a_password(lines: logging.Formatter, text: str) -> None:
    assert "geheim" not in (reply := lines.format(a_record("it says %s", text)))
    assert "lang" not in reply
    assert "it says" in reply


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
        amqp_url="amqp://u:p%40ss-eins@h,[::1]:5672/",
        cells=("c1",),
        cell_database_urls={"c1": "postgresql://u:pass-zwei@h/b"},
        database_url="postgresql://u:abc@h/b",
    )
    assert set(secrets_of(settings)) == {"p%40ss-eins", "p@ss-eins", "pass-zwei"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 guests, hosts of 'host-1'", "2 guests, hosts of '****-1'"),
        ("a\\nhost: amqp://u:host@b/", "a\\n****: amqp://u:****@b/"),
        ("host_host/host4host", "****_****/****4****"),
        ("xpa55word", "x****"),
    ],
)
def test_a_password_that_is_a_word_is_masked_only_as_a_whole_word(text: str, shown: str) -> None:
    assert without_secrets(text, ("pa55word", "host")) == shown


def test_the_default_password_of_rabbitmq_is_masked_only_in_urls() -> None:
    url = "amqp://guest:guest@127.0.0.1:5672/"
    secrets = secrets_of(Settings().having(amqp_url=url))
    text = f"the guest of build 1 is lost, 2 guests run: {url}"
    assert without_secrets(text, secrets) == text.replace("guest:guest@", "guest:****@")


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
        ("amqp://u:****@[::1]:5672/v", f"amqp://u:{SECRET}@[::1]:5672/v"),
        ("amqp://:****@h/", f"amqp://:{SECRET}@h/"),
        ("postgresql+asyncpg://u:****@h/b", f"postgresql+asyncpg://u:{SECRET}@h/b"),
        # with what people forget to escape
        ("amqp://u:****@h/", f"amqp://u:{SECRET}@{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}/{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}?{SECRET}#{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}\n{SECRET}@h/"),
        ("amqp://me@corp:****@h/", f"amqp://me@corp:{SECRET}@h/"),
        ("amqp://a/b:****@h/", f"amqp://a/b:{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:a://{SECRET}@h/"),
        # without a scheme, or with half of one
        ("u:****@h:5672", f"u:{SECRET}@h:5672"),
        ("//u:****@h/", f"//u:{SECRET}@h/"),
        ("amqp:****@h/", f"amqp:/u:{SECRET}@h/"),
        ("c1=amqp://u:****@h2/", f"c1=amqp://u:{SECRET}@h1/,c2=amqp://u:{SECRET}@h2/"),
        ("amqp://u:****/v", f"amqp://u:{SECRET}/v"),
        # as a parameter
        ("postgresql://h/b?PASSWORD=****&x=1", f"postgresql://h/b?PASSWORD={SECRET}&x=1"),
        ("postgresql://h/b?SslPassword=****", f"postgresql://h/b?SslPassword={SECRET}"),
        ("postgresql://h/b?pass%77ord=****", f"postgresql://h/b?pass%77ord={SECRET}"),
        ("postgresql://h/b?password=****&x=1", f"postgresql://h/b?password={SECRET} {SECRET}&x=1"),
        ("postgresql://h/b?password=****", f"postgresql://h/b?password={SECRET}#{SECRET}"),
        ("postgresql://u:****@h/b?password=****", f"postgresql://u:{SECRET}@h/b?password={SECRET}"),
        ("http://h/?access_token=****&a=b", f"http://h/?access_token={SECRET}&a=b"),
        ("host=h password = ****", f"host=h password = '{SECRET}'"),
        # in other values
        ({"c1": "postgresql://u:****@h/b"}, {"c1": f"postgresql://u:{SECRET}@h/b"}),
        (["a://u:****@h"], [f"a://u:{SECRET}@h"]),
        (("fence", "--password", "****", "h"), ("fence", "--password", SECRET, "h")),
        ({"mine": {"api_token": "****", "n": 2}}, {"mine": {"api_token": SECRET, "n": 2}}),
    ],
)  # fmt: skip
def test_a_password_is_stars(shown: Any, value: Any) -> None:
    assert masked(value) == shown
    assert SECRET not in str(masked(value))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, ""),
    ],
)
def test_traces_are_exported_if_the_environment_names_an_exporter(
    environment: dict[str, str], named: str
) -> None:
    assert exporter_named(environment) == named


def test_an_unknown_exporter_is_refused_with_a_remedy() -> None:
    with pytest.raises(BadSetting, match=r"OTEL_TRACES_EXPORTER=jaeger_of_old: .*berth\[traces\]"):
        logs.begin_traces({"OTEL_TRACES_EXPORTER": "jaeger_of_old"})
    assert current_tracer() is None


REPOSITORY = Path(__file__).parents[2]
PROMETHEUS = REPOSITORY / "berth/service_files/prometheus"
DASHBOARD = json.loads((REPOSITORY / "berth/service_files/grafana/berth.json").read_text(encoding="utf-8"))
LISTED = {feature.name for feature in features()}
DELIVERED = [
    rule
    for name in ("alerts", "slo")
    for group in yaml.safe_load((PROMETHEUS / f"{name}.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
# A deleted feature's rules stay in a file that was written before: they name it in their label `feature`.
RULES = [rule for rule in DELIVERED if rule.get("labels", {}).get("feature") in (None, *LISTED)]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
RUNBOOK = (REPOSITORY / "docs/runbook.md").read_text(encoding="utf-8")

FEW = {
    "worker", "topic", "outcome", "cell", "way", "crossing", "result", "why", "what", "status", "kind", "end",
    "method", "route", "event", "reason", "version", "broker", "quantile", "priority",
    "stage", "plan", "level", "of", "state", "queue",
}  # fmt: skip
OTHERS = {
    "up": {"job", "instance"},
    "process_start_time_seconds": {"job", "instance"},
    "process_cpu_seconds_total": {"job", "instance"},
    "process_resident_memory_bytes": {"job", "instance"},
    "rabbitmq_alarms_free_disk_space_watermark": {"job", "instance"},
    "rabbitmq_alarms_memory_used_watermark": {"job", "instance"},
    "rabbitmq_queue_messages_ready": {"job", "instance"},
    "rabbitmq_queue_messages_unacked": {"job", "instance"},
}
COMMANDS = set(dict(command_table.commands(app)))
_ENDINGS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def _series() -> dict[str, set[str]]:
    """Return the names of all time series in Prometheus, each with its labels."""
    return {
        meter.name + ending: {*meter.labels, *(("le",) if ending == "_bucket" else ())}
        for meter in reference_tables.meters()
        for ending in _ENDINGS[meter.kind]
    }


KNOWN = {**OTHERS, **{name: labels | {"job", "instance"} for name, labels in _series().items()}}
KNOWN |= {name: {"slo"} for name in RECORDED}


def test_every_module_that_counts_is_in_the_table() -> None:
    packages = [
        path.parent.name
        for path in REPOSITORY.glob("*/__init__.py")
        if path.parent.name not in ("tests", "bench")
    ]
    there = [
        path.relative_to(REPOSITORY) for package in packages for path in (REPOSITORY / package).rglob("*.py")
    ]
    counting = {
        ".".join(path.with_suffix("").parts)
        for path in there
        if re.search(
            r"\b(Counter|Gauge|Histogram)\(\s*\"berth_", (REPOSITORY / path).read_text(encoding="utf-8")
        )
    }
    of_features = {module for module, _ in meters()}
    assert counting == {*reference_tables.MODULES, *of_features}


def test_no_metric_has_a_series_for_each_host_or_build() -> None:
    for meter in reference_tables.meters():
        assert meter.name.startswith("berth_")
        assert meter.says, meter.name
        assert set(meter.labels) <= FEW, meter.name


def panels() -> list[dict[str, Any]]:
    """Return the panels of the kernel and of listed features."""
    shown = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return [panel for panel in shown if panel.get("feature") in (None, *LISTED)]


EXPRESSIONS = [
    (rule.get("alert") or rule["record"], rule["expr"])
    for rule in RULES
    if rule.get("record") != "slo:objective"  # a constant
]
EXPRESSIONS += [
    (panel["title"], target["expr"])
    for panel in panels()
    for target in panel["targets"]
    if target.get("feature") in (None, *LISTED)
]


def test_queries_to_prometheus_use_existing_metrics() -> None:
    for where, expression in EXPRESSIONS:
        found = asked(expression)
        assert found.metrics
        for name, labels in found.metrics.items():
            assert name in KNOWN, f"{where}: nobody serves {name}"
            assert labels <= KNOWN[name], f"{where}: {name} has no label {sorted(labels - KNOWN[name])}"
        every = set().union(*(KNOWN[name] for name in found.metrics))
        assert found.sorted_by <= every, f"{where}: nothing has a label {sorted(found.sorted_by - every)}"


def test_every_alert_has_a_summary_and_a_remedy() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        reply = rule["annotations"]
        assert set(reply) == {"summary", "description", "what_to_do"}, rule["alert"]
        assert all(text.endswith((".", ".`")) for text in reply.values()), rule["alert"]
        found = asked(rule["expr"])
        by = found.sorted_by or set().union(*(KNOWN[name] for name in found.metrics))
        for text in reply.values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                assert label in by, f"{rule['alert']}: there is no {label} to tell of"
            for words in re.findall(r"`berth ([^`]+)`", text):
                assert command_of(words.split()), f"{rule['alert']}: there is no command berth {words}"


def test_alerts_have_the_sentences_of_the_kinds_of_problems() -> None:
    written = yaml.safe_load(alerts_yaml())["groups"]
    rules = [rule for group in written for rule in group["rules"]]
    assert rules == [rule for rule in ALERTS if not rule["alert"].endswith("Budget")]


def test_limits_in_queries_are_limits_of_buckets() -> None:
    limits = {
        f"{meter._name}_bucket": {str(limit) for limit in meter._upper_bounds}
        for module in reference_tables.MODULES
        for meter in reference_tables.metrics_of(module)
        if isinstance(meter, Histogram)
    }
    for where, expression in EXPRESSIONS:
        for name, limit in re.findall(r'(\w+_bucket){[^}]*\ble="([^"]+)"', expression):
            assert limit in limits[name], f"{where}: {name} has no bucket {limit}"


def test_each_objective_has_an_error_budget_and_alerts_of_both_severities() -> None:
    def objectives(record: str) -> list[str]:
        return sorted(rule["labels"]["slo"] for rule in RULES if rule.get("record") == record)

    names = objectives("slo:objective")
    assert names == objectives("slo:events:rate5m") == objectives("slo:bad:rate5m")
    for name in names:
        about = [rule for rule in ALERTS if f'slo="{name}"' in rule["expr"]]
        assert sorted(rule["labels"]["severity"] for rule in about) == ["critical", "warning"], name


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    # A deleted feature's sections stay in the page, below a heading with its name.
    parts = re.split(r"^## (?:Feature )?(.+)$", RUNBOOK, flags=re.MULTILINE)
    kept = [
        text
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if title in LISTED or f"## Feature {title}" not in RUNBOOK
    ]
    runbook = "".join(kept)
    sections = re.findall(r"^### (.+)$", runbook, re.MULTILINE)
    listed = list(dict.fromkeys(rule["alert"] for rule in ALERTS))
    assert sections == listed
    for name, text in zip(sections, re.split(r"^### .+$", runbook, flags=re.MULTILINE)[1:], strict=True):
        for part in ("**Cause:**", "**See it:**", "**Do:**"):
            assert part in text, f"{name}: {part} is missing"
        for words in re.findall(r"`berth ([^`]+)`", text):
            assert command_of(words.split()), f"{name}: there is no command berth {words}"


def test_panels_have_unique_ids_and_existing_labels() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= asked(target["expr"]).sorted_by | {"instance"}


def command_of(words: list[str]) -> bool:
    named = [command.split() for command in COMMANDS]
    return any(words[: len(one)] == one or words == one[: len(words)] for one in named)
