"""All filters and weighers with their present options: for people, for pages, as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from berth.choice import own_functions, policy, rule_options
from berth.settings import Settings
from scheduler_worker import NEEDLESS, Choosable, all_rules, all_weighers


def filters(settings: Settings) -> list[Choosable]:
    said = settings.scheduler
    return all_rules(policy(settings), rule_options(settings), own_functions(said.filters))


def weighers(settings: Settings) -> list[Choosable]:
    said = settings.scheduler
    return all_weighers(policy(settings), rule_options(settings), own_functions(said.weighers))


def as_json(settings: Settings) -> dict[str, Any]:
    return {
        "filters": [msgspec.to_builtins(filter_) for filter_ in filters(settings)],
        "weighers": [msgspec.to_builtins(weigher) for weigher in weighers(settings)],
        "needless": dict(NEEDLESS),
    }


def options(choosable: Choosable) -> list[str]:
    """Return the options of a filter or weigher in the syntax of a settings file."""
    return [f"{name} = {_toml(value)}" for name, value in choosable.options.items()]


def markdown(settings: Settings) -> str:
    """Return tables of filters and weighers, and of Nova's ones that berth does not need, in Markdown."""
    parts = [
        _table("| filter | on | admits a host if", filters(settings), lambda one: "yes" if one.on else ""),
        _table(
            "| weigher | multiplier | counts",
            weighers(settings),
            lambda one: f"{one.multiplier:g}" if one.multiplier else "",
        ),
        _needless(NEEDLESS),
    ]
    return "\n".join(parts)


def _table(head: str, rows: Sequence[Choosable], on: Callable[[Choosable], str]) -> str:
    lines = [f"{head} | options | Nova's name |", "|---|---|---|---|---|"]
    for row in rows:
        said = "<br>".join(f"`{option}`" for option in options(row))
        called = ", ".join(row.called)
        lines.append(f"| `{row.name}` | {on(row)} | {row.says} | {said} | {called} |")
    return "\n".join(lines) + "\n"


def _needless(why: Mapping[str, str]) -> str:
    lines = ["| of Nova, accepted and not needed | because |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {reason} |" for name, reason in why.items())]) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)
