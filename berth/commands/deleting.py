"""`berth delete`: take a build down, wherever it is by now."""

from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.commands.options import Json, StateDir
from berth.commands.terminal import complain, effective, run, say, tell
from berth.operations.cells import uuid_of
from berth.operations.deleting import DeleteOptions, delete_build
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.masking import printable

commands = typer.Typer()


@commands.command("delete")
def delete_command(
    build: Annotated[str, typer.Argument(help="The build's uuid; or a request's, while it waits.")],
    cell: Annotated[
        str, typer.Option(help="The cell it is in, if you know: then nobody else is asked.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is down; exit 1 unless it was there, and is.")
    ] = False,
    fence: Annotated[
        bool,
        typer.Option(
            "--fence",
            help="Also if no build has this id yet: a request with it that is still on its way gets no host."
            " The id cannot be used again.",
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 600.0,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Take a build down and give its resources back; or end its wait for a host.

    A build can be deleted at any moment: while it waits, is placed or built, and after its end. The command
    asks all cells for it. If no cell has it, the scheduler ends it, or forwards the request to the cell that
    it was placed in. An unknown id is an error (exit 1). With --wait the command returns when placement holds
    nothing for the build any more.
    """
    run(delete(effective(state_dir=state_dir).settings, build, cell, wait, timeout, say, as_json, fence))


async def delete(
    settings: Settings,
    id_: str,
    cell: str,
    wait: bool,
    timeout: float,
    say: Console,
    as_json: bool = False,
    fence: bool = False,
) -> int:
    id_ = uuid_of(id_)
    options = DeleteOptions(cell=cell, wait=wait, fence=fence, timeout=timeout)
    async with Bus(wiring.transport(settings, "delete")) as bus:
        results = await delete_build(
            bus, settings, id_, options, lambda note: complain.print(f"[yellow]note[/yellow]: {note}")
        )
    for deleted in results:
        becomes = "deleted" if wait else "will be deleted"
        if deleted.why:
            sentence, becomes = f"{deleted.build}: {printable(deleted.why)}", "not placed"
        else:
            by = f" by cell {deleted.cell}" if deleted.by_scheduler else ""
            sentence = f"{deleted.build} {becomes}{by}"
        facts = {"build": deleted.build, "becomes": becomes, "cell": deleted.cell, "why": deleted.why}
        tell(say, as_json, sentence, **facts)
    return 0
