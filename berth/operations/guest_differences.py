"""Compares the guests that agents report with the records of cells, and finds missing and unknown guests.

The databases alone cannot show such differences: restored databases agree with each other, but lack recent
changes of the hosts. Only builds that did not change while their agents were queried are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from berth import composition, worker_roles
from berth.kit.publishing import publish
from berth.operations.cell_records import builds_by_cell, places_by_cell, released_by_cell
from berth.settings import Settings
from bus import topics
from bus.claims import Retired
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.guests import GuestsAsked, ReportedGuest
from bus.vocabulary import portions

if TYPE_CHECKING:
    from berth.operations.stored_builds import PlaceByCell

SECONDS = 15.0  # time limit for an agent's answer with a page of its guests
_AT_ONCE = 50  # agents queried at a time
DELETED, FAILED = "its cell has deleted it", "its build has failed"

Agent = tuple[str, str]  # cell and name


Wrong = Literal["missing", "unknown", "elsewhere", "deleted", "newer"]


@dataclass(frozen=True)
class GuestDifference:
    """A difference between an agent's guests and the cells' records of one build."""

    wrong: Wrong
    build: str
    sentence: str
    place: PlaceByCell | None = None  # the cell's record, if the build is active and did not change
    agent: Agent = ("", "")  # the agent that has the guest or, if the guest is missing, should have it
    guest: ReportedGuest | None = None  # None: it is missing

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class CellRecords:
    """The builds that the cells recorded, before and after their agents were queried."""

    builds: Collection[str]  # all recorded builds
    stood: Mapping[str, PlaceByCell]  # builds that stayed active and unchanged
    # pairs of a build and a host's root on which the build's holder consumer has allocations: the cell
    # destroys the guest there
    held: Collection[tuple[str, str]]
    # builds that had ended before the query, each with the text DELETED or FAILED
    ended: Mapping[str, str] = field(default_factory=dict)
    # builds that were released before the query, each with its last attempt
    released: Mapping[str, int] = field(default_factory=dict)

    def difference(self, guest: ReportedGuest) -> tuple[Wrong, str] | None:
        """Return how a guest differs from the record of its build, with the reason, or None."""
        build = guest.build
        if build in self.ended:
            return None if (build, guest.root) in self.held else ("deleted", self.ended[build])
        if build in self.released:
            if (build, guest.root) in self.held:
                return None
            last = self.released[build]
            wrong: Wrong = "deleted" if guest.attempt <= last else "newer"
            return wrong, f"its cell has shelved it after attempt {last}"
        if build not in self.builds:
            return "unknown", "no cell knows it"
        known = self.stood.get(build)
        if known is None or build in self._held_builds:
            return None
        if (guest.attempt, guest.root) == (known.attempt, known.host.root):
            return None
        return "elsewhere", f"by its cell it is attempt {known.attempt} on {known.host.host}"

    @cached_property
    def _held_builds(self) -> set[str]:
        return {build for build, _ in self.held}


@dataclass(frozen=True)
class GuestComparison:
    """The differences between the guests of all agents and the cells' records."""

    differences: list[GuestDifference]
    books: Mapping[Agent, Collection[ReportedGuest]]  # the guests of each agent that answered
    silent: Collection[Agent] = ()  # agents that did not answer
    unread: Collection[str] = ()  # registered cells without a database in the settings
    # builds of unknown guests whose ids placement has retired
    retired: Mapping[str, Retired] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Return sentences about agents that did not answer, so that their guests are not compared."""
        return [f"agent {agent} of cell {cell} did not list its guests" for cell, agent in self.silent]


async def compare_guests(settings: Settings) -> GuestComparison:
    """Query all agents of the settings' cells for their guests, and compare the guests with the cells'
    records.
    """
    from berth.operations.stored_claims import agents, places_of_holders, registered_cells, retired_as

    placement = composition.database_of(settings, worker_roles.Role("placement"))
    try:
        asked = {agent_key for agent_key in await agents(placement) if agent_key[0] in settings.cell_names}
        known = await builds_by_cell(settings, settings.cell_names)
        before = await places_by_cell(settings, settings.cell_names)
        released_before = await released_by_cell(settings, settings.cell_names)
        async with Bus(composition.transport(settings, "audit")) as bus:
            books, silent = await _books(bus, asked)
        builds = await builds_by_cell(settings, settings.cell_names)
        after = await places_by_cell(settings, settings.cell_names)
        released_after = await released_by_cell(settings, settings.cell_names)
        held = await places_of_holders(placement)
        unread = await registered_cells(placement) - {*settings.cell_names}
        unknown = {guest.build for guests in books.values() for guest in guests} - builds.builds.keys()
        retired = await retired_as(placement, unknown)
    finally:
        await placement.close()
    # `berth audit heal` first decides which cell has a build that several cells know
    single = builds.builds.keys() - builds.doubled.keys()
    stood = {build: place for build, place in after.items() if before.get(build) == place and build in single}
    ended = dict.fromkeys(known.failed & builds.failed, FAILED)
    ended |= dict.fromkeys(known.deleted & builds.deleted, DELETED)
    released = {
        build: released_build.attempt
        for build, released_build in released_after.items()
        if released_before.get(build) == released_build and build in single
    }
    records = CellRecords(builds.builds.keys(), stood, held, ended, released)
    found = differences(books, records)
    return GuestComparison(found, books, silent, unread, retired)


def differences(
    books: Mapping[Agent, Collection[ReportedGuest]], records: CellRecords
) -> list[GuestDifference]:
    """Return missing guests, unknown guests, guests of deleted, failed or shelved builds, and guests on
    another host than their build. `books`: the guests of each agent that answered.
    """
    found = []
    recorded = {agent: {(g.build, g.attempt, g.root) for g in guests} for agent, guests in books.items()}
    for build, place in sorted(records.stood.items()):
        agent = place.cell, place.host.agent
        if agent in recorded and (build, place.attempt, place.host.root) not in recorded[agent]:
            sentence = (
                f"{build}: active on {place.host.host} in cell {place.cell},"
                f" and agent {place.host.agent} has no guest of its attempt {place.attempt} there"
            )
            found.append(GuestDifference("missing", build, sentence, place, agent))
    for (cell, name), guests in sorted(books.items()):
        for guest in guests:
            if (difference := records.difference(guest)) is not None:
                wrong, why = difference
                stood = records.stood[guest.build] if wrong == "elsewhere" else None
                has = f"{guest.build}: agent {name} of cell {cell} has a guest of its attempt {guest.attempt}"
                sentence = f"{has}, and {why}"
                found.append(GuestDifference(wrong, guest.build, sentence, stood, (cell, name), guest))
    return found


async def _books(bus: Bus, agents: Collection[Agent]) -> tuple[dict[Agent, list[ReportedGuest]], list[Agent]]:
    """Ask agents for their guests; return the guests by agent, and the agents that did not answer."""
    reply_to = f"audit-{Clock().uuid()[:8]}"
    replies = await bus.listen(topics.AGENT_GUESTS.at(reply_to=reply_to))
    read: dict[Agent, list[ReportedGuest]] = {}
    waiting: dict[Agent, str] = {}  # agents that are queried, and the last build of the page

    async def ask(agent: Agent, after: str) -> None:
        asked = GuestsAsked(cell=agent[0], agent=agent[1], builds=(), reply_to=reply_to, after=after)
        waiting[agent] = after
        try:
            await publish(bus, asked, patience=0.0)
        except Unroutable:
            silent.add(agent)
            del waiting[agent]

    silent = set[Agent]()
    try:
        for some in portions(sorted(agents), _AT_ONCE):
            for agent in some:
                await ask(agent, "")
            while waiting:
                try:
                    async with asyncio.timeout(SECONDS):
                        page = await replies.get()
                except TimeoutError:
                    break
                agent = page.cell, page.agent
                if waiting.get(agent) != page.after:  # a repeated answer
                    continue
                del waiting[agent]
                read.setdefault(agent, []).extend(page.guests)
                if page.more and page.guests:
                    await ask(agent, page.guests[-1].build)
            silent |= waiting.keys()
            waiting.clear()
    finally:
        await replies.stop()
    return {agent: guests for agent, guests in read.items() if agent not in silent}, sorted(silent)
