"""Commands that print tables about berth, such as `berth topology`; slow modules load when a command runs."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from rich.table import Table

from berth.kit.command_groups import Commands, Json
from berth.kit.listing import plain_table
from berth.kit.options import described, option, positional
from berth.kit.running import effective
from berth.kit.terminal import complain, say
from berth.settings import SIMULATOR, BadSetting

commands = Commands()

Markdown = Annotated[bool, described("As the Markdown tables of the documents.", "--markdown")]


def show(as_json: bool, text: str | None, facts: Any, *tables: Table) -> None:
    """Print `facts` as JSON if `as_json`; else the Markdown `text` or, if that is None, the `tables`."""
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    elif text is not None:
        sys.stdout.write(text)
    else:
        for table in tables:
            say.print(table, soft_wrap=False)


def _table_of(facts: Sequence[Mapping[str, str]], titles: Sequence[str]) -> Table:
    return plain_table(titles, ([row[title] for title in titles] for row in facts))


@commands.command("topology")
def topology_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show which workers publish and consume each topic, and in which direction it crosses the border of a
    cell.
    """
    from berth import composition, topology

    workers = composition.all_workers_without_a_bus()
    facts = [dict(zip(topology.COLUMNS, row, strict=True)) for row in topology.table(workers)]
    text = topology.markdown(workers) if markdown else None
    show(as_json, text, facts, _table_of(facts, topology.COLUMNS))


@commands.command("asyncapi")
def asyncapi_command(
    as_json: bool = option(False, "As it is without.", "--json"), markdown: Markdown = False
) -> None:
    """Print an AsyncAPI 3 document in JSON that describes every topic and query."""
    from berth import composition, topology

    workers = composition.all_workers_without_a_bus()
    if markdown:
        sys.stdout.write(topology.messages_markdown(workers))
    else:
        sys.stdout.write(json.dumps(topology.asyncapi(workers), indent=2, ensure_ascii=False) + "\n")


@commands.command("metrics")
def metrics_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every metric that workers serve for Prometheus (metrics_http), with its labels."""
    from berth import reference_tables as tables

    meters = tables.meters()
    facts = [vars(meter) | {"labels": list(meter.labels)} for meter in meters]
    rows = ((meter.name, meter.kind, ", ".join(meter.labels), meter.says, meter.by) for meter in meters)
    table = plain_table(("metric", "kind", "labels", "says", "served by"), rows)
    show(as_json, tables.meters_markdown() if markdown else None, facts, table)


@commands.command("reasons")
def reasons_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every reason code of a decision, and its meaning."""
    from berth.reference_tables import reasons, reasons_markdown

    facts, text = reasons(), reasons_markdown() if markdown else None
    show(as_json, text, facts, _table_of(facts, ("code", "of", "says")))


@commands.command("features")
def features_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every feature of this berth, the features that it needs and joins, and those that need it."""
    from berth.reference_tables import listed_features, listed_features_markdown

    facts, text = listed_features(), listed_features_markdown() if markdown else None
    show(as_json, text, facts, _table_of(facts, ("feature", "says", "needs", "joins", "takes along")))


@commands.command("roles")
def roles_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every act with the role that it requires, and whether a role limited to cells or projects covers
    it.
    """
    from berth.reference_tables import acts, acts_markdown

    facts, text = acts(), acts_markdown() if markdown else None
    show(as_json, text, facts, _table_of(facts, tuple(facts[0])))


@commands.command("http")
def http_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every URL of the Placement API, with its methods, microversions and policy rules."""
    from berth.reference_tables import addresses, addresses_markdown

    facts, text = addresses(), addresses_markdown() if markdown else None
    show(as_json, text, facts, _table_of(facts, ("address", "method", "since", "rule")))


@commands.command("settings")
def settings_command(
    part: Annotated[
        str, positional("Only this setting, or `simulator`: only its options.", metavar="NAME")
    ] = "",
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Show the effective settings by group, and the source of each; passwords are masked."""
    if markdown:
        from berth.setting_tables import settings_markdown, simulator_markdown

        if part not in ("", SIMULATOR):
            raise BadSetting(f"settings {part!r}: --markdown is for all settings, or for {SIMULATOR}")
        sys.stdout.write(simulator_markdown() if part else settings_markdown())
        return
    found = effective()
    described = {name: this for name, this in found.shown().items() if part in ("", name, this["group"])}
    if not described:
        raise BadSetting(f"settings {part!r}: there is no such setting; `berth settings` shows all")
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


COMPLETION_VARIABLE = "_BERTH_COMPLETE"  # environment variable by which a shell requests completion


@commands.command("completion")
def completion_command(shell: Annotated[str, positional("The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell: `eval "$(berth completion bash)"` in ~/.bashrc."""
    from berth.layouts import COMPLETIONS, completion_script

    if shell not in COMPLETIONS:
        raise BadSetting(f"completion {shell!r}: it is bash, zsh or fish")
    sys.stdout.write(completion_script(shell))


def begin() -> None:
    """Prepare shell completion if a shell requests it, and only then, because typer's module loads slowly."""
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
