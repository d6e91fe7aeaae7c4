"""`berth completion`: what a shell needs to complete berth's commands and options."""

import os
import sys
from typing import Annotated

import typer

from berth.settings import BadSetting

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_BERTH_COMPLETE"  # by which the shell asks

commands = typer.Typer()


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
