"""The surface of a scheduler for features: `Searching` finds hosts, `Placing` claims them, too."""

from collections.abc import Callable, Sequence
from typing import Protocol

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import BuildRequested, HostReported
from bus.vocabulary import Id
from scheduler_worker import dependencies, queries
from scheduler_worker.core import events
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.demand import DemandCounts
from scheduler_worker.core.narrowing import Narrowing, Remedies
from scheduler_worker.core.order import BUILD, Order, Purpose
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking import HasReservations
from scheduler_worker.hosts import HostBook
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.pending_choices import PendingChoices
from scheduler_worker.placing.orders import Asked, Orders
from scheduler_worker.placing.recent_flavors import RecentFlavors

WatchReport = Callable[[HostReported], Callable[[], None]]


class Searching(Protocol):
    """Finds hosts for orders, and knows what can be known without a question to other workers."""

    @property
    def clock(self) -> Clock:
        """The clock of the process; features read no other."""

    @property
    def policy(self) -> ChoicePolicy:
        """The configured filters, weighers and limits."""

    @property
    def source(self) -> CandidateSource:
        """The scheduler's copy of placement's index."""

    @property
    def placement(self) -> queries.PlacementQueries:
        """The queries that placement answers: claims, releases, providers, allocations."""

    @property
    def hosts(self) -> KnownHosts:
        """The hosts of the replica with what their agents have reported."""

    @property
    def book(self) -> HostBook:
        """The reports of hosts."""

    @property
    def pending(self) -> PendingChoices:
        """Chosen hosts whose claims the index does not show yet."""

    @property
    def flavors(self) -> RecentFlavors:
        """The flavors of recent requests: usual sizes for which a feature may plan."""

    @property
    def demand(self) -> DemandCounts:
        """Counts of what requests asked for, by shape."""

    @property
    def orders(self) -> Orders:
        """Makes orders from requests."""

    @property
    def narrowings(self) -> Sequence[Narrowing]:
        """The narrowings of all features, in the order of the list of features."""

    def with_policy(self, policy: ChoicePolicy) -> "Searching":
        """Return a scheduler with another policy and the same hosts and choices, for one question."""

    async def resolved(self, requests: Sequence[BuildRequested]) -> Sequence[Order]:
        """Make orders from requests, and query the hosts of the instances that they name."""

    async def resolved_for(self, asked: Sequence[Asked]) -> Sequence[Order]:
        """Make orders with purposes of features, and query the hosts of the instances that they name."""

    async def prepare(self, orders: Sequence[Order], again: bool = False) -> Sequence[Order]:
        """Return orders with what narrowings need to know for the choice of their hosts."""

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return orders with the limits of their hosts at this moment. Hosts must be chosen before the next
        `await`, after which the limits may differ.
        """

    def choosing(self, supposed: HasReservations | None = None) -> Choosing:
        """Return an object that chooses hosts; with `supposed`, choices are hypothetical and not reserved."""

    async def remedies(self) -> list[Remedies]:
        """Return what each narrowing can do for requests that it leaves without a host."""

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        """Return a value that differs if a waiting order must be evaluated again, because what its request
        names has changed, and the hosts on which the order depends.
        """


class Placing(Searching, Protocol):
    """Also claims hosts, and ends orders."""

    @property
    def ending(self) -> dependencies.Ending:
        """Ends instances that get no host."""

    @property
    def retries(self) -> dependencies.RetryTimes:
        """The time since which each request is retried."""

    @property
    def undeliverable_for(self) -> float:
        """Seconds for which a message without a consumer is tried again."""

    def begin(
        self, requests: Sequence[BuildRequested], purpose: Purpose = BUILD, *, again: bool = False
    ) -> list[Order]:
        """Return the orders of requests for new instances, and count what they ask for, unless they were
        begun before (`again`, or after a retry).
        """

    def begin_for(self, asked: Sequence[Asked]) -> list[Order]:
        """Return the orders of requests with purposes of features."""

    async def place(self, orders: Sequence[Order]) -> list[events.End]:
        """Place orders, and return their results in the same sequence. An order fails for lack of a host only
        after a search in an index that was updated during this call."""

    async def place_new(self, orders: Sequence[Order]) -> list[events.End]:
        """Place orders of new requests, like `place`, unless a fallback takes them over without a search."""

    def polls(self, request: BuildRequested) -> bool:
        """Return whether a waiting request must be tried again although no event says that it fits."""

    def taken(self, request: Id) -> BuildRequested | None:
        """Return a request that a fallback has taken over, with the instances that have not ended."""

    async def handle(self, report: HostReported) -> None:
        """Apply an agent's report of its hosts, and pass it to all watches."""

    def watch_reports(self, watch: WatchReport) -> None:
        """Call `watch` before each report of hosts is applied, and then the function that it returns."""
