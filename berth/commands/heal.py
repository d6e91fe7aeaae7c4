"""`berth heal`: what an audit found and can be proven is mended; all else is listed, with why not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from berth import wiring
from berth.audit import Audit, audit
from berth.commands.options import Cells, Database, Json, StateDir, cells_named
from berth.commands.terminal import effective, run, say, write_json
from berth.leaks import Leak
from berth.repairs import Mending
from berth.settings import Settings
from berth.wrong_allocations import Misheld, Wrong
from bus import topics
from bus.claims import Released, ReleaseRequested
from bus.delivery.runner import Bus
from bus.errors import Unavailable

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


@dataclass(frozen=True)
class Healed:
    """A breach that is proven, and what was done about it."""

    sentence: str
    would: str  # be done
    did: str = ""  # or why it could not be done
    done: bool = False


async def heal(settings: Settings, yes: bool, as_json: bool, say: Console) -> int:
    found = await audit(settings)
    proven, doubts = await _healed(settings, found, yes)
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


GIVEN_BACK = "given back"
_MENDED: dict[Wrong, str] = {
    "missing": "claimed back",
    "elsewhere": "claimed back",
    "amounts": "claimed anew",
    "outdated": "told to its cell",
}


async def _healed(settings: Settings, found: Audit, yes: bool) -> tuple[list[Healed], dict[str, str]]:
    """Return the proven repairs with their results, and the doubtful cases with the reason."""
    leaks = [leak for leak in found.leaks if leak.proven]
    if not found.misheld and not (yes and leaks):
        return [Healed(str(leak), GIVEN_BACK) for leak in leaks], {}
    if not yes and not await _runs(settings):
        shown = [Healed(str(leak), GIVEN_BACK) for leak in leaks]
        return shown, {str(misheld): "no berth runs here that could be asked" for misheld in found.misheld}
    async with Bus(wiring.transport(settings, "heal")) as bus:
        proven = [await _give_back(bus, leak) if yes else Healed(str(leak), GIVEN_BACK) for leak in leaks]
        mended, doubts = await _mended(bus, found.misheld, yes)
    return [*proven, *mended], doubts


async def _runs(settings: Settings) -> bool:
    """Return whether a running berth is needed: the databases alone prove some repairs."""
    try:
        async with Bus(wiring.transport(settings, "heal")):
            return True
    except Unavailable:
        return False


async def _give_back(bus: Bus, leak: Leak) -> Healed:
    """Only while it is as it was seen."""
    release = ReleaseRequested(consumer=leak.consumer, generation=leak.generation)
    result = (await bus.asker(topics.RELEASE)(release)).result
    if isinstance(result, Released):
        return Healed(str(leak), GIVEN_BACK, GIVEN_BACK, done=True)
    return Healed(str(leak), GIVEN_BACK, f"not given back ({type(result).__name__.lower()})")


async def _mended(bus: Bus, found: Sequence[Misheld], yes: bool) -> tuple[list[Healed], dict[str, str]]:
    mending = Mending(bus)
    proven: list[Healed] = []
    doubts: dict[str, str] = {}
    for mend in await mending.judged(found) if found else ():
        sentence, would = str(mend.one), _MENDED[mend.one.wrong]
        if mend.why_not:
            doubts[sentence] = mend.why_not
        elif not yes:
            proven.append(Healed(sentence, would))
        else:
            why = await mending.mend(mend)
            proven.append(Healed(sentence, would, f"not {would} ({why})" if why else would, done=not why))
    return proven, doubts


def _with_why(sentence: str, why: str) -> str:
    return f"{sentence}; {why}" if why else sentence
