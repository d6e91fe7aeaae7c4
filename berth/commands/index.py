"""Lists every command by name with the module that defines it; features declare their own.

A module is loaded when its command is called. `berth --help` and shell completion read descriptions from the
source text of the modules, without loading the modules.
"""

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from berth.commands.feature_commands import missing_features
from berth.features import commands_of, features

# panel → command → its module, in the order in which they are shown
_MODULES = {
    "Run": {
        "demo": "load", "init": "init", "up": "run", "run": "run", "migrate": "run",
    },
    "Builds": {
        "load": "load", "boot": "builds", "delete": "builds", "instances": "instances", "ends": "ends",
        "why": "why", "node": "nodes",
    },
    "Moves": {},  # of features
    "Hosts": {
        "cell": "cells", "token": "tokens", "credentials": "credentials",
        "agent": "agents", "host": "hosts", "top": "top", "aggregate": "aggregates",
        "provider": "providers", "class": "providers", "trait": "providers", "usage": "providers",
    },
    "Inspect and check": {
        "problems": "problems", "doctor": "audit", "audit": "audit", "audit-log": "audit_log",
        "heal": "audit",
        "topology": "descriptions", "asyncapi": "descriptions", "metrics": "descriptions", "rules": "rules",
        "reasons": "descriptions", "features": "descriptions", "roles": "descriptions",
        "http": "descriptions",
        "settings": "descriptions", "completion": "descriptions", "man": "init", "dead": "dead",
        "debug": "support", "upgrade": "support",
    },
    "Other systems": {
        "import": "importing", "ironic": "ironic",
    },
}  # fmt: skip
_GROUPS = {  # group → its description
    "node": "Publish events of a bare-metal node, like Ironic.",
    "cell": "Cells: hosts that share a conductor, a database and a part of the broker (docs/cells.md)."
    " Disable, drain, add or remove a cell.",
    "token": "Tokens of the Placement API and the control room in a token file (docs/roles.md).",
    "agent": "Agents of hosts and nodes, and the check of an operator's driver.",
    "host": "See what hosts have, and keep new instances away from them.",
    "top": "The hosts, cells and projects that need attention first, or use the most.",
    "aggregate": (
        "Group hosts and Ironic nodes: zones, hosts for projects, options of filters and weighers."
    ),
    "provider": "Providers of resources: hosts and their parts, and the cells that own them.",
    "class": "Resource classes, and the providers that have them.",
    "trait": "Traits, and the providers that have them.",
    "rules": "Filters that reject hosts and weighers that rank them; without a command, all of them.",
    "dead": "Messages that no worker could handle, each with its reason.",
    "upgrade": "Check whether this berth can be upgraded (docs/running.md).",
    "import": "Import the data of another service.",
    "ironic": ("Ironic: differences from placement, nodes of any Ironic, and a simulated Ironic."),
}


@dataclass(frozen=True)
class Listed:
    """An entry in the table of all commands: a command or a group, and the module that defines it."""

    name: str
    module: str
    panel: str
    of_group: str = ""  # the description of a group
    added: tuple[tuple[str, str], ...] = ()  # commands that features add to the group, with their modules

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
    """Yield all commands, panel by panel: those of the kernel, then those of features."""
    for panel in dict.fromkeys([*_MODULES, *(panel for feature in features() for panel in feature.commands)]):
        of_features = [
            (feature, name, module)
            for feature in features()
            for name, module in commands_of(feature, panel).items()
        ]
        added: defaultdict[str, tuple[tuple[str, str], ...]] = defaultdict(tuple)
        for _, command, module in of_features:
            group, _, name = command.rpartition(" ")
            added[group] += ((name, module),)
        for name, file in _MODULES.get(panel, {}).items():
            yield Listed(name, f"berth.commands.{file}", panel, _GROUPS.get(name, ""), added[name])
        for feature, name, module in of_features:
            if " " not in name:
                yield Listed(name, module, panel, feature.command_groups.get(name, ""), added[name])


COMMANDS = tuple(_listed())

# What a beginner needs, in the order of need: `berth --help` explains these, and names the others.
FIRST = ("demo", "init", "up", "boot", "why", "instances", "delete", "host", "top", "doctor")


class Later(TyperCommand):
    """A placeholder for a command or group of commands; when called, loads the module that defines it."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(listed.name, help=listed.says, rich_help_panel=listed.panel)
        self._listed = listed

    def loaded(self) -> Any:
        """Load this entry's module, and return the command or group that the module defines."""
        command = _loaded(self._listed.module, self._listed.name)
        for name, module in self._listed.added:
            command.commands[name] = _loaded(module, self._listed.name).commands[name]
        if self._listed.of_group:
            command.help = self._listed.says
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded().make_context(*args, **kwargs)


def _loaded(module: str, name: str) -> Any:
    """Load a module, and return the command or group of this name that it defines."""
    around = typer.Typer()
    around.add_typer(import_module(module).commands)
    return typer.main.get_group(around).commands[name]


class EveryCommand(TyperGroup):
    """The top-level group of the command line, which imports a command's module only when it is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands.update({listed.name: Later(listed) for listed in COMMANDS})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of `berth`: the first commands with their purpose, all others by name."""
        sys.stdout.write(first_page({name: command.help or "" for name, command in self.commands.items()}))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a command of a feature that this berth does not have, with the name of the feature."""
        for words in (args[:2], args[:1]):
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
    ]
    panels: defaultdict[str, list[str]] = defaultdict(list)
    for listed in COMMANDS:
        if listed.name not in FIRST:
            panels[listed.panel].append(listed.name)
    panels["Inspect and check"].append("commands")
    for panel, names in panels.items():
        lines += textwrap.wrap(
            f"{panel}: {', '.join(names)}", 80, subsequent_indent="  ", break_on_hyphens=False
        )
    lines += [
        "",
        "`berth COMMAND --help` explains a command; `berth commands TEXT` finds commands.",
        "Settings: berth.toml, BERTH_... variables, --config, --set (`berth settings`).",
        "Exit codes: 0 done; 1 not done, or a check failed; 2 wrong usage; 130 Ctrl-C.",
    ]
    return "".join(f"{line}\n" for line in lines)


def _shortened(text: str) -> str:
    """Return the first clause of a purpose, shortened so that it fits into a line."""
    return textwrap.shorten(re.split(r"[:;.] |[.]$", text)[0], 67, placeholder=" ...")
