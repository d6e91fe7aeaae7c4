"""The extension point of replays for conditions of requests that name objects of other features.

A join of `quality_replay` has a module `replay_conditions` with its `ConditionPart`. Conditions that no join
repeats are left out of the requests, and counted.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from berth.kit import added
from bus.claims import ConsumerClaim
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.parts import Part
from bus.protocol import Ask
from bus.topics import Query
from bus.vocabulary import Id

MODULE = "replay_conditions"
# Returns the roots of the hosts of a consumer in a replay; empty: it holds nothing there.
HostsOf = Callable[[Id], Sequence[str]]


class ReplayedObjects(Protocol):
    """The objects of one condition during one replay, in place of those of placement."""

    @property
    def answers(self) -> Sequence[tuple[Query[Any, Any], Ask[Any, Any]]]:
        """Return the queries of the scheduler about the objects, each with the function that answers it."""

    def granted(self, claim: ConsumerClaim) -> None:
        """Record a granted claim of the replay, so that later decisions of the replay take it
        into account.
        """


class RepeatedCondition(Protocol):
    """A kind of condition that a replay repeats, with the objects that still exist."""

    @property
    def unknown(self) -> str:
        """Return the name under which instances are counted whose object does not exist any more."""

    @property
    def sentence(self) -> str:
        """Return the sentence that follows this number."""

    def judges(self, part: Part) -> bool:
        """Return whether this is a part of a request that names such an object."""

    def repeats(self, part: Part) -> bool:
        """Return whether the object that such a part names is known."""

    def replayed(self, earlier: Mapping[Id, BuildRequested], hosts_of: HostsOf) -> ReplayedObjects:
        """Return the objects at the begin of a replay, with the requests of the consumers at that time."""


@dataclass(frozen=True)
class ConditionPart:
    """A condition, such as server groups, that another feature lets replays repeat. `read` reads the objects
    that requests name.
    """

    read: Callable[[Bus, Sequence[BuildRequested]], Awaitable[RepeatedCondition]]


async def read_conditions(bus: Bus, requests: Iterable[BuildRequested]) -> list[RepeatedCondition]:
    """Return the conditions of recorded requests that joins can repeat, such as server groups: one object for
    each join.
    """
    asked = list(requests)
    return [await part.read(bus, asked) for part in added(ConditionPart, MODULE)]
