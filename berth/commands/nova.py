"""`berth nova`: commands for a cloud with a running Nova."""

from berth.commands.nova_check import checks
from berth.commands.options import Commands

commands = Commands(name="nova", no_args_is_help=True)
commands.add_typer(checks)
