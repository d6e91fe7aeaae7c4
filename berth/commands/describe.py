"""`berth topology`, `asyncapi`, `metrics`, `rules`, `settings`: what berth is made of and how it is set."""

import json
import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from berth import rule_table, topology, wiring
from berth.commands.options import Json
from berth.commands.terminal import complain, effective, say
from berth.settings import GROUP_OF, by_name, shown

commands = typer.Typer()


@commands.command("topology", rich_help_panel="Look and check")
def topology_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Show who emits and who hears what, and what of it goes in and out of cells."""
    workers = wiring.all_workers_without_a_bus()
    if as_json:
        rows = [dict(zip(topology.COLUMNS, row, strict=True)) for row in topology.table(workers)]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if markdown:
        sys.stdout.write(topology.markdown(workers))
        return
    table = Table(*topology.COLUMNS, box=None, pad_edge=False)
    for row in topology.table(workers):
        table.add_row(*map(escape, row))
    say.print(table, soft_wrap=False)


@commands.command(rich_help_panel="Look and check")
def asyncapi() -> None:
    """Print an AsyncAPI 3 document of every topic and query, as JSON."""
    document = topology.asyncapi(wiring.all_workers_without_a_bus())
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@commands.command("metrics", rich_help_panel="Look and check")
def metrics_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Show every metric that workers serve for Prometheus (metrics_port), with its labels."""
    from berth import meter_table  # it brings every worker there is

    if as_json:
        rows = [vars(one) | {"labels": list(one.labels)} for one in meter_table.meters()]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if markdown:
        sys.stdout.write(meter_table.markdown())
        return
    table = Table("metric", "kind", "labels", "says", "served by", box=None, pad_edge=False)
    for one in meter_table.meters():
        table.add_row(one.name, one.kind, ", ".join(one.labels), escape(one.says), one.by)
    say.print(table, soft_wrap=False)


@commands.command("rules", rich_help_panel="Look and check")
def rules_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown tables.")] = False,
) -> None:
    """Show the filters that refuse hosts and the weighers that order them, and how they are set."""
    settings = effective().settings
    if as_json:
        sys.stdout.write(json.dumps(rule_table.as_json(settings), indent=2) + "\n")
        return
    if markdown:
        sys.stdout.write(rule_table.markdown(settings))
        return
    rules = Table("filter", "on", "admits a host if", box=None, pad_edge=False)
    for one in rule_table.filters(settings):
        rules.add_row(
            one.name, "yes" if one.on else "", escape("\n".join((one.says, *rule_table.options(one))))
        )
    say.print(rules, soft_wrap=False)
    weighers = Table("weigher", "by", "counts", box=None, pad_edge=False)
    for one in rule_table.weighers(settings):
        by = f"{one.multiplier:g}" if one.multiplier else ""
        weighers.add_row(one.name, by, escape("\n".join((one.says, *rule_table.options(one)))))
    say.print(weighers, soft_wrap=False)


@commands.command("settings", rich_help_panel="Look and check")
def settings_command(as_json: Json = False) -> None:
    """Show the settings in force by group, and where each comes from, passwords masked."""
    found = effective()
    values = by_name(found.settings)
    told = {
        name: {"value": shown(name, values[name]), "from": found.origins.get(name, "default"), "group": group}
        for name, group in GROUP_OF.items()
    }
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        group = ""
        for name, this in told.items():
            if group != (group := this["group"]):
                say.print(f"# {group}", markup=False)
            say.print(f"{name} = {this['value']!r}  # {this['from']}", markup=False)
    for variable in found.ignored:
        complain.print(f"{variable} is ignored: there is no such setting", style="yellow", markup=False)
