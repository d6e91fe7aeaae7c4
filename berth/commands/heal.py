"""`berth heal`: what an audit found and can be proven is mended; all else is listed, with why not."""

from typing import Annotated

import typer
from rich.console import Console

from berth.commands.options import Cells, Database, Json, StateDir, cells_named
from berth.commands.terminal import effective, run, say, write_json
from berth.operations.audit import audit
from berth.operations.healing import repaired
from berth.settings import Settings

commands = typer.Typer()


@commands.command("heal")
def heal_command(
    yes: Annotated[bool, typer.Option("--yes", help="Mend it; without this it is only shown.")] = False,
    as_json: Json = False,
    cells: Cells = None,
    database: Database = None,
    state_dir: StateDir = None,
) -> None:
    """Repair what `berth audit` finds if the repair is proven; list everything else for the operator.

    Capacity that is no longer needed is released: of a holder consumer (of a move, or of a clean-up) whose
    build's cell reports that the move has ended and nothing of that attempt remains. Lost allocations of an
    active build are claimed again, if they fit: if placement has none for it, unless its agent contradicts;
    if placement has another host or other amounts, only if its cell and its agent agree, and no agent has it
    on the other host. Builds in progress or in a move are never changed, nor builds that changed in the
    meantime. Exit 0 if nothing is wrong any more, else 1. See docs/adopting.md.
    """
    found = effective(cells=cells_named(cells), database_url=database, state_dir=state_dir)
    run(heal(found.settings, yes, as_json, say))


async def heal(settings: Settings, yes: bool, as_json: bool, say: Console) -> int:
    found = await audit(settings)
    proven, doubts = await repaired(settings, found, yes)
    known = {repair.sentence for repair in proven} | doubts.keys()
    listed = {**doubts, **{sentence: "" for sentence in found.breaches if sentence not in known}}
    if as_json:
        told = [{"is": repair.sentence, "would": repair.would, "mended": repair.did} for repair in proven]
        write_json({"proven": told, "listed": [_with_why(*item) for item in listed.items()]})
    else:
        for repair in proven:
            say.print(f"{repair.did or f'would be {repair.would}'}: {repair.sentence}", markup=False)
        for doubted in listed.items():
            say.print(f"for you to judge: {_with_why(*doubted)}", style="red", markup=False)
        if not found.breaches:
            say.print("nothing is wrong")
        elif proven and not yes:
            say.print("`berth heal --yes` mends what is proven", style="dim")
    return 0 if not listed and all(repair.done for repair in proven) else 1


def _with_why(sentence: str, why: str) -> str:
    return f"{sentence}; {why}" if why else sentence
