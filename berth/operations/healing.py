"""Repairs what an audit found, where the repair is proven."""

from collections.abc import Sequence
from dataclasses import dataclass

from berth import wiring
from berth.operations.audit import Audit
from berth.operations.leaks import Leak
from berth.operations.repairs import Mending
from berth.operations.wrong_allocations import Misheld, Wrong
from berth.settings import Settings
from bus import topics
from bus.claims import Released, ReleaseRequested
from bus.delivery.runner import Bus
from bus.errors import Unavailable

GIVEN_BACK = "given back"
_MENDED: dict[Wrong, str] = {
    "missing": "claimed back",
    "elsewhere": "claimed back",
    "amounts": "claimed anew",
    "outdated": "told to its cell",
}


@dataclass(frozen=True)
class Healed:
    """A breach that is proven, and what was done about it."""

    sentence: str
    would: str  # be done
    did: str = ""  # or why it could not be done
    done: bool = False


async def repaired(settings: Settings, found: Audit, yes: bool) -> tuple[list[Healed], dict[str, str]]:
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
    """Release the leak, unless it changed since it was read."""
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
