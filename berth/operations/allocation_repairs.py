"""Repairs allocations of active builds with ordinary claims, which fail if the consumer changes concurrently,
and reports the restored allocations to the builds' cells.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from berth.features import added, messages
from berth.kit.audit_records import HealingPart, Recording
from berth.kit.hosts import providers_by_id
from berth.kit.publishing import publish
from berth.operations.guest_differences import Agent
from berth.operations.guest_repairs import NOT_RECORDED, GuestMending, lost
from berth.operations.wrong_allocations import Misheld, doubt
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.guests import GuestsAsked, GuestsReported, ReportedGuest
from bus.parts import ClaimParts
from bus.queries import BuildStands, FindBuilds
from bus.reports import SHARES
from bus.resources import Provider
from bus.vocabulary import portions

SECONDS = 15.0  # time limit for the answer of an agent or a cell
_AT_ONCE = 100  # builds in one query

_GuestsByAgent = Mapping[Agent, Mapping[str, Sequence[ReportedGuest]]]  # agent that answered → build → guests


@dataclass(frozen=True)
class Mend:
    """An active build's wrong allocations (`misheld`), the cell's record of the build (`stands`), and the
    reason against a repair of the allocations (`why_not`; empty: repair them).
    """

    misheld: Misheld
    stands: BuildStands | None = None
    why_not: str = ""


class Mending:
    """Repairs the wrong allocations that an audit found."""

    def __init__(self, bus: Bus, seconds: float = SECONDS) -> None:
        self._bus = bus
        self._seconds = seconds
        self._reply_to = f"heal-{Clock().uuid()[:8]}"
        self.guests = GuestMending(bus, self._guests_of, self._record, self._reply_to, seconds)

    async def judged(self, found: Sequence[Misheld]) -> list[Mend]:
        """Ask cells and agents about each build with wrong allocations; return for each the cell's record of
        the build, or the reason against a repair.
        """
        stands = await self._stands(found)
        holders = await self._holders(found)
        wanted: dict[Agent, set[str]] = defaultdict(set)
        for misheld in found:
            if misheld.wrong != "outdated":
                wanted[misheld.place.cell, misheld.place.host.agent].add(misheld.place.build)
                for host in holders[misheld.place.build].values():
                    wanted[host.cell, host.agent].add(misheld.place.build)
        reported = await self._guests_of({agent: builds for agent, builds in wanted.items() if all(agent)})
        mends = [
            _judged(misheld, stands.get(misheld.place.build), holders[misheld.place.build], reported)
            for misheld in found
        ]
        if added(HealingPart, "healing"):
            return mends
        return [replace(mend, why_not=mend.why_not or NOT_RECORDED) for mend in mends]

    async def mend(self, mend: Mend) -> str:
        """Repair the allocations of a build; return "", or why the repair failed."""
        misheld, stands = mend.misheld, mend.stands
        assert stands is not None and not mend.why_not, mend
        held, generation = misheld.held, misheld.generation
        if misheld.wrong != "outdated":
            claim = _claim(misheld, stands)
            answer = await self._bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
            result = answer.results[0]
            if not isinstance(result, Claimed):
                return lost(result)
            held, generation = claim.choices[0].allocations, result.generation
        assert generation is not None
        chosen = structs.replace(misheld.place.host, choice=Choice(allocations=held))
        spec = stands.spec or stands.placed.spec
        return await self._record(
            Recording(misheld.place.build, misheld.place.cell, chosen, generation, spec)
        )

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
        """Return for each build the hosts, by root, from which it has allocations although its cell has
        recorded another host. Pools of shared resources are left out.
        """
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
        """Ask each agent in `wanted` for its guests of the given builds; return the guests by agent and
        build.

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

    async def _record(self, recording: Recording) -> str:
        """Let a cell record an instance with its allocations; return "", or why the cell did not."""
        for part in added(HealingPart, "healing"):
            return await part.record(self._bus, recording, self._reply_to, self._seconds)
        return NOT_RECORDED


def _judged(
    misheld: Misheld, stands: BuildStands | None, holders: Mapping[str, Provider], reported: _GuestsByAgent
) -> Mend:
    place = misheld.place
    if stands is None:
        return Mend(misheld, why_not=f"cell {place.cell} did not report its state")
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
    unchanged. If the consumer was deleted, parts of its request are restored, such as its server group.
    """
    spec = stands.spec or stands.placed.spec
    record = stands.placed.decision.record
    asked = record.asked if record is not None and misheld.generation is None else None
    parts = asked.parts if asked is not None and asked.parts is not None else ()
    restored = {type_: made for part in messages() for type_, made in part.restored.items()}
    return ConsumerClaim(
        consumer=misheld.place.build,
        generation=misheld.generation,
        choices=(Choice(allocations=misheld.place.host.choice.allocations),),
        project=spec.project,
        user=spec.user,
        parts=ClaimParts(*(restored[type(part)](part) for part in parts if type(part) in restored)),
    )
