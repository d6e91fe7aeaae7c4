"""The points at which features extend the scheduler, and what they may import from it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bus.claims import Choice, ConsumerClaim, Held, Retired
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Message
from scheduler_worker.core.build_purpose import BUILD, BuildPurpose
from scheduler_worker.core.events import ComeAgain
from scheduler_worker.core.order import EndedInstance, Order, Settled

__all__ = ["BUILD", "BuildPurpose", "ComeAgain", "EndedInstance", "Order", "Purpose", "Settled"]


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

    @property
    def outside_members(self) -> tuple[Id, ...]:
        """Return instances of another system that are members of the order's server group."""

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
