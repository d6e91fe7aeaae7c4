"""`berth import` and `berth ironic`, with the voice and the settings of the command line."""

import typer

from berth.commands.ironic import commands as ironic_commands
from berth.commands.terminal import complain, effective, run, say
from berth.importing.command import commands as import_commands

commands = typer.Typer()
commands.add_typer(import_commands(effective, run, say, complain), name="import")
commands.add_typer(ironic_commands(effective, run, say), name="ironic")
