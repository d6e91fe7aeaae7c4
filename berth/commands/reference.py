"""`berth reference`: tables about berth. Slow modules load only for the table that is printed."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple

from berth.commands.descriptions import Markdown, show
from berth.kit.command_groups import Commands, Json
from berth.kit.listing import plain_table
from berth.kit.options import positional
from berth.kit.running import effective
from berth.kit.terminal import complain, say
from berth.settings import SIMULATOR, BadSetting

commands = Commands()


class Reference(NamedTuple):
    """A table: its rows, the columns that a terminal shows, and the function that makes it as Markdown."""

    facts: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    markdown: Callable[[], str]


def _commands() -> Reference:
    from berth import command_table
    from berth.__main__ import app

    return Reference(command_table.as_json(app), ("command", "does"), lambda: command_table.markdown(app))


def _features() -> Reference:
    from berth.reference_tables import listed_features, listed_features_markdown

    columns = ("feature", "says", "needs", "joins", "takes along")
    return Reference(listed_features(), columns, listed_features_markdown)


def _metrics() -> Reference:
    from berth.reference_tables import meters, meters_markdown

    facts = [vars(meter) | {"labels": list(meter.labels)} for meter in meters()]
    return Reference(facts, ("name", "kind", "labels", "says", "by"), meters_markdown)


def _topology() -> Reference:
    from berth import composition, topology

    workers = composition.all_workers_without_a_bus()
    facts = [dict(zip(topology.COLUMNS, row, strict=True)) for row in topology.table(workers)]
    return Reference(facts, topology.COLUMNS, lambda: topology.markdown(workers))


def _reasons() -> Reference:
    from berth.reference_tables import reasons, reasons_markdown

    return Reference(reasons(), ("code", "of", "says"), reasons_markdown)


def _roles() -> Reference:
    from berth.reference_tables import acts, acts_markdown

    facts = acts()
    return Reference(facts, tuple(facts[0]), acts_markdown)


def _http() -> Reference:
    from berth.reference_tables import addresses, addresses_markdown

    return Reference(addresses(), ("address", "method", "since", "rule"), addresses_markdown)


_TABLES = {
    "commands": _commands, "features": _features, "metrics": _metrics, "topology": _topology,
    "reasons": _reasons, "roles": _roles, "http": _http,
}  # fmt: skip
_SETTINGS, _ASYNCAPI = "settings", "asyncapi"  # documents with forms of their own
TABLES = (*_TABLES, _SETTINGS, _ASYNCAPI)


@commands.command("reference")
def reference_command(
    table: Annotated[str, positional("The table.", metavar="|".join(TABLES))],
    text: Annotated[
        str,
        positional(
            "Only rows with this text; of `settings` one setting, or `simulator`; of `asyncapi` a page.",
            metavar="TEXT",
        ),
    ] = "",
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Show a table about berth: commands, settings, features, messages, metrics, reason codes, roles, HTTP.

    `commands` lists every command with its purpose, and whether it can print JSON. `settings` shows the
    effective settings by group with the source of each; passwords are masked. `features` lists every feature
    of this berth, the features that it needs and joins, and those that need it. `topology` shows which
    workers publish and consume each topic, and `asyncapi` prints an AsyncAPI 3 document of every topic and
    query. `metrics` lists what workers serve for Prometheus, `reasons` the reason codes of decisions, `roles`
    the role that each act requires, and `http` every URL of the Placement API.
    """
    if table == _SETTINGS:
        show_settings(text, as_json=as_json, markdown=markdown)
    elif table == _ASYNCAPI:
        show_asyncapi(text, markdown=markdown)
    elif table in _TABLES:
        facts, columns, as_markdown = _TABLES[table]()
        found = [row for row in facts if text.lower() in " ".join(map(str, row.values())).lower()]
        rows = ([_cell(row[column]) for column in columns] for row in found)
        show(as_json, as_markdown() if markdown else None, found, plain_table(columns, rows))
    else:
        near = get_close_matches(table, TABLES, n=1) or TABLES
        raise BadSetting(f"reference {table!r}: there is no such table; try {', '.join(near)}")


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def show_asyncapi(subject: str, *, markdown: bool) -> None:
    """Print an AsyncAPI 3 document in JSON of all topics and queries, or of those of a subject.

    In Markdown print the page of a subject or of `types`; without a subject, the list of pages.
    """
    from berth import composition, message_pages, topology

    workers = composition.all_workers_without_a_bus()
    if markdown:
        made = message_pages.page(workers, subject) if subject else message_pages.index(workers)
        sys.stdout.write(made.strip() + "\n")
        return
    if subject and subject not in (known := message_pages.subjects()):
        raise BadSetting(f"asyncapi {subject!r}: there is no such subject; try {', '.join(known)}")
    sys.stdout.write(json.dumps(topology.asyncapi(workers, subject), indent=2, ensure_ascii=False) + "\n")


def show_settings(part: str, *, as_json: bool, markdown: bool) -> None:
    """Print the effective settings by group with their sources: all, or only a setting or group `part`."""
    if markdown:
        from berth.setting_tables import settings_markdown, simulator_markdown

        if part not in ("", SIMULATOR):
            raise BadSetting(f"settings {part!r}: --markdown is for all settings, or for {SIMULATOR}")
        sys.stdout.write(simulator_markdown() if part else settings_markdown())
        return
    found = effective()
    described = {name: this for name, this in found.shown().items() if part in ("", name, this["group"])}
    if not described:
        raise BadSetting(f"settings {part!r}: there is no such setting; `berth reference settings` shows all")
    if as_json:
        sys.stdout.write(json.dumps(described, indent=2) + "\n")
    else:
        group = ""
        for name, this in described.items():
            if group != (group := this["group"]):
                say.print(f"# {group}", markup=False)
            say.print(f"{name} = {this['value']!r}  # {this['from']}", markup=False)
    for variable in found.ignored:
        complain.print(f"{variable} is ignored: there is no such setting", style="yellow", markup=False)
