"""Parts of messages about preemption."""

from typing import Annotated

from msgspec import Meta

from bus import topics
from bus.parts import ClaimParts, Part, PlacedParts
from bus.preemption import Priority, Victim
from bus.vocabulary import Count, Id, ShortList, Word


class Preempts(Part, frozen=True, kw_only=True):
    """The part of a claim that preempts instances of lower priority (victims), which are all on the claimed
    host: the claim gets the victims' allocations, and the victims are retired.
    """

    victims: Annotated[tuple[Victim, ...], Meta(min_length=1, max_length=1000)]
    cell: Word  # cell of the victims
    priority: Priority  # priority of the claiming request
    budget: Count = 0  # maximum number of victims of the project within one hour; 0: no limit
    together: Count = 0  # number of victims of all claims of the request

    @property
    def replaced(self) -> tuple[Id, ...]:
        return tuple([victim.build for victim in self.victims])


class Victims(Part, frozen=True, kw_only=True):
    """The instances to delete before the agent is ordered to build."""

    preempts: ShortList[Victim] = ()

    @property
    def replaced(self) -> tuple[Id, ...]:
        return tuple([victim.build for victim in self.preempts])


def victims_of_placed(parts: PlacedParts) -> tuple[Victim, ...]:
    """Return the instances to delete before an agent is ordered to build."""
    part = parts.get(Victims)
    return () if part is None else part.preempts


PARTS = {ClaimParts: Preempts, PlacedParts: Victims}
PAGE_ASKS = (topics.PREEMPTIONS, topics.PRIORITIES)
