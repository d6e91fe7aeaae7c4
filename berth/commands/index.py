"""Lists every command by name with the module that defines it; features declare their own.

A module is loaded when its command is called. `berth --help` and shell completion read descriptions from the
source text of the modules, without loading the modules.
"""

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from berth.commands.feature_commands import missing_features
from berth.features import commands_of, features

# command or group → the module that defines it, under its last word
_MODULES = {
    "demo": "load", "init": "init", "up": "run", "boot": "builds", "why": "why", "delete": "builds",
    "load": "load", "problems": "problems", "doctor": "audit", "top": "top", "run": "run",
    "instance list": "instances",
    "host": "hosts",
    "cell": "cells", "cell create": "cell_making", "cell delete": "cell_ending",
    "cell permissions": "cell_permissions", "cell agent": "cell_ending", "cell agent check": "agents",
    "project usage": "providers",
    "resource provider": "providers", "resource class": "providers", "resource trait": "providers",
    "resource aggregate": "aggregates",
    "access list": "credentials", "access token": "tokens",
    "policy list": "rules",
    "audit check": "audit", "audit heal": "audit", "audit log": "audit_log", "audit undo": "audit_undo",
    "system migrate": "run", "system bundle": "support", "system dead": "dead",
    "system completion": "descriptions", "system man": "init",
    "ironic": "ironic", "ironic publish": "nodes",
    "openstack import": "importing", "openstack import aggregates": "aggregates",
    "reference": "reference",
}  # fmt: skip
# Group → its description. A group without a module exists if it has a command, of the kernel or of a feature.
_GROUPS = {
    "instance": "List instances and change them.",
    "host": "See what hosts have, and keep new instances away from them.",
    "cell": "List, disable, create and delete cells, and their agents. See docs/cells.md.",
    "cell agent": "Agents of hosts and nodes, and the check of an operator's driver.",
    "request": "Requests that wait, and requests that are only tried.",
    "project": "What projects hold, and what they may hold.",
    "resource": "What hosts and other providers offer, and how much of it is used.",
    "resource provider": "Providers of resources: hosts and their parts, and the cells that own them.",
    "resource class": "Resource classes, and the providers that have them.",
    "resource trait": "Traits, and the providers that have them.",
    "resource aggregate": (
        "Group hosts and Ironic nodes: zones, hosts for projects, options of filters and weighers."
    ),
    "access": "Who may do what here (docs/roles.md).",
    "access token": "Tokens of the Placement API and the control room in a token file (docs/roles.md).",
    "policy": "The rules by which hosts are chosen, and tests of other rules.",
    "audit": "Check and repair the databases, and show what was done and when.",
    "system": "Migrations, dead letters and support bundles. See docs/running.md.",
    "system dead": "Messages that no worker could handle, each with its reason.",
    "ironic": "Compare placement with an Ironic, see its nodes, or simulate one.",
    "openstack": "Take over from an OpenStack cloud, and serve it.",
    "openstack import": "Import the data of another service.",
}


@dataclass(frozen=True)
class Listed:
    """An entry in the table of all commands: a command or a group, and the module that defines it."""

    path: str  # such as `cell agent list`
    module: str = ""  # empty: a group that consists of the commands below it
    of_group: str = ""  # the description of a group

    @property
    def name(self) -> str:
        return self.path.rpartition(" ")[2]

    @property
    def says(self) -> str:
        """Return a group's description, or the first paragraph of a command's docstring, for --help."""
        if self.of_group:
            return self.of_group
        file = Path(__file__).parents[2].joinpath(*self.module.split("."))
        text = file.with_suffix(".py").read_text(encoding="utf-8")
        found = re.search(rf'\.command\("{self.name}".*?"""(.*?)(?:\n\n|""")', text, re.DOTALL)
        return " ".join(found[1].split()) if found else ""


def _listed() -> Iterator[Listed]:
    """Yield all commands and groups that the tables name: those of the kernel, then those of features."""
    modules = {path: f"berth.commands.{file}" for path, file in _MODULES.items()}
    groups = dict(_GROUPS)
    for feature in features():
        modules |= commands_of(feature)
        groups |= feature.command_groups
    for path in dict.fromkeys([*FIRST, *groups, *modules]):
        if path in modules or any(each.startswith(f"{path} ") for each in modules):
            yield Listed(path, modules.get(path, ""), groups.get(path, ""))


# What a beginner needs, in the order of need: `berth --help` names these first.
FIRST = ("demo", "init", "up", "boot", "why", "delete", "load", "problems", "doctor", "top")

COMMANDS = tuple(_listed())


class Later(TyperCommand):
    """A placeholder for a command or group of commands; when called, loads the module that defines it."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(listed.name, help=listed.says)
        self._listed = listed

    def loaded(self) -> Any:
        """Return the command or group that the module defines, with the commands that others add to it."""
        below = commands_below(self._listed.path)
        if not self._listed.module:
            return TyperGroup(
                name=self._listed.name, help=self._listed.says, commands=below, no_args_is_help=True
            )
        around = typer.Typer()
        around.add_typer(import_module(self._listed.module).commands)
        command: Any = typer.main.get_group(around).commands[self._listed.name]
        if below:
            command.commands.update(below)
        if self._listed.of_group:
            command.help = self._listed.says
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded().make_context(*args, **kwargs)


def commands_below(path: str) -> dict[str, Any]:
    """Return placeholders for the listed commands and groups directly below a group, or, with "", for those
    at the top level.
    """
    return {each.name: Later(each) for each in COMMANDS if each.path.rpartition(" ")[0] == path}


class EveryCommand(TyperGroup):
    """The top-level group of the command line, which imports a command's module only when it is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands.update(commands_below(""))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of `berth`: the commands of a beginner, then all others, each with its purpose."""
        sys.stdout.write(first_page({name: command.help or "" for name, command in self.commands.items()}))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a command of a feature that this berth does not have, with the name of the feature."""
        for words in (args[:3], args[:2], args[:1]):
            command = " ".join(words)
            if command not in self.commands and (why := missing_features(command)):
                ctx.fail(why)
        return super().resolve_command(ctx, args)


def first_page(says: Mapping[str, str]) -> str:
    """Return the text of `berth --help`, of at most 40 lines of 80 characters. `says` has each command's
    purpose.
    """
    lines = [
        "berth places virtual machines and bare metal: placement and scheduling by events.",
        "",
        "Usage: berth [--config FILE] [--set NAME=VALUE]... COMMAND [OPTIONS]",
        "",
        "First steps",
        *(f"  {name:<11}{_shortened(says[name])}" for name in FIRST),
        "",
        "Operation",
        *(f"  {name:<11}{_shortened(text)}" for name, text in says.items() if name not in FIRST),
    ]
    lines += [
        "",
        "`berth COMMAND --help` explains; `berth reference commands TEXT` finds commands.",
        "Settings: berth.toml, BERTH_..., --config, --set (`berth reference settings`).",
        "Exit codes: 0 done; 1 not done, or a check failed; 2 wrong usage; 130 Ctrl-C.",
    ]
    return "".join(f"{line}\n" for line in lines)


def _shortened(text: str) -> str:
    """Return the first clause of a purpose, shortened so that it fits into a line."""
    return textwrap.shorten(re.split(r"[:;.] |[.]$", text)[0], 67, placeholder=" ...")
