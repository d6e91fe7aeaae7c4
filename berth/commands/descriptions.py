"""Commands that describe berth: `berth topology`, `asyncapi`, `metrics`, `rules` and so on.

Each command imports its table when it is called, because the tables load many modules.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from berth.commands.options import Commands, Json, option
from berth.commands.terminal import complain, effective, say
from berth.settings import GROUP_OF, BadSetting, by_name
from bus.masking import masked

commands = Commands()

Markdown = Annotated[bool, typer.Option("--markdown", help="As the Markdown tables of the documents.")]
Rows = Iterable[Sequence[str]]


def _show(
    as_json: bool,
    markdown: bool,
    facts: Callable[[], Any],
    text: Callable[[], str],
    tables: Callable[[], Iterable[tuple[Sequence[str], Rows]]],
) -> None:
    """Print facts about berth as JSON, as the text of the documents, or as tables (titles, rows)."""
    if as_json:
        sys.stdout.write(json.dumps(facts(), indent=2) + "\n")
    elif markdown:
        sys.stdout.write(text())
    else:
        for titles, rows in tables():
            table = Table(*titles, box=None, pad_edge=False)
            for row in rows:
                table.add_row(*map(escape, row))
            say.print(table, soft_wrap=False)


def _rows_of(facts: Sequence[dict[str, str]], titles: Sequence[str]) -> list[tuple[Sequence[str], Rows]]:
    return [(titles, [[row[title] for title in titles] for row in facts])]


@commands.command("topology")
def topology_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show publishers and consumers of every topic, and the direction in which it crosses the border of a
    cell.
    """
    from berth import topology, wiring

    workers = wiring.all_workers_without_a_bus()
    rows = topology.table(workers)
    _show(
        as_json,
        markdown,
        lambda: [dict(zip(topology.COLUMNS, row, strict=True)) for row in rows],
        lambda: topology.markdown(workers),
        lambda: [(topology.COLUMNS, rows)],
    )


@commands.command("asyncapi")
def asyncapi_command(
    as_json: bool = option(False, "As it is without.", "--json"),
    markdown: Markdown = False,
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
def metrics_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every metric that workers serve for Prometheus (metrics_port), with its labels."""
    from berth import meter_table

    meters, titles = meter_table.meters(), ("metric", "kind", "labels", "says", "served by")
    _show(
        as_json,
        markdown,
        lambda: [vars(meter) | {"labels": list(meter.labels)} for meter in meters],
        meter_table.markdown,
        lambda: [(titles, [(m.name, m.kind, ", ".join(m.labels), m.says, m.by) for m in meters])],
    )


@commands.command("rules")
def rules_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show the filters that refuse hosts and the weighers that order them, and how they are set."""
    from berth import rule_table

    settings = effective().settings

    def tables() -> list[tuple[Sequence[str], Rows]]:
        filters = [
            (rule.name, "yes" if rule.on else "", "\n".join((rule.says, *rule_table.options(rule))))
            for rule in rule_table.filters(settings)
        ]
        weighers = [
            (
                weigher.name,
                f"{weigher.multiplier:g}" if weigher.multiplier else "",
                "\n".join((weigher.says, *rule_table.options(weigher))),
            )
            for weigher in rule_table.weighers(settings)
        ]
        return [(("filter", "on", "admits a host if"), filters), (("weigher", "by", "counts"), weighers)]

    facts, text = lambda: rule_table.as_json(settings), lambda: rule_table.markdown(settings)
    _show(as_json, markdown, facts, text, tables)


@commands.command("reasons")
def reasons_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every code that a decision can have, and its meaning."""
    from berth import reason_table

    facts = reason_table.as_json
    _show(as_json, markdown, facts, reason_table.markdown, lambda: _rows_of(facts(), ("code", "of", "says")))


@commands.command("http")
def http_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """Show every address of the Placement API, with its methods, microversions and rules."""
    from berth import address_table

    facts, titles = address_table.as_json, ("address", "method", "since", "rule")
    _show(as_json, markdown, facts, address_table.markdown, lambda: _rows_of(facts(), titles))


@commands.command("settings")
def settings_command(as_json: Json = False, markdown: Markdown = False) -> None:
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


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_BERTH_COMPLETE"  # by which the shell asks


@commands.command("completion")
def completion_command(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print what makes a shell complete `berth`: `eval "$(berth completion bash)"` in ~/.bashrc."""
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise BadSetting(f"completion {shell!r}: it is {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    script = get_completion_script(prog_name="berth", complete_var=VARIABLE, shell=shell)
    sys.stdout.write(f"{script.rstrip()}\n")


def begin() -> None:
    """Install completion only if a shell requests it: its module loads slowly."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
