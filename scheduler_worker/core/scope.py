"""The scope of a choice of hosts, limits of hosts, and parts of claims: what narrowings give to orders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.claims import ConsumerClaim
from bus.messages import BuildPlaced
from bus.vocabulary import Allocations, Id


@dataclass(frozen=True, slots=True)
class Scope:
    """The way in which an order's hosts are chosen, joined over the narrowings that concern the order."""

    alone: bool = False  # its choice changes the hosts of the next order, so it shares no evaluation
    # choices of orders with one key change each other's hosts; None: they do not
    key: Id | None = None
    free: tuple[Allocations, ...] = ()  # counted as free while its hosts are searched
    # what its instance holds already and needs only once: counted as free, and not reserved again
    held: Allocations = field(default_factory=dict)
    # True if only preferred hosts are searched: a shortage is no reason, because further alternatives follow,
    # and alternates are chosen after the claim, by `Narrowing.late`
    optional: bool = False
    jointly: Any = None  # a JointChoice for all instances; at most one narrowing sets it

    def joined(self, other: "Scope") -> "Scope":
        return Scope(
            alone=self.alone or other.alone,
            key=self.key or other.key,
            free=(*self.free, *other.free),
            held=self.held or other.held,
            optional=self.optional or other.optional,
            jointly=self.jointly or other.jointly,
        )


PLAIN = Scope()


@dataclass(frozen=True, slots=True)
class HostLimit:
    """Hosts that an order may not use for now, and the reason, such as hosts held for other requests."""

    code: str  # of the reason (docs/reasons.md)
    what: str  # names the hosts in counts of rejected hosts
    roots: frozenset[str]
    why: Callable[[str], str] = field(compare=False)  # returns why the host with a root is excluded


class ClaimPart(Protocol):
    """A feature's part of the claim of a chosen host, and of the message about the placed instance."""

    def in_claim(self, claim: ConsumerClaim, parts: "Sequence[ClaimPart]") -> ConsumerClaim:
        """Return the claim with this part; `parts` are those of all claims of the order."""

    def in_placed(self, placed: BuildPlaced) -> BuildPlaced:
        """Return the message about the instance with this part."""
