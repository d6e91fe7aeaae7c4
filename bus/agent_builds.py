"""An agent's record of the orders that it received: duplicates, and orders that arrive after a later order or
a destroy order, have no effect. Also derives the fields that orders omit.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

from bus.clock import monotonic
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered, GuestOrder
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Allocations

Key = tuple[str, int]  # id of a build, attempt number
Span = tuple[int, int]  # attempts with numbers above the first and up to the second
V = TypeVar("V")
REMEMBERED = 100_000  # number of builds with records
REMEMBERED_SECONDS = 7 * 86400.0


class _Memory(OrderedDict[str, V]):
    """A dictionary by build id that drops entries unchanged for `seconds`, and the oldest entries if there
    are more than REMEMBERED. `dropped` is called with the build of a dropped entry.
    """

    def __init__(self, seconds: float, now: Callable[[], float], dropped: Callable[[str], None]) -> None:
        super().__init__()
        self._seconds = seconds
        self._now = now
        self._dropped = dropped
        self._changed: dict[str, float] = {}  # the time of each entry's last change

    def __setitem__(self, build: str, value: V) -> None:
        super().__setitem__(build, value)
        self.move_to_end(build)
        now = self._changed[build] = self._now()
        while self:
            oldest = next(iter(self))
            if len(self) <= REMEMBERED and now - self._changed[oldest] <= self._seconds:
                break
            del self._changed[oldest], self[oldest]
            self._dropped(oldest)


class AgentBuilds:
    """Records the build attempts of one agent: running, finished (with outcome) and destroyed attempts."""

    def __init__(self, seconds: float = REMEMBERED_SECONDS, now: Callable[[], float] = monotonic) -> None:
        self.running: set[Key] = set()
        # called with a build whose record is dropped
        self.dropped: Callable[[str], None] = lambda build: None
        self._finished = _Memory[tuple[AgentReported, ...]](seconds, now, self._drop)
        # build → disjoint spans of destroyed attempts, lowest first
        self._void = _Memory[tuple[Span, ...]](seconds, now, self._drop)

    def ordered(self, order: BuildOrdered) -> AgentReported | Literal["start", "running"]:
        """Record a new build attempt and return "start". For a known attempt return "running" or its recorded
        outcome, and for a destroyed or replaced attempt a report with the outcome "destroyed".
        """
        if self.is_void(order.build, order.attempt):
            return report(order, "destroyed")
        key = order.build, order.attempt
        if key in self.running:
            return "running"
        outcome = self.outcome(key)
        if outcome is not None:
            return outcome
        self.running.add(key)
        return "start"

    def forget(self, outcome: AgentReported) -> None:
        """Forget the outcome of an order: if the order is delivered again, the agent builds it again."""
        known = self._finished.get(outcome.build, ())
        self._finished[outcome.build] = tuple(done for done in known if done.attempt != outcome.attempt)

    def must_not_start(self, order: BuildOrdered) -> bool:
        """Return whether an order must not start its attempt: the attempt is running, ended or destroyed, or
        a later attempt has replaced it.
        """
        key = order.build, order.attempt
        void = self.is_void(order.build, order.attempt)
        return void or key in self.running or self.outcome(key) is not None

    def is_void(self, build: str, attempt: int) -> bool:
        """Return whether this build attempt was destroyed or replaced by a later attempt."""
        return any(above < attempt <= upto for above, upto in self._void.get(build, ()))

    def outcome(self, key: Key) -> AgentReported | None:
        """Return the outcome of an order that has ended, to report it again instead of a second build; else
        None.
        """
        build, attempt = key
        return next((done for done in self._finished.get(build, ()) if done.attempt == attempt), None)

    def finished(self, outcome: AgentReported) -> None:
        """Record the outcome of an order, which no longer runs."""
        self.running.discard((outcome.build, outcome.attempt))
        self._finished[outcome.build] = (*self._finished.get(outcome.build, ()), outcome)

    def destroyed(self, order: DestroyOrdered) -> AgentReported:
        """Mark a destroy order's attempts as destroyed; return the agent's report of the destruction."""
        self.running.difference_update(self.running_upto(order))
        self.void(order.build, order.attempt, order.above)
        return report(order, "destroyed")

    def void(self, build: str, attempt: int, above: int = 0) -> None:
        """Mark a build's attempts as destroyed: the numbers above `above`, up to and including `attempt`."""
        if above >= attempt:
            return
        self._void[build] = _joined((*self._void.get(build, ()), (above, attempt)))
        outcomes = self._finished.get(build, ())
        if outcomes:
            self._finished[build] = tuple(o for o in outcomes if not above < o.attempt <= attempt)

    def known(self, build: str) -> tuple[tuple[AgentReported, ...], tuple[Span, ...]]:
        """Return what an agent stores about a build: the outcomes of its attempts, and the ranges of attempts
        whose guests were destroyed.
        """
        return self._finished.get(build, ()), self._void.get(build, ())

    def _drop(self, build: str) -> None:
        self.dropped(build)

    def running_upto(self, order: DestroyOrdered) -> list[Key]:
        """Return the running attempts that a destroy order names: numbers above `order.above`, up to
        `order.attempt`.
        """
        build, above, last = order.build, order.above, order.attempt
        if last - above < len(self.running):
            return [
                key for attempt in range(above + 1, last + 1) if (key := (build, attempt)) in self.running
            ]
        return sorted(key for key in self.running if key[0] == build and above < key[1] <= last)


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    found: list[Span] = []
    for above, upto in sorted(spans):
        if found and above <= found[-1][1]:
            found[-1] = found[-1][0], max(upto, found[-1][1])
        else:
            found.append((above, upto))
    return tuple(found)


def report(
    order: BuildOrdered | DestroyOrdered,
    outcome: Literal["built", "failed", "destroyed", "progress"],
    *,
    retry: bool = True,
    leftover: bool = False,
    cause: str = "",
) -> AgentReported:
    """Return the message in which an agent reports this outcome of a build order or destroy order. For a
    failed build: `retry` states that another host may succeed, `leftover` that parts of the guest may still
    exist, `cause` the reason.
    """
    fields = order.guest_fields()
    return AgentReported(**fields, outcome=outcome, retry=retry, leftover=leftover, cause=cause)


def sent_allocations(root: str, spec: BuildSpec, given: Allocations) -> Allocations:
    """Return the part of `given`, a guest's allocations, that its order must contain: {} if the agent can
    derive them from the flavor and the host.
    """
    return {} if given == {root: _figures(spec.flavor)} else given


def allocations_of(order: GuestOrder) -> Allocations:
    """Return an order's allocations by provider, or if the order has {}, derive them from its flavor."""
    if order.allocations:
        return order.allocations
    figures = _figures(order.spec.flavor)
    return {order.root: figures} if figures else {}


def reshaped_mappings(
    mappings: Mapping[str, tuple[str, ...]], before: Allocations, after: Allocations
) -> dict[str, tuple[str, ...]]:
    """Return, for each request group of a build, the providers that serve it after a reshape moved
    allocations from `before` to `after`.

    A provider that lost all its allocations is replaced by the providers that received them.
    """
    instead: dict[str, tuple[str, ...]] = {}
    for provider, resources in before.items():
        removed = [name for name in resources if name not in after.get(provider, {})]
        instead[provider] = (() if len(removed) == len(resources) else (provider,)) + tuple(
            to
            for to, moved in after.items()
            if to != provider and any(name in moved and name not in before.get(to, {}) for name in removed)
        )
    return {
        suffix: tuple(
            dict.fromkeys(to for provider_id in providers for to in instead.get(provider_id, (provider_id,)))
        )
        for suffix, providers in mappings.items()
    }


def _figures(flavor: Flavor) -> dict[str, int]:
    figures = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    return {name: amount for name, amount in figures.items() if amount}
