"""The command `berth`: assembles all commands from the modules of `berth.commands`."""

import sys

# `python -m` puts the working directory first: modules in it would replace those of Python and of berth.
if __name__ == "__main__" and not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/"):
    del sys.path[0]

from pathlib import Path
from typing import Annotated

import typer

from berth import __version__, logs
from berth.commands import descriptions
from berth.commands.index import EveryCommand
from berth.features import add_messages
from berth.kit.running import explained, given
from berth.settings import described

app = typer.Typer(
    cls=EveryCommand,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="berth finds a berth for every machine: event-driven placement and scheduling. "
    "`berth demo` shows it; `berth up` in one terminal and `berth boot --wait` in another try it.",
    epilog="Settings: berth.toml, BERTH_... variables, --config and flags, in rising order; see "
    "`berth reference settings`. Exit codes: 0 done; 1 it could not be done, or a check failed; 2 wrong"
    " arguments or "
    "settings; 130 stopped by Ctrl-C.",
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"berth {__version__}\n")
        raise typer.Exit


@app.callback()
def _before_every_command(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings (default: berth.toml)")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be repeated.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    sets = {}
    for pair in set_ or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes NAME=VALUE: there is no = in {described(pair)}")
        sets[name.replace("-", "_")] = value
    given(config, sets)
    add_messages()  # a command may create messages before it imports the composition of a process
    logs.begin_traces()


def main() -> None:
    """Run the command line; errors that users can cause become one sentence and an exit code."""
    descriptions.begin()
    explained(app)


if __name__ == "__main__":
    main()
