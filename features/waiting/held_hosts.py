"""Holds hosts for waiting requests: other requests may not use them."""

import asyncio
from collections.abc import Callable, Sequence

from bus.clock import moment_text
from bus.vocabulary import Id
from features.waiting.core.reserved_hosts import Root, Roots, StoredHold
from features.waiting.core.shares import Contender
from features.waiting.core.waiting_queues import WaitingQueues
from features.waiting.hosts import FittingHosts
from features.waiting.messages import priority_of
from features.waiting.request_sizes import RequestSizes
from features.waiting.settings import HELD_SHARE
from features.waiting.start_estimates import StartEstimates
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import HostLimit, KnownHosts, Narrowing, Order, Orders, SchedulerOptions


class HeldHosts(Narrowing):
    """The narrowing that keeps new requests from hosts held for waiting requests; it has the queues of this
    scheduler's waiting requests.
    """

    def __init__(
        self, hosts: KnownHosts, orders: Orders, options: SchedulerOptions, share: float = HELD_SHARE
    ) -> None:
        self.sizes = RequestSizes(orders, hosts.source, hosts.clock)
        self.fitting = FittingHosts(
            hosts.source, options.policy, hosts.now, orders.alternatives_of, self.sizes.of_request
        )
        self.queues = WaitingQueues(self.fitting, share, self._has_chance, self._passed)
        self.requests: dict[Id, QueuedRequest] = {}
        self.starts = StartEstimates(hosts.clock)
        self.woken = asyncio.Event()  # set when the queues may have requests to evaluate
        self._clock = hosts.clock
        hosts.pending.watch(self._released)

    def wake(self) -> None:
        """Set the event `woken`, if requests wait: the queue then evaluates them."""
        if self.requests:
            self.woken.set()

    def _released(self, root: Root) -> None:
        self.queues.release([root])
        self.wake()

    def concerns(self, order: Order) -> bool:
        return bool(len(self.queues) or self.queues.reserved.elsewhere)

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Exclude from the orders of new requests the hosts that are reserved for waiting requests."""
        queues = self.queues
        queues.settle(self._clock.monotonic())
        now = self._clock.now()
        return [
            order
            if order.request.request in queues
            else order.limited(self.limit_of(self._barred(order, now), order.request.project))
            for order in orders
        ]

    def _barred(self, order: Order, now: float) -> frozenset[Root]:
        """Return the hosts that a new request may not use, because they are reserved for waiting requests."""
        alternatives, needed = order.alternatives, order.needed

        def fits(excluding: Roots) -> bool:
            found = self.fitting.search_alternatives(alternatives, None, excluding, needed)
            return sum(found.fits.values()) >= needed

        zone = alternatives[0].question.zone if alternatives else ""
        return self.queues.barred(contender_of(order, now), zone, fits)

    def barred(self, entry: QueuedRequest) -> frozenset[Root]:
        """Return the hosts that a waiting request may not use, if it is evaluated like a new request."""
        excluded = self.queues.barred(entry.contender)
        waits = entry.request in self.queues
        return excluded - self.queues.usable_reserved(entry.request) if waits else excluded

    def limit_of(self, roots: frozenset[Root], project: str) -> HostLimit:
        """Return the limit that excludes hosts reserved for waiting requests from an order of a project."""
        return HostLimit("reserved", "reserved for other requests", roots, self._why_reserved_to(project))

    def _why_reserved_to(self, project: str) -> Callable[[Root], str]:
        """Return a function that tells a project for which waiting request a host is reserved, since when and
        until when. Other projects are not named.
        """

        def why(root: Root) -> str:
            hold = self.holds().get(root) or self.queues.reserved.elsewhere.get(root)
            if hold is None:
                return "offered to waiting requests now"
            of = f"of project {project}" if hold.project == project else "of another project"
            what = hold.purpose or "request"
            until = f"it gets a host, at most until {moment_text(hold.until)}"
            since = f"since {moment_text(hold.since)}"
            return f"reserved for waiting {what} {hold.request} {of} {since} until {until}"

        return why

    def holds(self) -> dict[Root, StoredHold]:
        """Return the hosts that this scheduler reserves for waiting requests."""
        passed, found = self._clock.now() - self._clock.monotonic(), dict[Root, StoredHold]()
        for root, own in self.queues.reserved.own.items():
            if (entry := self.requests.get(own.rank.request)) is not None:
                found[root] = StoredHold(
                    root=root,
                    key=own.key,
                    project=entry.message.project,
                    since=own.since + passed,
                    until=entry.until,
                    zone=own.zone,
                    purpose=entry.subject.purpose if entry.subject is not None else "",
                )
        return found

    def _has_chance(self, request: Id) -> bool:
        """Return False if a waiting request starts with a probability of at most 10 % before it expires. The
        start estimate has no lower quantile: the distribution is symmetric in the logarithm of the time.
        """
        entry = self.requests.get(request)
        start = None if entry is None else self.starts.of_first(entry)
        if entry is None or start is None:
            return True
        return start.p50 * start.p50 / start.p90 < entry.until - self._clock.now()

    def _passed(self, request: Id) -> float:
        """Return which part of its waiting time has passed for a waiting request."""
        entry = self.requests.get(request)
        if entry is None or entry.until <= entry.since:
            return 0.0
        return (self._clock.now() - entry.since) / (entry.until - entry.since)


def contender_of(order: Order, now: float) -> Contender:
    return Contender(sharing_project(order), priority_of(order.request.parts), waits_since(order, now))


def sharing_project(order: Order) -> str:
    """Return the project whose share decides the turn of an order; none for an order that boots nothing."""
    return order.request.project if order.purpose.boots else ""


def waits_since(order: Order, now: float) -> float:
    """Return when an order began to wait: for a preempted instance, the time of its original request; as a
    rule `now`.
    """
    since = order.times.waiting_since
    return min(since, now) if since else now
