"""Repairs differences between agents' guests and the cells' records, as after a fail-over that lost commits:
adopts guests without a record, destroys guests of a build that runs on another host, and deletes builds
without a guest.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from berth.features import added
from berth.kit.audit_records import HealingPart, Recording
from berth.kit.hosts import providers_by_id
from berth.kit.publishing import publish
from berth.operations.guest_differences import Agent, GuestComparison, GuestDifference, Wrong
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ClaimResult, ConsumerClaim, Held, Refused, Retired
from bus.delivery.runner import Bus
from bus.guests import ReportedGuest
from bus.messages import BuildDeleteRequested, BuildEndRequested, DestroyOrdered, Selection
from bus.parts import TYPES, ClaimParts
from bus.resources import Consumer, FindAllocations, Provider
from bus.vocabulary import portions

REPAIRS: dict[Wrong, str] = {
    "unknown": "adopted",
    "elsewhere": "destroyed",
    "deleted": "destroyed",
    "newer": "destroyed",
    "missing": "deleted",
}


_CONSUMERS = 500  # in one query


RetiredChoice = Literal["", "adopt", "destroy"]


GuestsOf = Callable[
    [Mapping[Agent, set[str]]], Awaitable[Mapping[Agent, Mapping[str, Sequence[ReportedGuest]]]]
]


Record = Callable[[Recording], Awaitable[str]]


NOT_RECORDED = "no feature of this berth lets a cell record an existing instance"


@dataclass(frozen=True)
class GuestRepair:
    """A difference between guests and records, and the reason against its repair (empty: repair it)."""

    difference: GuestDifference
    why_not: str = ""
    destroys: bool = False  # the operator has chosen that an unknown guest is destroyed

    @property
    def adopts(self) -> bool:
        """Return whether the repair is that a cell records the guest."""
        return self.difference.wrong == "unknown" and not self.destroys

    @property
    def would(self) -> str:
        """Return what the repair does, as part of a sentence."""
        return REPAIRS["deleted" if self.destroys else self.difference.wrong]


def judged(
    found: GuestComparison, consumers: Mapping[str, Consumer], choice: RetiredChoice = ""
) -> list[GuestRepair]:
    """Return each difference with the reason against its repair, which is "" if the guests and the records
    prove that the repair is right. `consumers`: placement's consumers for guests without a build, by id.
    `choice`: what the operator wants of unknown guests whose ids placement has retired.
    """
    guests: dict[str, list[tuple[Agent, ReportedGuest]]] = defaultdict(list)
    for agent, listed in found.books.items():
        for guest in listed:
            guests[guest.build].append((agent, guest))
    return [
        GuestRepair(
            each,
            _doubt(each, found, guests[each.build], consumers.get(each.build), choice),
            destroys=each.wrong == "unknown" and each.build in found.retired and choice == "destroy",
        )
        for each in found.differences
    ]


def _doubt(
    difference: GuestDifference,
    found: GuestComparison,
    guests: Sequence[tuple[Agent, ReportedGuest]],
    consumer: Consumer | None,
    choice: RetiredChoice,
) -> str:
    place, guest = difference.place, difference.guest
    if difference.wrong == "unknown" and (retired := found.retired.get(difference.build)) is not None:
        if why := _doubt_of_retired(retired, choice):
            return why
        if choice == "destroy":
            return _unread(found)
    if difference.wrong == "unknown":
        return _doubt_of_unknown(found, guests, consumer)
    if difference.wrong == "deleted":
        return ""  # not needed: its build was deleted or shelved on request, or has failed
    if difference.wrong == "newer":
        return "its cell may have lost that it was unshelved"
    assert place is not None
    if difference.wrong == "missing":
        if guests:
            (_, agent), other = guests[0]
            return f"agent {agent} has a guest of its attempt {other.attempt}"
        return unanswered(found)
    expected = (place.cell, place.host.agent), place.attempt, place.host.root
    if not any((agent, other.attempt, other.root) == expected for agent, other in guests):
        return f"agent {place.host.agent} does not confirm the guest on {place.host.host}"
    assert guest is not None
    # A guest of an earlier attempt arrives for no move any more: commits that moved the build were lost.
    is_expected = guest.state == "arriving" and guest.attempt >= place.attempt
    return "the guest is arriving: try again" if is_expected else ""


def _doubt_of_retired(retired: Retired, choice: RetiredChoice) -> str:
    """Return why an unknown guest, whose id placement has retired, is not repaired as chosen: commits of its
    build were lost, and nothing shows whether its owner still wants it.
    """
    ended = f"for placement it has ended ({retired.why})"
    if not choice:
        adopt = "--retired adopt keeps the guest, " if retired.unplaceable else ""
        return f"{ended}: {adopt}--retired destroy destroys it"
    if choice == "adopt" and not retired.unplaceable:
        return f"{ended}, and not as unplaceable: it can only be destroyed (--retired destroy)"
    return ""


def _doubt_of_unknown(
    found: GuestComparison, guests: Sequence[tuple[Agent, ReportedGuest]], consumer: Consumer | None
) -> str:
    if len(guests) > 1:
        return f"there are {len(guests)} guests of it"
    (_, guest), *_ = guests
    if guest.state == "arriving":
        return "it is arriving: try again"
    if not guest.allocations:
        return "its agent does not report its allocations"
    if consumer is not None and consumer.allocations != guest.allocations:
        return "placement has other allocations of it"
    return _unread(found)


def unanswered(found: GuestComparison) -> str:
    """Return why a build without a reported guest may still have one: an agent or a cell is missing in
    `found`. Return "" if all answered.
    """
    if found.silent:
        return f"{_names(found.silent)} did not answer and may have its guest"
    return _unread(found)


def _unread(found: GuestComparison) -> str:
    return (
        f"the database of cell {', '.join(sorted(found.unread))} is not in the settings"
        if found.unread
        else ""
    )


def _names(agents: Collection[Agent]) -> str:
    names = sorted(name for _, name in agents)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"agent {', '.join(names[:3])}{more}"


class GuestMending:
    """Repairs differences between agents' guests and the cells' records. `guests_of` asks agents for their
    guests of given builds; `record` lets a cell record an instance, and returns why it failed, or "".
    """

    def __init__(self, bus: Bus, guests_of: GuestsOf, record: Record, reply_to: str, seconds: float) -> None:
        self._bus = bus
        self._guests_of = guests_of
        self._record = record
        self._reply_to = reply_to
        self._seconds = seconds
        self._retired: Collection[str] = ()
        self._roots: dict[str, Provider] = {}
        self._consumers: dict[str, Consumer] = {}

    async def judged(self, found: GuestComparison, choice: RetiredChoice = "") -> list[GuestRepair]:
        """Query placement about the builds of unknown guests, and return for each difference whether it may
        be repaired. `choice`: what the operator wants of unknown guests whose ids placement has retired.
        """
        self._retired = found.retired.keys()
        ask = self._bus.asker(topics.ALLOCATIONS, timeout=self._seconds)
        for some in portions(
            {each.build for each in found.differences if each.wrong == "unknown"}, _CONSUMERS
        ):
            answer = await ask(FindAllocations(consumers=some))
            self._consumers |= {consumer.id: consumer for consumer in answer.consumers}
        roots = (each.guest.root for each in found.differences if each.guest is not None)
        self._roots = await providers_by_id(self._bus, roots, self._seconds)
        repairs = judged(found, self._consumers, choice)
        if added(HealingPart, "healing"):
            return repairs
        return [
            replace(repair, why_not=repair.why_not or NOT_RECORDED) if repair.adopts else repair
            for repair in repairs
        ]

    async def mend(self, repair: GuestRepair) -> str:
        """Remove a difference between guests and records: adopt or destroy the guest, or delete the build.

        Return "", or why the repair failed.
        """
        if repair.adopts:
            return await self._adopt_guest(repair.difference)
        match repair.difference.wrong:
            case "unknown" | "elsewhere" | "deleted" | "newer":
                return await self._destroy(repair.difference)
            case "missing":
                assert repair.difference.place is not None
                return await self.delete(repair.difference.build, repair.difference.place.cell)

    async def _adopt_guest(self, difference: GuestDifference) -> str:
        """Claim an unknown guest's allocations unless placement has them, and ask the agent's cell to adopt
        the guest as a build. Return "", or why the adoption failed.
        """
        guest, (cell, agent) = difference.guest, difference.agent
        assert guest is not None
        provider, consumer = self._roots.get(guest.root), self._consumers.get(guest.build)
        if provider is None:
            return "placement has no record of its host"
        choice = Choice(allocations=guest.allocations)
        generation = consumer.generation if consumer is not None else None
        if generation is None:
            parts = revived() if guest.build in self._retired else ClaimParts()
            claim = ConsumerClaim(consumer=guest.build, generation=None, choices=(choice,), parts=parts)
            result = (await self._bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))).results[0]
            if not isinstance(result, Claimed):
                return f"its resources cannot be claimed: {lost(result)}"
            generation = result.generation
        chosen = Selection(root=guest.root, host=provider.host or provider.name, agent=agent, choice=choice)
        recording = Recording(guest.build, cell, chosen, generation, attempt=guest.attempt)
        if consumer is not None:  # the cell may claim only for the project that placement knows
            recording = replace(recording, project=consumer.project, user=consumer.user)
        return await self._record(recording)

    async def _destroy(self, difference: GuestDifference) -> str:
        """Order an agent to destroy the difference's guest, of exactly this attempt, and wait until the agent
        no longer lists the guest; return "", or that the guest is not destroyed yet.
        """
        guest, (cell, agent) = difference.guest, difference.agent
        assert guest is not None
        provider = self._roots.get(guest.root)
        await publish(
            self._bus,
            DestroyOrdered(
                build=guest.build,
                attempt=guest.attempt,
                above=guest.attempt - 1,
                cell=cell,
                agent=agent,
                root=guest.root,
                host=provider.host or provider.name if provider is not None else guest.root,
            ),
        )
        for _ in range(10):
            listed = (await self._guests_of({(cell, agent): {guest.build}})).get((cell, agent), {})
            if guest.build in listed and all(other.attempt != guest.attempt for other in listed[guest.build]):
                return ""
            await asyncio.sleep(0.2)
        return "its agent has not destroyed it yet: try again"

    async def delete(self, build: str, cell: str) -> str:
        """Delete a build in one cell; return "", or that the cell has not confirmed the deletion."""
        listener = await self._bus.listen(topics.BUILD_DELETED.at(reply_to=self._reply_to))
        try:
            await publish(self._bus, BuildDeleteRequested(build=build, cell=cell, reply_to=self._reply_to))
            async with asyncio.timeout(self._seconds):
                while (await listener.get()).build != build:
                    pass
        except TimeoutError:
            return "its cell has not confirmed it yet: try again"
        finally:
            await listener.stop()
        return ""

    async def delete_double(self, build: str, cell: str, keeper: str) -> str:
        """Delete a build in one of two cells. The other cell (`keeper`) publishes its end again, because
        clients may last have received that of the deleted one.
        """
        why = await self.delete(build, cell)
        if not why:
            await publish(self._bus, BuildEndRequested(build=build, cell=keeper))
        return why


def revived() -> ClaimParts:
    """Return the parts of a claim that placement accepts for a consumer that was retired as unplaceable."""
    return ClaimParts(*(part() for part in TYPES.of(ClaimParts).values() if part.revives))


def lost(result: ClaimResult) -> str:
    """Return why a claim failed."""
    match result:
        case Refused(refusals=refusals):
            return f"it does not fit: {'; '.join(map(str, refusals))}"
        case Held():
            return "another client has claimed or released: try again"
        case Retired(why=why):
            return f"it has ended for placement ({why})"
        case _:
            return "placement is contended: try again"
