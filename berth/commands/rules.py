"""`berth policy list` lists filters and weighers."""

from rich.text import Text

from berth.commands.descriptions import Markdown, show
from berth.kit.command_groups import Commands, Json
from berth.kit.listing import plain_table
from berth.kit.running import effective

commands = Commands()


@commands.command("list")
def rules_command(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the filters that refuse hosts and the weighers that rank hosts, with their settings."""
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
