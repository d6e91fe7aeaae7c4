"""`berth rules` lists filters and weighers. Features add commands to this group."""

import typer
from rich.text import Text

from berth.commands.descriptions import Markdown, show
from berth.kit.command_groups import Commands, Json
from berth.kit.listing import plain_table
from berth.kit.running import effective

commands = Commands()
rules = Commands(name="rules", invoke_without_command=True)
commands.add_typer(rules)


@rules.callback(invoke_without_command=True)
def rules_command(context: typer.Context, as_json: Json = False, markdown: Markdown = False) -> None:
    """Show the filters that refuse hosts and the weighers that rank hosts, with their settings."""
    if context.invoked_subcommand is not None:
        return
    from berth import reference_tables

    settings = effective().settings
    tables = []
    for titles, listed in reference_tables.tables_of_rules(settings):
        rows = (
            (rule.name, by, Text("\n".join((rule.says, *reference_tables.options(rule)))))
            for rule, by in listed
        )
        tables.append(plain_table([title.replace("multiplier", "by") for title in titles], rows))
    everything = reference_tables.rules(settings)
    of_profiles = [
        (name, says, "yes" if name == everything["profile"] else "")
        for name, says in everything["profiles"].items()
    ]
    tables.insert(0, plain_table(["profile", "it", "used"], of_profiles))
    text = reference_tables.rules_markdown(settings) if markdown else None
    show(as_json, text, everything, *tables)
