"""`berth provider`: whose a host is, where that has gone wrong."""

import re
from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.commands.options import Json, StateDir
from berth.commands.terminal import CommandRefused, checked, effective, run, say, write_json
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.queries import FindProviders, OwnerEditRequested
from bus.resources import Missing, OwnerGiven

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

commands = typer.Typer(
    no_args_is_help=True,
    help="Whose hosts are. A cell's reports are believed of its own only (docs/cells.md).",
)


@commands.callback()
def provider() -> None:
    """Whose hosts are."""


@commands.command("reset")
def reset_command(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The uuid of its root provider, or its name.")],
    cell: Annotated[str, typer.Option(metavar="NAME", help="The cell that has it from now on.")],
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Give a host to a cell, whoever has it, and count its reports from the beginning.

    What undoes a report of the wrong cell, or one with a sequence far ahead; what an operator made or brought
    over goes to its cell by it. Nobody is placed there until the cell has reported it.
    """
    run(reset(effective(state_dir=state_dir).settings, root, cell, as_json, say))


async def reset(settings: Settings, root: str, cell: str, as_json: bool, say: Console) -> int:
    if cell not in settings.cell_names:
        raise BadSetting(f"--cell {cell}: the cells are {', '.join(settings.cell_names)}")
    async with Bus(wiring.transport(settings, "provider")) as bus:
        if not _UUID.fullmatch(root):
            found = (await bus.asker(topics.PROVIDERS)(FindProviders(name=root))).providers
            if not found:
                raise CommandRefused(f"there is no provider {root}")
            root = found[0].root
        order = checked(OwnerEditRequested(root=root, cell=cell))
        result = (await bus.asker(topics.EDIT_OWNER)(order)).result
        if isinstance(result, Missing):
            raise CommandRefused(f"there is no root provider {root}")
    match result:
        case OwnerGiven():
            if as_json:
                write_json(result)
            else:
                before = f"cell {result.cell}" if result.cell else "no cell"
                told = f", agent {result.agent}" if result.agent else ""
                say.print(
                    f"{root} is of cell {cell}; it was of {before}{told}, last report {result.sequence}",
                    markup=False,
                )
            return 0
    raise CommandRefused("others are at work on it just now: try again")
