"""Commands that describe berth: `berth topology`, `asyncapi`, `metrics`, `rules` and so on."""

import json
import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from berth.commands.options import Json
from berth.commands.terminal import complain, effective, say, write_json
from berth.settings import GROUP_OF, by_name
from bus.masking import masked

commands = typer.Typer()


@commands.command("topology")
def topology_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Show publishers and consumers of every topic, and the direction in which it crosses the border of a
    cell.
    """
    from berth import topology, wiring  # each command imports its table itself: they load many modules

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


@commands.command()
def asyncapi(
    as_json: Annotated[bool, typer.Option("--json", help="As it is without.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the tables of docs/messages.md.")] = False,
) -> None:
    """Print an AsyncAPI 3 document of every topic and query, as JSON."""
    from berth import topology, wiring

    if markdown:
        from berth import message_table

        sys.stdout.write(message_table.markdown(wiring.all_workers_without_a_bus()))
        return
    document = topology.asyncapi(wiring.all_workers_without_a_bus())
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@commands.command("metrics")
def metrics_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Show every metric that workers serve for Prometheus (metrics_port), with its labels."""
    from berth import meter_table  # it brings every worker there is

    if as_json:
        rows = [vars(meter) | {"labels": list(meter.labels)} for meter in meter_table.meters()]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if markdown:
        sys.stdout.write(meter_table.markdown())
        return
    table = Table("metric", "kind", "labels", "says", "served by", box=None, pad_edge=False)
    for meter in meter_table.meters():
        table.add_row(meter.name, meter.kind, ", ".join(meter.labels), escape(meter.says), meter.by)
    say.print(table, soft_wrap=False)


@commands.command("rules")
def rules_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown tables.")] = False,
) -> None:
    """Show the filters that refuse hosts and the weighers that order them, and how they are set."""
    from berth import rule_table

    settings = effective().settings
    if as_json:
        sys.stdout.write(json.dumps(rule_table.as_json(settings), indent=2) + "\n")
        return
    if markdown:
        sys.stdout.write(rule_table.markdown(settings))
        return
    rules = Table("filter", "on", "admits a host if", box=None, pad_edge=False)
    for filter_ in rule_table.filters(settings):
        rules.add_row(
            filter_.name,
            "yes" if filter_.on else "",
            escape("\n".join((filter_.says, *rule_table.options(filter_)))),
        )
    say.print(rules, soft_wrap=False)
    weighers = Table("weigher", "by", "counts", box=None, pad_edge=False)
    for weigher in rule_table.weighers(settings):
        by = f"{weigher.multiplier:g}" if weigher.multiplier else ""
        weighers.add_row(weigher.name, by, escape("\n".join((weigher.says, *rule_table.options(weigher)))))
    say.print(weighers, soft_wrap=False)


@commands.command("reasons")
def reasons_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the tables of docs/reasons.md.")] = False,
) -> None:
    """Show every code that a decision can have, and its meaning."""
    from berth import reason_table

    if as_json:
        write_json(reason_table.as_json())
        return
    if markdown:
        sys.stdout.write(reason_table.markdown())
        return
    table = Table("code", "of", "says", box=None, pad_edge=False)
    for row in reason_table.as_json():
        table.add_row(row["code"], row["of"], escape(row["says"]))
    say.print(table, soft_wrap=False)


@commands.command("http")
def http_command(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table of docs/http.md.")] = False,
) -> None:
    """Show every address of the Placement API, with its methods, microversions and rules."""
    from berth import address_table  # it brings the whole API

    if as_json:
        write_json(address_table.as_json())
        return
    if markdown:
        sys.stdout.write(address_table.markdown())
        return
    table = Table("address", "method", "since", "rule", box=None, pad_edge=False)
    for row in address_table.as_json():
        table.add_row(escape(row["address"]), row["method"], row["since"], row["rule"])
    say.print(table, soft_wrap=False)


@commands.command("settings")
def settings_command(
    as_json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All there are, as the tables of docs/settings.md.")
    ] = False,
) -> None:
    """Show the settings in force by group, and where each comes from, passwords masked."""
    if markdown:
        from berth import setting_table

        sys.stdout.write(setting_table.markdown())
        return
    found = effective()
    values = by_name(found.settings)
    told = {
        name: {"value": masked(values[name]), "from": found.origins.get(name, "default"), "group": group}
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
