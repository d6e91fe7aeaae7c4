"""Repairs what an audit found, if records prove what is right: releases leaked allocations, restores
allocations of active builds with ordinary claims, which fail if the consumer changes concurrently, and
repairs differences between agents' guests and the cells' records (`berth/operations/guest_repairs.py`).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from berth import wiring
from berth.operations.allocation_repairs import Mending
from berth.operations.audit import Audit
from berth.operations.guest_differences import Agent, GuestComparison, compare_guests
from berth.operations.guest_repairs import REPAIRS, unanswered
from berth.operations.wrong_allocations import Misheld, Ownerless, Wrong
from berth.operators import operator_bus
from berth.settings import Settings
from bus import topics
from bus.claims import Released, ReleaseRequested
from bus.delivery.runner import Bus
from bus.errors import Unavailable

RELEASED = "released"
_MENDED: dict[Wrong, str] = {
    "missing": "claimed back",
    "elsewhere": "claimed back",
    "amounts": "claimed again",
    "outdated": "reported to its cell",
}


@dataclass(frozen=True)
class Healed:
    """A violation that berth can repair without doubt, and the result of the repair if it was made."""

    sentence: str
    would: str  # the repair that is possible
    did: str = ""  # the repair that was made, or why it failed
    done: bool = False


async def repaired(settings: Settings, found: Audit, yes: bool) -> tuple[list[Healed], dict[str, str]]:
    """Return the violations of an audit that berth can repair, and the other violations, each with the reason
    against a repair; make the repairs if `yes`.
    """
    leaks = [leak for leak in found.leaks if leak.proven]
    shown = [Healed(str(leak), RELEASED) for leak in leaks]
    try:
        async with Bus(wiring.transport(settings, "heal")):
            pass
    except Unavailable:  # leaks are proven by the databases alone
        wrong = [*map(str, found.misheld), *map(str, found.doubled)]
        if yes and (wrong or leaks):
            raise
        return shown, dict.fromkeys(wrong, "no running berth can be queried here")
    guests = await compare_guests(settings)
    async with operator_bus(settings, wiring.transport(settings, "heal"), "berth heal") as bus:
        ownerless = [Ownerless(leak.consumer, leak.generation, str(leak)) for leak in leaks]
        proven = [await _release(bus, each) for each in ownerless] if yes else shown
        single, undecided = await _mended_doubles(bus, found, guests, yes)
        by_guests, doubts = await _mended_guests(bus, found, guests, yes)
        repaired_with = {each.sentence for each in by_guests}
        remaining = [misheld for misheld in found.misheld if str(misheld) not in repaired_with]
        mended, more_doubts = await _mended(bus, remaining, yes)
    return [*proven, *single, *by_guests, *mended], undecided | doubts | more_doubts


async def _release(bus: Bus, found: Ownerless) -> Healed:
    consumer, generation, sentence = found.consumer, found.generation, str(found)
    release = ReleaseRequested(consumer=consumer, generation=generation, retire=found.ended, cell=found.cell)
    result = (await bus.asker(topics.RELEASE)(release)).result
    if isinstance(result, Released):
        return Healed(sentence, RELEASED, RELEASED, done=True)
    return Healed(sentence, RELEASED, f"not released ({type(result).__name__.lower()})")


async def _mended_doubles(
    bus: Bus, found: Audit, guests: GuestComparison, yes: bool
) -> tuple[list[Healed], dict[str, str]]:
    """Delete each build that several cells know, except in the cell with its allocations and its guest.
    Return the repairs (made if `yes`), and the violations that cannot be repaired, with the reason.
    """
    mending = Mending(bus).guests
    proven: list[Healed] = []
    doubts: dict[str, str] = {}
    for doubled in found.doubled:
        if why := doubled.doubt(guests.books):
            doubts[str(doubled)] = why
            continue
        for record in doubled.records:
            if record != doubled.right_record():
                mend = partial(mending.delete, doubled.build, record.cell)
                proven.append(await _repaired(str(doubled), f"ended in cell {record.cell}", mend, yes))
    return proven, doubts


async def _mended(bus: Bus, found: Sequence[Misheld], yes: bool) -> tuple[list[Healed], dict[str, str]]:
    mending = Mending(bus)
    proven: list[Healed] = []
    doubts: dict[str, str] = {}
    for mend in await mending.judged(found) if found else ():
        sentence, would = str(mend.misheld), _MENDED[mend.misheld.wrong]
        if mend.why_not:
            doubts[sentence] = mend.why_not
        else:
            proven.append(await _repaired(sentence, would, partial(mending.mend, mend), yes))
    return proven, doubts


async def _repaired(sentence: str, would: str, mend: Callable[[], Awaitable[str]], yes: bool) -> Healed:
    """Return a violation with the result of its repair, or without a result if `yes` is not set.

    `sentence`: the violation. `would`: the name of the repair, such as "adopted". `mend`: makes the repair;
    returns why the repair failed, or "".
    """
    if not yes:
        return Healed(sentence, would)
    why = await mend()
    return Healed(sentence, would, f"not {would} ({why})" if why else would, done=not why)


async def _mended_guests(
    bus: Bus, found: Audit, guests: GuestComparison, yes: bool
) -> tuple[list[Healed], dict[str, str]]:
    """Repair differences between guests and records, and release consumers without a build, if `yes` is set.

    A violation that another repair removes counts as repaired. Return the repairs, and the remaining
    violations with the reason why each is not repaired.
    """
    mending = Mending(bus).guests
    proven: list[Healed] = []
    doubts: dict[str, str] = {}
    destroyed = set[tuple[Agent, str, int, str]]()
    for repair in await mending.judged(guests):
        sentence, would = str(repair.difference), repair.would
        if (guest := repair.difference.guest) and would == REPAIRS["deleted"] and not repair.why_not:
            destroyed.add((repair.difference.agent, guest.build, guest.attempt, guest.root))
        if repair.why_not:
            doubts[sentence] = repair.why_not
        else:
            proven.append(await _repaired(sentence, would, partial(mending.mend, repair), yes))
    with_guests = {
        guest.build: agent
        for agent, listed in guests.books.items()
        for guest in listed
        if (agent, guest.build, guest.attempt, guest.root) not in destroyed
    }
    adopted = {each.sentence.partition(":")[0]: each for each in proven if each.would == REPAIRS["unknown"]}
    deleted = {each.sentence.partition(":")[0]: each for each in proven if each.would == REPAIRS["missing"]}
    for misheld in found.misheld:
        if misheld.place.build in deleted:  # a deletion releases what the build holds
            proven.append(dataclasses.replace(deleted[misheld.place.build], sentence=str(misheld)))
    for each in found.ownerless:
        sentence = str(each)
        if each.consumer in adopted:  # the adopted build uses the consumer's allocations
            proven.append(dataclasses.replace(adopted[each.consumer], sentence=sentence))
        elif each.doubt:
            doubts[sentence] = each.doubt
        elif each.consumer in with_guests:
            doubts[sentence] = f"agent {with_guests[each.consumer][1]} has a guest of it"
        elif why := unanswered(guests):
            doubts[sentence] = why
        elif yes:
            proven.append(await _release(bus, each))
        else:
            proven.append(Healed(sentence, RELEASED))
    return proven, doubts
