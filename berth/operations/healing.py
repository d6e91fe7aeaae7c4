"""Repairs what an audit found, if records prove what is right: releases leaked allocations, restores those of
active builds with ordinary claims, which fail if the consumer changes concurrently, and repairs differences
between agents' guests and the cells' records (`berth/operations/guest_repairs.py`)."""

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from berth import wiring
from berth.operations.adoptable import SHARES
from berth.operations.audit import Audit
from berth.operations.guest_differences import Agent, GuestComparison, compare_guests
from berth.operations.guest_repairs import REPAIRS, GuestMending, unanswered
from berth.operations.host_states import providers_by_id
from berth.operations.publishing import publish
from berth.operations.wrong_allocations import Leak, Misheld, Ownerless, Wrong, doubt
from berth.settings import Settings
from bus import topics
from bus.claims import (
    Choice,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    Held,
    Refused,
    Released,
    ReleaseRequested,
    Retired,
)
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.guests import BuildAdopted, BuildAdoptRequested, GuestsAsked, GuestsReported, ReportedGuest
from bus.queries import BuildStands, FindBuilds
from bus.resources import Provider
from bus.vocabulary import portions

SECONDS = 15.0  # until an agent or a cell answers
_AT_ONCE = 100  # builds in one query

_GuestsByAgent = Mapping[Agent, Mapping[str, Sequence[ReportedGuest]]]  # agent that answered → build → guests


@dataclass(frozen=True)
class Mend:
    """An active build with wrong allocations, and its cell's record or the reason why it is not repaired."""

    one: Misheld
    stands: BuildStands | None = None
    why_not: str = ""


class Mending:
    """Repairs the wrong allocations that an audit found."""

    def __init__(self, bus: Bus, seconds: float = SECONDS) -> None:
        self._bus = bus
        self._seconds = seconds
        self._reply_to = f"heal-{Clock().uuid()[:8]}"
        self.guests = GuestMending(bus, self._guests_of, self._adopt, self._reply_to, seconds)

    async def judged(self, found: Sequence[Misheld]) -> list[Mend]:
        """Ask cells and agents about each build with wrong allocations; decide which allocation is right."""
        stands = await self._stands(found)
        holders = await self._holders(found)
        wanted: dict[Agent, set[str]] = defaultdict(set)
        for misheld in found:
            if misheld.wrong != "outdated":
                wanted[misheld.place.cell, misheld.place.host.agent].add(misheld.place.build)
                for host in holders[misheld.place.build].values():
                    wanted[host.cell, host.agent].add(misheld.place.build)
        reported = await self._guests_of({agent: builds for agent, builds in wanted.items() if all(agent)})
        return [
            _judged(misheld, stands.get(misheld.place.build), holders[misheld.place.build], reported)
            for misheld in found
        ]

    async def mend(self, mend: Mend) -> str:
        """Repair the allocations of a build; return an empty text, or why the repair failed."""
        misheld, stands = mend.one, mend.stands
        assert stands is not None and not mend.why_not, mend
        held, generation = misheld.held, misheld.generation
        if misheld.wrong != "outdated":
            claim = _claim(misheld, stands)
            answer = await self._bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
            result = answer.results[0]
            if not isinstance(result, Claimed):
                return _lost(result)
            held, generation = claim.choices[0].allocations, result.generation
        assert generation is not None
        adoption = BuildAdoptRequested(
            build=misheld.place.build,
            cell=misheld.place.cell,
            chosen=replace(misheld.place.host, choice=Choice(allocations=held)),
            generation=generation,
            spec=stands.spec or stands.placed.spec,
            reply_to=self._reply_to,
        )
        return await self._adopt(adoption)

    async def _stands(self, found: Sequence[Misheld]) -> dict[str, BuildStands]:
        by_cell: dict[str, list[str]] = defaultdict(list)
        for misheld in found:
            by_cell[misheld.place.cell].append(misheld.place.build)
        known: dict[str, BuildStands] = {}
        find = self._bus.asker(topics.FIND_BUILDS, timeout=self._seconds)
        for cell, builds in by_cell.items():
            try:
                for some in portions(builds, _AT_ONCE):
                    answer = await find(FindBuilds(cell=cell, builds=some))
                    known |= {build.build: build for build in answer.builds}
            except (Unavailable, Unroutable):
                continue
        return known

    async def _holders(self, found: Sequence[Misheld]) -> dict[str, dict[str, Provider]]:
        """Return a mapping of each build to the hosts from which it has allocations although its cell has
        recorded another host. Pools of shared resources are left out."""
        elsewhere = [misheld for misheld in found if misheld.wrong == "elsewhere"]
        ids = (id_ for misheld in elsewhere for id_ in misheld.held)
        providers = await providers_by_id(self._bus, ids, self._seconds)
        hosts: dict[str, dict[str, Provider]] = {misheld.place.build: {} for misheld in found}
        for misheld in elsewhere:
            for id_ in misheld.held:
                provider = providers.get(id_)
                if provider is None or (SHARES in provider.traits and not provider.cell):
                    continue
                hosts[misheld.place.build][provider.root] = provider
        return hosts

    async def _guests_of(self, wanted: Mapping[Agent, set[str]]) -> _GuestsByAgent:
        """Ask agents for their guests of these builds; return the guests by agent and build.

        Agents that do not answer in time are missing from the result, or have only some of the builds.
        """
        reported: dict[Agent, dict[str, list[ReportedGuest]]] = {}
        open_: dict[Agent, set[str]] = {agent: set(builds) for agent, builds in wanted.items()}
        if not open_:
            return reported
        listener = await self._bus.listen(topics.AGENT_GUESTS.at(reply_to=self._reply_to))
        try:
            for (cell, agent), builds in wanted.items():
                for some in portions(sorted(builds), _AT_ONCE):
                    asked = GuestsAsked(cell=cell, agent=agent, builds=some, reply_to=self._reply_to)
                    try:
                        await publish(self._bus, asked, patience=0.0)
                    except Unroutable:
                        open_.pop((cell, agent), None)
            async with asyncio.timeout(self._seconds):
                while any(open_.values()):
                    page: GuestsReported = await listener.get()
                    of = reported.setdefault((page.cell, page.agent), {})
                    for build in page.builds:
                        of[build] = [guest for guest in page.guests if guest.build == build]
                    open_.get((page.cell, page.agent), set()).difference_update(page.builds)
        except TimeoutError:
            pass
        finally:
            await listener.stop()
        return reported

    async def _adopt(self, adoption: BuildAdoptRequested) -> str:
        """Send a cell its build's restored allocations; return an empty text, or why it rejected them."""
        listener = await self._bus.listen(topics.BUILD_ADOPTED.at(reply_to=self._reply_to))
        try:
            await publish(self._bus, adoption)
            async with asyncio.timeout(self._seconds):
                while True:
                    answer: BuildAdopted = await listener.get()
                    if answer.build == adoption.build:
                        return f"its cell: {answer.why}" if answer.outcome == "refused" else ""
        except TimeoutError:
            return "its cell has not confirmed it yet: try again"
        finally:
            await listener.stop()


def _judged(
    misheld: Misheld, stands: BuildStands | None, holders: Mapping[str, Provider], reported: _GuestsByAgent
) -> Mend:
    place = misheld.place
    if stands is None:
        return Mend(misheld, why_not=f"cell {place.cell} does not say how it stands")
    now = stands.status, stands.attempt, stands.generation, stands.chosen
    if now != ("active", place.attempt, place.generation, place.host):
        return Mend(misheld, why_not="it is being changed: try again")
    on_host = reported.get((place.cell, place.host.agent), {}).get(place.build)
    elsewhere = {
        host.host or root: reported.get((host.cell, host.agent), {}).get(place.build)
        for root, host in holders.items()
    }
    return Mend(misheld, stands, doubt(misheld, on_host, elsewhere))


def _claim(misheld: Misheld, stands: BuildStands) -> ConsumerClaim:
    """Return the claim that restores a build's allocations, valid only if the consumer's generation is
    unchanged. If the consumer was deleted, the build also joins its server group again.
    """
    spec = stands.spec or stands.placed.spec
    record = stands.placed.decision.record
    hints = record.asked.hints if record is not None and record.asked is not None else None
    joins = hints.group if hints is not None and misheld.generation is None else None
    return ConsumerClaim(
        consumer=misheld.place.build,
        generation=misheld.generation,
        choices=(Choice(allocations=misheld.place.host.choice.allocations),),
        project=spec.project,
        user=spec.user,
        group=joins,
    )


def _lost(result: ClaimResult) -> str:
    match result:
        case Refused(refusals=refusals):
            return f"it does not fit: {'; '.join(map(str, refusals))}"
        case Held():
            return "another client has claimed or released: try again"
        case Retired(why=why):
            return f"it has ended for placement ({why})"
        case _:
            return "placement is contended: try again"


GIVEN_BACK = "given back"
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
    """Return the violations of an audit that berth can repair, and the other wrong allocations with the
    reasons against a repair; make the repairs if `yes`."""
    leaks = [leak for leak in found.leaks if leak.proven]
    shown = [Healed(str(leak), GIVEN_BACK) for leak in leaks]
    try:
        async with Bus(wiring.transport(settings, "heal")):
            pass
    except Unavailable:  # leaks are proven by the databases alone
        if yes and (found.misheld or leaks):
            raise
        return shown, {str(misheld): "no running berth can be queried here" for misheld in found.misheld}
    guests = await compare_guests(settings)
    async with Bus(wiring.transport(settings, "heal")) as bus:
        proven = [await _release_leak(bus, leak) for leak in leaks] if yes else shown
        by_guests, doubts = await _mended_guests(bus, found, guests, yes)
        repaired_with = {each.sentence for each in by_guests}
        remaining = [misheld for misheld in found.misheld if str(misheld) not in repaired_with]
        mended, more_doubts = await _mended(bus, remaining, yes)
    return [*proven, *by_guests, *mended], doubts | more_doubts


async def _release_leak(bus: Bus, leak: Leak) -> Healed:
    """Release an unneeded holder consumer's allocations unless it has changed since the audit."""
    return await _release(bus, Ownerless(leak.consumer, leak.generation, str(leak)))


async def _release(bus: Bus, found: Ownerless) -> Healed:
    consumer, generation, sentence = found.consumer, found.generation, str(found)
    release = ReleaseRequested(consumer=consumer, generation=generation, retire=found.ended, cell=found.cell)
    result = (await bus.asker(topics.RELEASE)(release)).result
    if isinstance(result, Released):
        return Healed(sentence, GIVEN_BACK, GIVEN_BACK, done=True)
    return Healed(sentence, GIVEN_BACK, f"not given back ({type(result).__name__.lower()})")


async def _mended(bus: Bus, found: Sequence[Misheld], yes: bool) -> tuple[list[Healed], dict[str, str]]:
    mending = Mending(bus)
    proven: list[Healed] = []
    doubts: dict[str, str] = {}
    for mend in await mending.judged(found) if found else ():
        sentence, would = str(mend.one), _MENDED[mend.one.wrong]
        if mend.why_not:
            doubts[sentence] = mend.why_not
        else:
            proven.append(await _repaired(sentence, would, partial(mending.mend, mend), yes))
    return proven, doubts


async def _repaired(sentence: str, would: str, mend: Callable[[], Awaitable[str]], yes: bool) -> Healed:
    """Return a violation with the result of its repair, or without a result if `yes` is not set.

    `sentence`: the violation. `would`: the name of the repair, such as "adopted". `mend`: makes the repair;
    returns why the repair failed, or an empty text.
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
    for repair in await mending.judged(guests):
        sentence, would = str(repair.difference), repair.would
        if repair.why_not:
            doubts[sentence] = repair.why_not
        else:
            proven.append(await _repaired(sentence, would, partial(mending.mend, repair), yes))
    with_guests = {guest.build: agent for agent, listed in guests.books.items() for guest in listed}
    adopted = {each.sentence.partition(":")[0]: each for each in proven if each.would == REPAIRS["unknown"]}
    destroyed = {each.sentence.partition(":")[0] for each in proven if each.would == REPAIRS["deleted"]}
    deleted = {each.sentence.partition(":")[0]: each for each in proven if each.would == REPAIRS["missing"]}
    for misheld in found.misheld:
        if misheld.place.build in deleted:  # a deletion releases what the build holds
            proven.append(dataclasses.replace(deleted[misheld.place.build], sentence=str(misheld)))
    for each in found.ownerless:
        sentence = str(each)
        if each.consumer in adopted:  # with these allocations
            proven.append(dataclasses.replace(adopted[each.consumer], sentence=sentence))
        elif each.doubt:
            doubts[sentence] = each.doubt
        elif each.consumer in with_guests and each.consumer not in destroyed:
            doubts[sentence] = f"agent {with_guests[each.consumer][1]} has a guest of it"
        elif why := unanswered(guests):
            doubts[sentence] = why
        elif yes:
            proven.append(await _release(bus, each))
        else:
            proven.append(Healed(sentence, GIVEN_BACK))
    return proven, doubts
