"""Compares the guests that agents report with the records of cells, and finds missing and unknown guests.

The databases alone cannot show these: after a restore they agree with each other, but are older than the
hosts. Only builds that did not change while their agents were queried are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from berth import wiring, worker_roles
from berth.operations.audit import builds_by_cell, places_by_cell
from berth.operations.publishing import publish
from berth.settings import Settings
from bus import topics
from bus.chunks import portions
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unroutable
from bus.guests import GuestsAsked, ReportedGuest

if TYPE_CHECKING:
    from cell_conductor import PlaceByCell

SECONDS = 15.0  # until an agent sends a page of its guests
_AT_ONCE = 50  # agents queried at a time

Agent = tuple[str, str]  # cell and name


async def compare_guests(settings: Settings) -> tuple[list[str], list[str]]:
    """Compare agents' guests with the cells' records; return two lists of sentences: about differences, and
    about agents that did not answer."""
    from placement_worker.store.audit import agents, stored_holders

    placement = wiring.database(settings, worker_roles.Role("placement"))
    try:
        asked = {agent_key for agent_key in await agents(placement) if agent_key[0] in settings.cell_names}
        before = await places_by_cell(settings, settings.cell_names)
        async with Bus(wiring.transport(settings, "audit")) as bus:
            books, silent = await _books(bus, asked)
        builds = await builds_by_cell(settings, settings.cell_names)
        after = await places_by_cell(settings, settings.cell_names)
        held_builds = {holder.build for holder in (await stored_holders(placement)).values()}
    finally:
        await placement.close()
    stood = {build: place for build, place in after.items() if before.get(build) == place}
    breaches = differences(books, builds.builds.keys(), stood, held_builds)
    notes = [f"agent {agent} of cell {cell} does not say which guests it has" for cell, agent in silent]
    return breaches, notes


def differences(
    books: Mapping[Agent, Collection[ReportedGuest]],
    builds: Collection[str],
    stood: Mapping[str, PlaceByCell],
    held_builds: Collection[str],
) -> list[str]:
    """Return sentences about missing guests, unknown guests, and guests on another host than their build.

    `builds`: all recorded builds. `stood`: active, unchanged builds. `held_builds`: with holder consumers.
    """
    found = []
    recorded = {agent: {(g.build, g.attempt, g.root) for g in guests} for agent, guests in books.items()}
    for build, place in sorted(stood.items()):
        agent = place.cell, place.host.agent
        if agent in recorded and (build, place.attempt, place.host.root) not in recorded[agent]:
            found.append(
                f"{build}: active on {place.host.host} in cell {place.cell},"
                f" and agent {place.host.agent} has no guest of its attempt {place.attempt} there"
            )
    for (cell, name), guests in sorted(books.items()):
        for guest in guests:
            has = f"{guest.build}: agent {name} of cell {cell} has a guest of its attempt {guest.attempt}"
            known = stood.get(guest.build)
            if guest.build not in builds:
                found.append(f"{has}, and no cell knows it")
            elif known is None or guest.build in held_builds:
                continue
            elif (guest.attempt, guest.root) != (known.attempt, known.host.root):
                found.append(f"{has}, and by its cell it is attempt {known.attempt} on {known.host.host}")
    return found


async def _books(bus: Bus, agents: Collection[Agent]) -> tuple[dict[Agent, list[ReportedGuest]], list[Agent]]:
    """Query agents for their guests; return the guests by agent, and the agents that did not answer."""
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
