"""Makes the table of all commands for docs/commands.md, with their exit codes and JSON support."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import typer

from berth.commands.index import Later
from berth.features import features
from berth.reference_tables import markdown_table

EXIT_CODES = {  # command → the meaning of its exit code 1, if it is not "it could not be done"
    "audit check": "something is over-allocated, doubled or without an owner",
    "boot": "fewer became active than were asked for (with `--wait`)",
    "cell disable": "with `--wait`: something is still there",
    "system dead drop": "there is no letter with that id",
    "system dead replay": "some stay, or there is no letter with that id",
    "system dead show": "there is no letter with that id",
    "doctor": "there are warnings; **2**: a problem is critical, or something is broken",
    "host enable": "a host stays disabled for another cause, or by its agent",
    "audit heal": "something is still wrong",
    "openstack import placement": "some could not be copied",
    "ironic diff": "something differs",
    "ironic stuck": "a node is stuck",
    "load": "boots were lost, changed or not active, the audit is not clean, or an instance was not deleted",
    "problems": "there are problems",
    "why": "with `--replay` the decision differs; with `--now` it does not fit",
}


def commands(app: typer.Typer, *, groups: bool = False) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, such as `cell create`, and the groups that do something without a
    command; with `groups` each group.
    """

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, Later):
            command = command.loaded()
        if hasattr(command, "commands"):
            if path and (groups or command.invoke_without_command):
                yield " ".join(path), command
            for name, subcommand in command.commands.items():
                yield from below(subcommand, (*path, name))
        elif not command.hidden:
            yield " ".join(path), command

    return below(typer.main.get_command(app), ())


def meaning_of_1(name: str) -> str:
    """Return the meaning of exit code 1 of a command, or "" if it is that the command could not be done."""
    of_features = (feature.exit_codes for feature in features())
    return next((codes[name] for codes in (EXIT_CODES, *of_features) if name in codes), "")


def speaks_json(command: click.Command) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


def as_json(app: typer.Typer) -> list[dict[str, Any]]:
    """Return all commands for the JSON index of commands."""
    return [
        {
            "command": name,
            "does": _first(command),
            "json": speaks_json(command),
            "one": meaning_of_1(name),
            "options": [option for parameter in command.params for option in parameter.opts],
        }
        for name, command in commands(app)
    ]


def markdown(app: typer.Typer) -> str:
    """Return all commands as a table for the documentation."""
    rows = [
        (f"`berth {name}`", _first(command), "yes" if speaks_json(command) else "", meaning_of_1(name))
        for name, command in commands(app)
    ]
    return markdown_table(("command", "does", "JSON", "exit code 1"), rows)


def _first(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").split("\n\n")[0]
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
