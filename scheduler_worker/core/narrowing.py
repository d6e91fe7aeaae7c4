"""Narrowings: the extension point by which features restrict the choice of an order's hosts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bus.vocabulary import Allocations, Id

if TYPE_CHECKING:
    from bus.claims import ConsumerClaim
    from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
    from bus.queries import Candidate
    from scheduler_worker.core.choosing import Choosing
    from scheduler_worker.core.events import Chosen
    from scheduler_worker.core.helping import Tally
    from scheduler_worker.core.order import Order
    from scheduler_worker.core.rule import Alternative


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
    jointly: "JointChoice | None" = None  # chooses all instances together; at most one narrowing sets it

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

    def in_claim(self, claim: "ConsumerClaim", parts: "Sequence[ClaimPart]") -> "ConsumerClaim":
        """Return the claim with this part; `parts` are those of all claims of the order."""

    def in_placed(self, placed: "BuildPlaced") -> "BuildPlaced":
        """Return the message about the instance with this part."""


# Yields sentences with changes that would make an order fit; called without `await`.
Remedies = Callable[["Order", "Choosing", "Tally"], Iterator[str]]


class Narrowing(Protocol):
    """A feature that restricts the hosts of orders, or that makes the choices of orders depend on others."""

    def concerns(self, order: "Order") -> bool:
        """Return whether the other methods must be called for an order."""

    async def prepare(self, orders: "Sequence[Order]", again: bool) -> "Sequence[Order]":
        """Return orders with what the choice of their hosts needs to know, read with one query for all; or
        marked as invalid. The call is repeated, with `again`, for orders with refused claims.
        """

    def limit(self, orders: "Sequence[Order]") -> "Sequence[Order]":
        """Return orders with the limits (`HostLimit`) that hold now; called directly before each choice."""

    def scope(self, order: "Order", alternatives: "Sequence[Alternative]") -> Scope:
        """Return how hosts are chosen for the given alternatives of an order."""

    def add_parts(self, order: "Order", claims: "Sequence[ConsumerClaim]") -> "Sequence[ConsumerClaim]":
        """Return the claims of an order with this feature's parts."""

    def renew(self, alternative: "Alternative", several: int, choosing: "Choosing") -> "Alternative":
        """Return an alternative with what its filters need to know about the hosts chosen so far, if a host
        must fit `several` instances. Called before each evaluation, for alternatives of all orders.
        """

    def late(self, alternative: "Alternative") -> "Alternative":
        """Return the alternative by which alternates are searched after the claim."""

    async def remedies(self) -> Remedies:
        """Return a function that suggests changes of orders without a host; read here what it needs."""

    def count_refused(self, ended: "Sequence[tuple[BuildRequested, BuildUnplaceable]]") -> None:
        """Count requests that ended without a host, in the feature's metrics."""

    def watch(self, order: "Order") -> tuple[object, frozenset[str]]:
        """Return a value that differs if a waiting order must be evaluated again, and the hosts on which it
        depends.
        """


class JointChoice(Protocol):
    """Chooses the hosts of all instances of an order together."""

    def choose(self, choosing: "Choosing", order: "Order", scope: Scope) -> "Chosen": ...

    def alternates(self, choosing: "Choosing", order: "Order") -> "Mapping[Id, tuple[Candidate, ...]]":
        """Return alternates for the claimed instances of an order that have fewer than requested."""


class NoNarrowing:
    """A narrowing without effect: the base class of narrowings, which replace the methods they need."""

    def concerns(self, order: "Order") -> bool:
        return False

    async def prepare(self, orders: "Sequence[Order]", again: bool) -> "Sequence[Order]":
        return orders

    def limit(self, orders: "Sequence[Order]") -> "Sequence[Order]":
        return orders

    def scope(self, order: "Order", alternatives: "Sequence[Alternative]") -> Scope:
        return PLAIN

    def add_parts(self, order: "Order", claims: "Sequence[ConsumerClaim]") -> "Sequence[ConsumerClaim]":
        return claims

    def renew(self, alternative: "Alternative", several: int, choosing: "Choosing") -> "Alternative":
        return alternative

    def late(self, alternative: "Alternative") -> "Alternative":
        return alternative

    async def remedies(self) -> Remedies:
        return lambda order, choosing, tally: iter(())

    def count_refused(self, ended: "Sequence[tuple[BuildRequested, BuildUnplaceable]]") -> None:
        pass

    def watch(self, order: "Order") -> tuple[object, frozenset[str]]:
        return None, frozenset()
