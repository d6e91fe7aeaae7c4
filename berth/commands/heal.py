"""`berth heal`: what an audit found and can be proven is mended; all else is listed, with why not."""

from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.audit import audit
from berth.commands.options import Cells, Database, Json, StateDir, cells_named
from berth.commands.terminal import effective, run, say, write_json
from berth.leaks import Leak
from berth.settings import Settings
from bus import topics
from bus.claims import Released, ReleaseRequested
from bus.delivery.runner import Bus

commands = typer.Typer()


@commands.command("heal", rich_help_panel="Look and check")
def heal_command(
    yes: Annotated[bool, typer.Option("--yes", help="Mend it; without this it is only shown.")] = False,
    as_json: Json = False,
    cells: Cells = None,
    database: Database = None,
    state_dir: StateDir = None,
) -> None:
    """Give back room that nobody needs any more, where its cell proves it; list what only you can judge.

    Proven is a keeper (of a move, or of a clean-up) whose build's cell says that the move is over and that
    nothing of that attempt is left. Nothing else is touched, nor is a keeper that changed meanwhile.
    Exit 0 when nothing is wrong by now, else 1.
    """
    found = effective(cells=cells_named(cells), database_url=database, state_dir=state_dir)
    run(heal(found.settings, yes, as_json, say))


async def heal(settings: Settings, yes: bool, as_json: bool, say: Console) -> int:
    found = await audit(settings)
    proven = [leak for leak in found.leaks if leak.proven]
    mended = dict.fromkeys((leak.consumer for leak in proven), "")
    if yes and proven:
        async with Bus(wiring.transport(settings, "heal")) as bus:
            for leak in proven:
                mended[leak.consumer] = await _give_back(bus, leak)
    sentences = {str(leak): mended[leak.consumer] for leak in proven}
    listed = [sentence for sentence in found.breaches if sentence not in sentences]
    if as_json:
        write_json(
            {"proven": [{"is": one, "mended": done} for one, done in sentences.items()], "listed": listed}
        )
    else:
        for sentence, done in sentences.items():
            say.print(f"{done or 'would be given back'}: {sentence}", markup=False)
        for sentence in listed:
            say.print(f"for you to judge: {sentence}", style="red", markup=False)
        if not found.breaches:
            say.print("nothing is wrong")
        elif proven and not yes:
            say.print("`berth heal --yes` gives back what is proven", style="dim")
    return 0 if not listed and all(done == GIVEN_BACK for done in mended.values()) else 1


GIVEN_BACK = "given back"


async def _give_back(bus: Bus, leak: Leak) -> str:
    """Only while it is as it was seen."""
    release = ReleaseRequested(consumer=leak.consumer, generation=leak.generation)
    result = (await bus.asker(topics.RELEASE)(release)).result
    return GIVEN_BACK if isinstance(result, Released) else f"not given back ({type(result).__name__.lower()})"
