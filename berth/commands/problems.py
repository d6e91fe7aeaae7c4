"""`berth problems`: the list of problems that all surfaces show."""

from berth import composition
from berth.kit.command_groups import Commands
from berth.kit.terminal import Cli
from berth.problems.reading import ProblemList
from bus.clock import moment_text
from bus.masking import printable
from bus.problems import KnownProblem
from control_room.kit.words import duration, several

commands = Commands()

_COLOURS = {"critical": "red", "warning": "yellow"}


@commands.command("problems")
async def problems_command(cli: Cli) -> int:
    """List what is wrong now: each problem with its consequence and the next command, grouped by cause.

    The first page of the control room, `/v1/problems` of the REST API, `berth doctor` and the alerts of
    Prometheus show the same list. Exit code 0: no known problems; 1: there are problems.
    """
    async with cli.bus("problems") as bus:
        found = await ProblemList(bus, cli.settings, composition.queues).read()
        now = bus.clock.now()
    for problem in found:
        if cli.as_json:
            cli.value(problem, "")
        else:
            _show(cli, problem, now)
    if not cli.as_json:
        cli.line(f"{several(len(found), 'problem')}." if found else "No known problems.")
    return 1 if found else 0


def _show(cli: Cli, problem: KnownProblem, now: float) -> None:
    cli.say.print(f"{problem.severity:9}", style=_COLOURS[problem.severity], end="")
    age = f" Since {moment_text(problem.since)}, {duration(now - problem.since)}." if problem.since else ""
    cli.line(f"{printable(problem.says)}{age}")
    cli.line(f"         {printable(problem.consequence)}", "dim")
    cli.line(f"         {printable(problem.do)}")
