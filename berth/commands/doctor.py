"""`berth doctor`: is all well, and if not, what is to be done."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from berth.commands.options import Cells, Commands, Json, StateDir, cells_named
from berth.commands.terminal import Cli, effective, say, write_json
from berth.doctor.judgement import Finding, exit_code, judged
from bus.masking import printable

_COLOURS = {"broken": "red", "warning": "yellow", "fine": "green"}

commands = Commands()


@commands.command("doctor")
async def doctor_command(
    as_json: Json = False,
    management: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="RabbitMQ's management API, for its alarms and its clock (default: where it usually is).",
        ),
    ] = "",
    cells: Cells = None,
    state_dir: StateDir = None,
) -> int:
    """Check every service, worker, queue and database, and print problems and what to do about them.

    Nothing is changed; it takes seconds. Exit code 0 without problems, 1 if something needs attention, 2 if
    something is broken.
    """
    settings = effective(cells=cells_named(cells), state_dir=state_dir).settings
    return await examine(Cli(settings, as_json, say), management)


async def examine(cli: Cli, management: str = "") -> int:
    from berth.doctor.looking import look  # imports all clients of services

    found = judged(await look(cli.settings, management=management))
    if cli.as_json:
        write_json({"exit_code": exit_code(found), "findings": msgspec.to_builtins(found)})
    else:
        show(found, cli.say)
    return exit_code(found)


def show(found: list[Finding], say: Console) -> None:
    for finding in found:
        say.print(f"{finding.level:8}", style=_COLOURS[finding.level], end="")
        do = f" {finding.do}" if finding.do else ""
        say.print(f"{printable(finding.about)}: {printable(finding.says)}{printable(do)}", markup=False)
    many = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    verdict = "All is well." if not exit_code(found) else ""
    say.print(verdict or f"{many['broken']} broken, {many['warning']} to be looked at, {many['fine']} fine.")
