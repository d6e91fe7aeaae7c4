"""Repairs what an audit found, if records prove what is right: releases leaked allocations, restores
allocations of active builds with ordinary claims, which fail if the consumer changes concurrently, and
repairs differences between agents' guests and the cells' records (`berth/operations/guest_repairs.py`).
"""

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from berth import composition
from berth.operations.allocation_repairs import Mending
from berth.operations.audit import Audit
from berth.operations.guest_differences import Agent, GuestComparison, compare_guests
from berth.operations.guest_repairs import REPAIRS, RetiredChoice, unanswered
from berth.operations.wrong_allocations import Ownerless, Wrong
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


@dataclass
class _Repairs:
    """The repairs of violations (`proven`), made if `yes`, and the reasons against the repair of others."""

    bus: Bus
    yes: bool
    proven: list[Healed] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)

    async def add(
        self, sentence: str, would: str, mend: Callable[[], Awaitable[str]], why_not: str = ""
    ) -> None:
        """Repair a violation, unless there is a reason against it (`why_not`). `would` names the repair, such
        as "adopted". `mend` makes the repair, and returns why it failed, or "".
        """
        if why_not:
            self.doubts[sentence] = why_not
        elif not self.yes:
            self.proven.append(Healed(sentence, would))
        else:
            why = await mend()
            did = f"not {would} ({why})" if why else would
            self.proven.append(Healed(sentence, would, did, done=not why))

    async def release(self, found: Ownerless, why_not: str = "") -> None:
        await self.add(str(found), RELEASED, partial(_release, self.bus, found), why_not)


async def repaired(
    settings: Settings, found: Audit, yes: bool, retired: RetiredChoice = ""
) -> tuple[list[Healed], dict[str, str]]:
    """Return the violations of an audit that berth can repair, and the other violations, each with the reason
    against a repair; make the repairs if `yes`. `retired`: what the operator wants of guests without a build
    whose ids placement has retired.
    """
    leaks = [leak for leak in found.leaks if leak.proven]
    try:
        async with Bus(composition.transport(settings, "heal")):
            pass
    except Unavailable:  # leaks are proven by the databases alone
        wrong = [*map(str, found.misheld), *map(str, found.doubled)]
        if yes and (wrong or leaks):
            raise
        shown = [Healed(str(leak), RELEASED) for leak in leaks]
        return shown, dict.fromkeys(wrong, "no running berth can be queried here")
    guests = await compare_guests(settings)
    async with operator_bus(settings, composition.transport(settings, "heal"), "berth audit heal") as bus:
        repairs = _Repairs(bus, yes)
        for leak in leaks:
            await repairs.release(Ownerless(leak.consumer, leak.generation, str(leak)))
        await _mend_doubles(repairs, found, guests)
        await _mend_guests(repairs, found, guests, retired)
        await _mend_allocations(repairs, found)
    return repairs.proven, repairs.doubts


async def _release(bus: Bus, found: Ownerless) -> str:
    """Release allocations; return why placement refuses, or ""."""
    consumer, generation = found.consumer, found.generation
    release = ReleaseRequested(
        consumer=consumer,
        generation=generation,
        retire=found.ended,
        cell=found.cell,
        revivable=bool(found.cell),  # only a shelved build's finding names a cell
    )
    result = (await bus.asker(topics.RELEASE)(release)).result
    return "" if isinstance(result, Released) else type(result).__name__.lower()


async def _mend_doubles(repairs: _Repairs, found: Audit, guests: GuestComparison) -> None:
    """Delete each build that several cells know, except in the cell with its allocations and its guest."""
    mending = Mending(repairs.bus).guests
    for doubled in found.doubled:
        why_not, right = doubled.doubt(guests.books), doubled.right_record()
        for record in doubled.records:
            if why_not or record != right:
                keeper = right.cell if right is not None else ""
                mend = partial(mending.delete_double, doubled.build, record.cell, keeper)
                await repairs.add(str(doubled), f"ended in cell {record.cell}", mend, why_not)


async def _mend_allocations(repairs: _Repairs, found: Audit) -> None:
    """Restore allocations that differ from the cells' records, unless another repair has removed that."""
    repaired_with = {each.sentence for each in repairs.proven}
    remaining = [misheld for misheld in found.misheld if str(misheld) not in repaired_with]
    mending = Mending(repairs.bus)
    for mend in await mending.judged(remaining) if remaining else ():
        would = _MENDED[mend.misheld.wrong]
        await repairs.add(str(mend.misheld), would, partial(mending.mend, mend), mend.why_not)


async def _mend_guests(
    repairs: _Repairs, found: Audit, guests: GuestComparison, retired: RetiredChoice
) -> None:
    """Repair differences between guests and records, and release consumers without a build. A violation that
    another repair removes counts as repaired.
    """
    mending, proven = Mending(repairs.bus).guests, repairs.proven
    destroyed = set[tuple[Agent, str, int, str]]()
    for repair in await mending.judged(guests, retired):
        difference, would = repair.difference, repair.would
        if (guest := difference.guest) and would == REPAIRS["deleted"] and not repair.why_not:
            destroyed.add((difference.agent, guest.build, guest.attempt, guest.root))
        await repairs.add(str(difference), would, partial(mending.mend, repair), repair.why_not)
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
        if each.consumer in adopted:  # the adopted build uses the consumer's allocations
            proven.append(dataclasses.replace(adopted[each.consumer], sentence=str(each)))
        elif each.consumer in with_guests:
            agent = with_guests[each.consumer][1]
            await repairs.release(each, each.doubt or f"agent {agent} has a guest of it")
        else:
            await repairs.release(each, each.doubt or unanswered(guests))
