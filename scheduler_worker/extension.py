"""The points at which features extend the scheduler, and what they may import from it.

The kernel calls a narrowing with the orders that it `concerns`. A plain boot is concerned by none.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from bus.claims import Choice, ConsumerClaim, Held, Retired
from bus.messages import BuildRequested
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Message
from scheduler_worker.core.build_purpose import BUILD, BuildPurpose
from scheduler_worker.core.events import Chosen, ComeAgain, TakenOver
from scheduler_worker.core.narrowing import PLAIN, ClaimPart, HostLimit, NoNarrowing, Remedies, Scope
from scheduler_worker.core.order import EndedInstance, Order, Settled

if TYPE_CHECKING:
    from bus.queries import Candidate
    from scheduler_worker.core.choosing import Choosing
    from scheduler_worker.core.rule import Alternative
    from scheduler_worker.placing import Scheduler

__all__ = [
    "BUILD",
    "PLAIN",
    "BuildPurpose",
    "Chosen",
    "ClaimPart",
    "ComeAgain",
    "EndedInstance",
    "HostLimit",
    "NoNarrowing",
    "Order",
    "Remedies",
    "Scope",
    "Settled",
    "TakenOver",
]


class Purpose(Protocol):
    """The purpose of an order decides which claims it makes, what answers mean for its instances, and how it
    ends. The kernel has one purpose, `BUILD`; features derive others from `BuildPurpose`. Purposes are
    immutable.
    """

    @property
    def name(self) -> str: ...

    @property
    def retires(self) -> bool:
        """Return whether instances that get no host are retired, so that their ids cannot be claimed later.
        False for ids of another system, which may be requested again: such orders preempt no instances.
        """

    @property
    def boots(self) -> bool:
        """Return whether the instances are new ones of the request's project. Only then does the share of the
        project decide when the request is tried, and may the instances draw from its open reservations.
        """

    @property
    def leaves_lost_host(self) -> bool:
        """Return whether the instance leaves a host that is down: then it may draw from failover capacity."""

    @property
    def holds(self) -> Allocations:
        """Return what the order's instance holds already on the host that it leaves."""

    def adapt(self, order: Order) -> Order:
        """Return a new order with what this purpose adds to its alternatives and times."""

    def consumers(self, order: Order) -> frozenset[Id]:
        """Return the consumers of the order that do not count as other members of its server group."""

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        """Return the claim of an instance; `choices` are the chosen hosts, best first."""

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        """Return the order after placement answered a claim with the state of its consumer, or the order to
        deliver the request again. `instance` is no longer among the order's instances.
        """

    def retire_answered(self, order: Order, instance: Id, result: Held | Retired) -> Order:
        """Return the order after placement did not retire an instance, because of the state `result`."""

    def located(
        self, order: Order, instance: Id, held: Held, providers: Mapping[Id, Provider]
    ) -> Settled | EndedInstance | ComeAgain:
        """Return what follows from allocations that an instance holds since an earlier delivery. `providers`
        has the providers of the allocations, by id.
        """

    def ends(self, order: Order) -> Sequence[Message]:
        """Return the messages that end the order."""


class Narrowing(Protocol):
    """A feature that restricts the hosts of orders, or that makes the choices of orders depend on others."""

    def concerns(self, order: Order) -> bool:
        """Return whether the other methods must be called for an order."""

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        """Return orders with what the choice of their hosts needs to know, read with one query for all; or
        marked as invalid. The call is repeated, with `again`, for orders with refused claims.
        """

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return orders with the limits (`HostLimit`) that hold now; called directly before each choice."""

    def scope(self, order: Order, alternatives: "Sequence[Alternative]") -> Scope:
        """Return how hosts are chosen for the given alternatives of an order."""

    def add_parts(self, order: Order, claims: Sequence[ConsumerClaim]) -> Sequence[ConsumerClaim]:
        """Return the claims of an order with this feature's parts."""

    def renew(self, alternative: "Alternative", several: int, choosing: "Choosing") -> "Alternative":
        """Return an alternative with what its filters need to know about the hosts chosen so far, if a host
        must fit `several` instances. Called before each evaluation, for alternatives of all orders.
        """

    def late(self, alternative: "Alternative") -> "Alternative":
        """Return the alternative by which alternates are searched after the claim."""

    async def remedies(self) -> Remedies:
        """Return a function that suggests changes of orders without a host; read here what it needs."""

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        """Return a value that differs if a waiting order must be evaluated again, and the hosts on which it
        depends.
        """


class JointChoice(Protocol):
    """Chooses the hosts of all instances of an order together."""

    def choose(self, choosing: "Choosing", order: Order, scope: Scope) -> Chosen: ...

    def alternates(self, choosing: "Choosing", order: Order) -> "Mapping[Id, tuple[Candidate, ...]]":
        """Return alternates for the claimed instances of an order that have fewer than requested."""


# What a fallback did with an order: it chose hosts, it handles the order from now on, or it passes the order,
# perhaps with a longer reason, to the next fallback.
FallbackAnswer = Chosen | TakenOver | Order


class Fallback(Protocol):
    """A feature that helps orders without a host, in the sequence of the list of fallbacks."""

    async def handle(self, orders: Sequence[Order], placing: "Scheduler") -> Sequence[FallbackAnswer]:
        """Return for each order what the fallback did with it. The verdict of an order has its shortages or
        the refusal of its claim, or neither if all of its rounds are used up. Chosen hosts are claimed. If
        these claims are refused, the order is searched again, and the fallbacks are asked again.
        """

    async def parts_of(
        self, order: Order, instances: Sequence[Id], placing: "Scheduler"
    ) -> Mapping[Id, tuple[ClaimPart, ...]]:
        """Return what the messages must carry about instances that an earlier delivery placed."""

    def polls(self, request: BuildRequested) -> bool:
        """Return whether this fallback may find hosts for a request although no event says that it fits."""
