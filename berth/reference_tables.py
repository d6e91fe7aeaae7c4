"""Makes tables for documents and commands: HTTP addresses, metrics, reason codes, filters."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
from prometheus_client.metrics import MetricWrapperBase

from berth.features import add_messages, features, http_rules, joined_by, taken_along
from berth.features import meters as meters_of_features
from berth.kit.choice_policies import choice_policy, extension_functions, rule_options
from berth.placement_http import api_parts
from berth.settings import Settings
from bus.acts import ACTS, RANK, Act, Limit
from bus.decisions import REASONS
from placement_worker.http.access import DEFAULTS
from placement_worker.http.app import routes
from scheduler_worker import NEEDLESS, PROFILES, Choosable, all_rules, all_weighers


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def addresses() -> list[dict[str, Any]]:
    """Return the URLs and HTTP methods of the Placement API, each with its microversions and access rule."""
    defaults = DEFAULTS | http_rules()
    return [
        {
            "address": pattern,
            "method": operation.method,
            "since": _version(pattern, operation.since),
            "until": _version(pattern, operation.until) if operation.ends else "",
            "rule": operation.rule,
            "default": defaults.get(operation.rule, ""),
            "body": operation.body,
        }
        for pattern, operations in sorted(routes(api_parts()).items())
        for operation in operations
    ]


def addresses_markdown() -> str:
    """Return the HTTP addresses as a table for the documentation."""
    rows = []
    for row in addresses():
        version = f"{row['since']} to {row['until']}" if row["until"] else row["since"]
        rule = f"`{row['rule']}`" if row["rule"] else ""
        default = f"`{row['default']}`" if row["default"] else "everybody"
        rows.append((f"`{row['address']}`", row["method"], version or "any", rule, default))
    return markdown_table(("address", "method", "microversion", "rule", "permitted by default"), rows)


def acts() -> list[dict[str, str]]:
    """Return every act: which roles may do it, and whether a role limited to cells or projects may do it
    everywhere, only in them, or not at all.
    """
    return [
        {
            "act": act.name,
            "says": act.says,
            **{role: "yes" if RANK[role] >= RANK[act.role] else "no" for role in RANK if role},
            "cells": _where(act, "cells"),
            "projects": _where(act, "projects"),
        }
        for act in ACTS
    ]


def _where(act: Act, limit: Limit) -> str:
    return "everywhere" if limit in act.open_to else "in them" if limit in act.limited_by else "no"


def acts_markdown() -> str:
    """Return the acts, and which roles may do them, as a table for the documentation."""
    titles = ("act", "", "reader", "operator", "admin", "limited to cells", "limited to projects")
    return markdown_table(titles, [(f"`{act['act']}`", *list(act.values())[1:]) for act in acts()])


def _version(pattern: str, minor: int) -> str:
    has_none = pattern == "/" or pattern.startswith(("/berth/", "/healthz", "/readyz", "/metrics"))
    return "" if has_none else f"1.{minor}"


# The worker that serves each module's metrics. An embedded `berth up` serves all of them.
add_messages()
MODULES: Mapping[str, str] = {
    "berth.meters": "every process",
    "bus.delivery.settling": "every worker",
    "bus.direct": "processes of several workers",
    "bus.rabbit.reconnecting": "every worker, on RabbitMQ",
    "bus.sql.failures": "placement, scheduler, conductor",
    "bus.sql.database": "placement, scheduler, conductor",
    "placement_worker.change_log": "placement",
    "placement_worker.worker": "placement",
    "placement_worker.http.app": "placement, where it serves HTTP",
    "scheduler_worker.hosts": "scheduler",
    "scheduler_worker.roster": "scheduler",
    "scheduler_worker.refusals": "scheduler",
    "cell_conductor.metrics": "conductor",
    "berth.ferry.passage": "ferry",
    "ironic_sync.notifications": "ironic",
}


@dataclass(frozen=True)
class Meter:
    """A metric as the documentation lists it."""

    name: str  # the name in Prometheus; for a histogram without _bucket, _sum and _count
    kind: str
    labels: tuple[str, ...]
    says: str
    by: str


def meters() -> list[Meter]:
    """Return all metrics that berth's processes can serve."""
    return [
        Meter(
            base._name + ("_total" if base._type == "counter" else ""),
            str(base._type),
            tuple(base._labelnames),
            base._documentation,
            by,
        )
        for module, by in (*MODULES.items(), *meters_of_features())
        for base in metrics_of(module)
    ]


def meters_markdown() -> str:
    rows = [
        (f"`{meter.name}`", meter.kind, ", ".join(meter.labels), meter.says, meter.by) for meter in meters()
    ]
    return markdown_table(("metric", "kind", "labels", "says", "served by"), rows)


def metrics_of(module: str) -> Iterator[MetricWrapperBase]:
    """Yield the metrics that a module defines, in the order of its source."""
    for value in vars(import_module(module)).values():
        if isinstance(value, MetricWrapperBase):  # prometheus_client has no public base class of metrics
            yield value


def listed_features() -> list[dict[str, str]]:
    """Return for each feature what it is, needs and joins, and the features that its deletion takes along."""
    return [
        {
            "feature": feature.name,
            "says": feature.says,
            "needs": ", ".join(feature.needs),
            "joins": ", ".join(joined_by(feature)),
            "takes along": ", ".join(taken_along(feature.name)),
        }
        for feature in features()
    ]


def listed_features_markdown() -> str:
    rows = [
        (f"[{name}](features/{name}/README.md)", *facts)
        for name, *facts in (row.values() for row in listed_features())
    ]
    return markdown_table(("feature", "it", "needs", "joins", "its deletion takes along"), rows)


def reasons() -> list[dict[str, str]]:
    """Return all reason codes with their meanings."""
    return [
        {"code": code, "of": table.title.removeprefix("Of "), "says": meaning}
        for table in REASONS.values()
        for code, meaning in table.codes.items()
    ]


def reasons_markdown() -> str:
    parts = []
    for table in REASONS.values():
        rows = [(f"`{code}`", meaning) for code, meaning in table.codes.items()]
        lead = [f"{table.lead}\n"] if table.lead else []
        parts += [f"### {table.title}\n", *lead, markdown_table(("code", table.head), rows)]
    return "\n".join(parts)


def filters(settings: Settings) -> list[Choosable]:
    """Return all filters that the settings can name, with their options."""
    custom = extension_functions(settings.scheduler.filters)
    return all_rules(choice_policy(settings), rule_options(settings), custom)


def weighers(settings: Settings) -> list[Choosable]:
    """Return all weighers that the settings can name, with their options."""
    custom = extension_functions(settings.scheduler.weighers)
    return all_weighers(choice_policy(settings), rule_options(settings), custom)


def rules(settings: Settings) -> dict[str, Any]:
    """Return the chosen profile, and the filters and weighers in use."""
    profile = choice_policy(settings).profile
    return {
        "profile": profile,
        "profiles": {name: each.says for name, each in PROFILES.items()},
        "filters": [msgspec.to_builtins(filter_) for filter_ in filters(settings)],
        "weighers": [msgspec.to_builtins(weigher) for weigher in weighers(settings)],
        "needless": dict(NEEDLESS),
    }


def options(choosable: Choosable) -> list[str]:
    """Return the options of a filter or weigher, with their values, as lines of a settings file."""
    return [f"{name} = {toml_value(value)}" for name, value in choosable.options.items()]


def tables_of_rules(settings: Settings) -> Iterator[tuple[tuple[str, str, str], list[tuple[Choosable, str]]]]:
    """Yield two tables (titles, rows): filters, with `yes` if enabled, and weighers, with the multiplier."""
    admit = [(rule, "yes" if rule.on else "") for rule in filters(settings)]
    yield ("filter", "on", "what it does"), admit
    weigh = [(rule, f"{rule.multiplier:g}" if rule.multiplier else "") for rule in weighers(settings)]
    yield ("weigher", "multiplier", "what it does"), weigh


def rules_markdown(settings: Settings) -> str:
    """Return Markdown tables of berth's filters and weighers, and of Nova's that berth does not need."""

    def row(rule: Choosable, on: str) -> tuple[str, ...]:
        written = "<br>".join(f"`{option}`" for option in options(rule))
        return f"`{rule.name}`", on, rule.says, written, ", ".join(rule.called)

    parts = [
        markdown_table((*titles, "options", "Nova's name"), [row(*rule) for rule in rules])
        for titles, rules in tables_of_rules(settings)
    ]
    parts.append(markdown_table(("of Nova, accepted and not needed", "because"), NEEDLESS.items()))
    return "\n".join(parts)


def toml_value(value: Any) -> str:
    """Return a value in the syntax of TOML."""
    if value is None:
        return "{}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
