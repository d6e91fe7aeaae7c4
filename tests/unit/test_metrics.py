"""Prometheus metrics, and that documents, dashboard and alerts use only existing ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from berth import command_table, meter_table
from berth.__main__ import app
from tests.support.promql import asked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- berth metrics --markdown -->", "<!-- end of berth metrics -->"
DASHBOARD = json.loads((ROOT / "deploy/grafana/berth.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))

FEW = {
    "worker", "topic", "outcome", "cell", "way", "crossing", "result", "why", "what", "status", "kind", "end",
    "method", "route", "event", "reason", "version", "broker",
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
KNOWN = {**OTHERS, **{name: labels | {"job", "instance"} for name, labels in meter_table.series().items()}}


def test_the_page_is_what_the_code_has() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == meter_table.markdown().strip(), (
        f"{PAGE.name} is behind the code: put what `berth metrics --markdown` prints between its marks"
    )


def test_every_module_that_counts_is_in_the_table() -> None:
    packages = [
        path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "bench")
    ]
    there = [path.relative_to(ROOT) for package in packages for path in (ROOT / package).rglob("*.py")]
    counting = {
        ".".join(path.with_suffix("").parts)
        for path in there
        if re.search(r"\b(Counter|Gauge|Histogram)\(\s*\"berth_", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert counting == set(meter_table.MODULES)


@pytest.mark.parametrize("meter", meter_table.meters(), ids=lambda meter: meter.name)
def test_no_metric_has_a_series_for_each_host_or_build(meter: meter_table.Meter) -> None:
    assert meter.name.startswith("berth_")
    assert meter.says
    assert set(meter.labels) <= FEW


def alerts() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in alerts()]
EXPRESSIONS += [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_queries_to_prometheus_use_existing_metrics(where: str, expression: str) -> None:
    found = asked(expression)
    assert found.metrics
    for name, labels in found.metrics.items():
        assert name in KNOWN, f"{where}: nobody serves {name}"
        assert labels <= KNOWN[name], f"{where}: {name} has no label {sorted(labels - KNOWN[name])}"
    every = set().union(*(KNOWN[name] for name in found.metrics))
    assert found.sorted_by <= every, f"{where}: nothing has a label {sorted(found.sorted_by - every)}"


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_is_so_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    said = rule["annotations"]
    assert set(said) == {"summary", "description", "what_to_do"}
    assert all(text.endswith((".", ".`")) for text in said.values())
    found = asked(rule["expr"])
    by = found.sorted_by or set().union(*(KNOWN[name] for name in found.metrics))
    for text in said.values():
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in by, f"{rule['alert']}: there is no {label} to tell of"
        for words in re.findall(r"`berth ([^`]+)`", text):
            assert command_of(words.split()), f"{rule['alert']}: there is no command berth {words}"


def test_panels_are_told_apart_and_show_labels_they_have() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= asked(target["expr"]).sorted_by | {"instance"}


def command_of(words: list[str]) -> bool:
    named = [command.split() for command in COMMANDS]
    return any(words[: len(one)] == one or words == one[: len(words)] for one in named)


@pytest.mark.parametrize(
    ("expression", "metrics", "by"),
    [
        ("up == 0", {"up": set()}, set()),
        ('sum by (a, b) (rate(x_total{c="d",e=~"f"}[5m])) > 3', {"x_total": {"c", "e"}}, {"a", "b"}),
        ("sum(x) by (a)", {"x": set()}, {"a"}),
        ("histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m])))", {"x_bucket": set()}, {"le"}),
        ("time() - x > 1e3 and on (a) y{b!='c'}", {"x": set(), "y": {"b"}}, {"a"}),
        ("a / ignoring (l) a{k='by (x)'}", {"a": {"k"}}, {"l"}),
    ],
)
def test_expressions_are_read(expression: str, metrics: dict[str, set[str]], by: set[str]) -> None:
    found = asked(expression)
    assert (found.metrics, found.sorted_by) == (metrics, by)


@pytest.mark.parametrize("expression", ["sum(x", "x ~ y", "x on y", "sum by (a"])
def test_an_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError):
        asked(expression)
