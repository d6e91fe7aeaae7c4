"""Asks placement which guests an agent must still run, after the agent lost power or its process stalled.

Meanwhile other hosts may have started its guests. So no guest runs until
placement has confirmed it, and a guest that moved away is destroyed.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.claims import MIGRATION, holder_consumer
from bus.clock import Clock
from bus.errors import Unavailable
from bus.messages import AgentReported
from bus.protocol import Ask
from bus.resources import Consumer, FindAllocations, FindProviders, ProvidersFound
from bus.vocabulary import portions
from compute_sim.agent import SimulatedAgent
from compute_sim.core.device_book import GuestKey
from compute_sim.core.ownership import NOTHING, Ownership, ownership
from compute_sim.guests import GuestRecord

log = logging.getLogger(__name__)

GUESTS_A_QUESTION = 250
CONSUMERS_A_QUESTION = 2 * GUESTS_A_QUESTION
PROVIDERS_A_QUESTION = 500
_LOST: tuple[Ownership, ...] = ("gone", "unknown")
OTHER_ATTEMPTS = 8  # number of earlier, and of later, attempts whose holder consumers are queried
SHORTEST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds between two queries, doubled while nothing changes
QUIET_SECONDS = 10.0  # placement may be starting too: warn only afterwards


@dataclass(eq=False)
class GuestRecovery:
    """After a power failure or stall of an agent, asks placement which guests may run, and starts, stops or
    destroys each guest accordingly.
    """

    agent: SimulatedAgent
    cell: str
    clock: Clock
    providers: Ask[FindProviders, ProvidersFound] | None
    keeps_unknown: bool = False  # keep guests unknown to placement, stopped, as after a database restore
    _kept_unknown: set[GuestKey] = field(default_factory=set, init=False)
    # provider → root, for providers that are in none of this agent's trees
    _roots: dict[str, str] = field(default_factory=dict, init=False)
    _pause: float = field(default=SHORTEST_PAUSE, init=False)
    _next: float = field(default=0.0, init=False)
    _waits_since: float | None = field(default=None, init=False)  # time of the first unanswered query

    async def check(self) -> Sequence[AgentReported]:
        """Start, stop or destroy guests as placement's allocations require, after an absence of the agent;
        return the reports of destroyed guests.
        """
        agent, now = self.agent, self.clock.monotonic()
        if agent.ready and not agent.disk.asleep:
            self._pause, self._next = SHORTEST_PAUSE, 0.0
            return []
        if not agent.power.on or now < self._next or agent.allocations is None:
            return []
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next = now + self._pause
        before, guests = agent.absences, agent.disk.all_guests
        if agent.ready:
            guests = [record for record in guests if (record.build, record.attempt) in agent.disk.asleep]
        try:
            judged = []
            for some in portions(guests, GUESTS_A_QUESTION):
                judged += await self._judged(some)
        except Unavailable as away:
            self._waits_since = now if self._waits_since is None else self._waits_since
            level = logging.WARNING if now - self._waits_since > QUIET_SECONDS else logging.INFO
            log.log(level, "%s: its guests wait until placement reports their hosts: %s", agent.agent, away)
            return []
        self._waits_since = None
        if not agent.power.on or agent.absences != before:
            return []  # the agent lost power or stalled again
        dropped: list[AgentReported] = []
        for guest, whose in judged:
            async with agent.driven.turn(guest.build, guest.root):
                if agent.disk.hosted.is_there(guest):  # if not, an order has changed or removed it meanwhile
                    dropped += await self._act(guest, whose)
        await agent.disk.settled()
        if not agent.ready and agent.power.on and agent.absences == before:
            agent.confirm_guests()
        return dropped

    async def _act(self, guest: GuestRecord, whose: Ownership) -> Sequence[AgentReported]:
        agent, driven = self.agent, self.agent.driven
        described = agent.agent, guest.build, guest.host
        if whose == "ours":
            if guest.state != "running" or await driven.succeeds("start", guest):
                agent.disk.wake(guest)
        elif whose == "kept":
            await driven.succeeds("stop", guest)
        elif whose == "unknown" and self.keeps_unknown:
            if (guest.build, guest.attempt) not in self._kept_unknown:
                self._kept_unknown.add((guest.build, guest.attempt))
                log.warning("%s: placement has nothing for the guest of %s on %s: it is stopped", *described)
                await driven.succeeds("stop", guest)
        elif await driven.succeeds("destroy", guest):
            log.warning("%s: the guest of %s on %s has another host now: it is destroyed", *described)
            return [agent.drop(guest)]
        return []

    async def _judged(self, guests: Sequence[GuestRecord]) -> list[tuple[GuestRecord, Ownership]]:
        found = await self._found(name for guest in guests for name in guest.consumers)
        judged = [(guest, self._ownership_of(guest, found)) for guest in guests]
        if names := [name for guest, whose in judged if whose in _LOST for name in _others(guest)]:
            found |= await self._found(names)
        return [(guest, self._ownership_of(guest, found)) for guest in guests]

    async def _found(self, names: Iterable[str]) -> dict[str, Consumer]:
        assert self.agent.allocations is not None
        found: dict[str, Consumer] = {}
        for some in portions(dict.fromkeys(names), CONSUMERS_A_QUESTION):
            answer = await self.agent.allocations(FindAllocations(consumers=some, cell=self.cell))
            found |= {consumer.id: consumer for consumer in answer.consumers}
        await self._learn_roots(found.values())
        return found

    def _ownership_of(self, guest: GuestRecord, held: Mapping[str, Consumer]) -> Ownership:
        if not guest.allocations:
            return "ours"  # placement has no record of a guest without allocations
        build, holder_held = held.get(guest.build), held.get(holder_consumer(guest.build, guest.attempt))
        holder_type = (
            holder_held.type if holder_held is not None and self._is_of(holder_held, guest.root) else NOTHING
        )
        # If a later attempt of the build has a guest here too, holders from then on concern that guest.
        guests = self.agent.disk.hosted.there.get(guest.build, {}).items()
        later = [
            attempt
            for attempt, guest_found in guests
            if guest_found.root == guest.root and attempt > guest.attempt
        ]
        holders = [held[name] for name in _others(guest, min(later, default=None)) if name in held]
        otherwise = any(holder.type == MIGRATION and self._is_of(holder, guest.root) for holder in holders)
        return ownership(build is not None and self._is_of(build, guest.root), holder_type, otherwise)

    def _is_of(self, consumer: Consumer, root: str) -> bool:
        return any(root in (provider, self._root_of(provider)) for provider in consumer.allocations)

    def _root_of(self, provider: str) -> str:
        return self.agent.disk.devices.root_of.get(provider) or self._roots.get(provider, "")

    async def _learn_roots(self, consumers: Iterable[Consumer]) -> None:
        if self.providers is None:
            return
        named = dict.fromkeys(provider for consumer in consumers for provider in consumer.allocations)
        unknown = [provider for provider in named if not self._root_of(provider)]  # in earlier trees
        for some in portions(unknown, PROVIDERS_A_QUESTION):
            answer = await self.providers(FindProviders(ids=some, parts=(), cell=self.cell))
            self._roots.update((provider.id, provider.root) for provider in answer.providers)


def _others(guest: GuestRecord, before: int | None = None) -> list[str]:
    # Ids of the holder consumers that other attempts of the guest's build may have.
    first, end = max(1, guest.attempt - OTHER_ATTEMPTS), guest.attempt + OTHER_ATTEMPTS + 1
    numbers = range(first, end if before is None else min(before, end))
    return [holder_consumer(guest.build, attempt) for attempt in numbers if attempt != guest.attempt]
