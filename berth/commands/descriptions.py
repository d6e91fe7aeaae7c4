"""Prints tables about berth in three forms, and the scripts for shell completion."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from rich.table import Table

from berth.kit.command_groups import Commands
from berth.kit.listing import plain_table
from berth.kit.options import described, positional
from berth.kit.terminal import say
from berth.settings import BadSetting

commands = Commands()

Markdown = Annotated[bool, described("As the Markdown tables of the documents.", "--markdown")]


def show(as_json: bool, text: str | None, facts: Any, *tables: Table) -> None:
    """Print `facts` as JSON if `as_json`; else the Markdown `text` or, if that is None, the `tables`."""
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    elif text is not None:
        sys.stdout.write(text)
    else:
        for table in tables:
            say.print(table, soft_wrap=False)


def _table_of(facts: Sequence[Mapping[str, str]], titles: Sequence[str]) -> Table:
    return plain_table(titles, ([row[title] for title in titles] for row in facts))


COMPLETION_VARIABLE = "_BERTH_COMPLETE"  # environment variable by which a shell requests completion


@commands.command("completion")
def completion_command(shell: Annotated[str, positional("The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell: `eval "$(berth system completion bash)"` in ~/.bashrc."""
    from berth.layouts import COMPLETIONS, completion_script

    if shell not in COMPLETIONS:
        raise BadSetting(f"completion {shell!r}: it is bash, zsh or fish")
    sys.stdout.write(completion_script(shell))


def begin() -> None:
    """Prepare shell completion if a shell requests it, and only then, because typer's module loads slowly."""
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
