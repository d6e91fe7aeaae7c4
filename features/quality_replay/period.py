"""The recorded requests of a past period in their order, its hosts, and the outcome of a replay."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median_low

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.vocabulary import Allocations, Id
from features.history.past import PastCloud
from features.quality_replay.repeated_conditions import RepeatedCondition
from placement_worker.extension import Index, Tree

UNNAMED = "custom"  # name of the flavor of a `berth boot` with amounts
MOST_USUAL = 3  # flavors for which the remaining capacity is shown


@dataclass(frozen=True, slots=True)
class RecordedArrival:
    """Consumers that need a host: a new or resized instance, or the instances of a request without a host."""

    at: float
    consumers: tuple[Id, ...]
    request: BuildRequested  # equal requests share this object, with other ids
    is_refused: bool = False  # it got no host, as far as the records say


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """The end of a consumer's allocations."""

    at: float
    consumer: Id


@dataclass(frozen=True, slots=True)
class HostChange:
    """New, changed and deleted provider trees (without providers), aggregates and cells."""

    at: float
    trees: Mapping[str, Tree]
    aggregates: Sequence[Aggregate] = ()
    cells: Sequence[RegisteredCell] = ()


Event = RecordedArrival | RecordedEnd | HostChange


@dataclass(frozen=True)
class PeriodOutcome:
    """The refusals and used hosts of a period, as recorded or as a policy decides."""

    requested: int  # instances, as in the following figures
    refused: int
    gained: int  # with a host, but without one in the records
    lost: int  # without a host, but with one in the records
    mean_hosts: float  # hosts with allocations: the mean over the period, and the most at one time
    most_hosts: int
    empty_hosts: int  # at the end, as the following figures
    hosts: int
    fits: Mapping[str, int] = field(default_factory=dict)  # usual flavor → instances that would still fit


@dataclass(frozen=True, kw_only=True)
class RecordedPeriod:
    """A past period: the state at its begin, which must not be changed, and the events after it."""

    begin: float
    end: float
    cloud: PastCloud
    events: Sequence[Event]
    # of the consumers at the begin, so that the demand is known: consumer → its request
    earlier: Mapping[Id, BuildRequested] = field(default_factory=dict)
    conditions: Sequence[RepeatedCondition] = ()
    recorded: PeriodOutcome | None = None
    unknown: Counter[str] = field(default_factory=Counter)  # name in UNKNOWN → how often

    @property
    def usual(self) -> Sequence[BuildRequested]:
        """Return a request for each of the flavors that were requested most."""
        counts, arrivals = Counter[str](), list[BuildRequested]()
        for event in self.events:
            if isinstance(event, RecordedArrival):
                counts[label_of(event.request.flavor)] += len(event.consumers)
                arrivals.append(event.request)
        first = {label_of(request.flavor): request for request in reversed(arrivals)}
        return [first[name] for name, _ in counts.most_common(MOST_USUAL)]


def label_of(flavor: Flavor) -> str:
    """Return the name of a flavor, or the amounts of the unnamed flavor of a `berth boot`."""
    if flavor.name != UNNAMED:
        return flavor.name
    amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    return ",".join(f"{name}:{amount}" for name, amount in amounts.items() if amount)


def usual_lives(period: RecordedPeriod) -> Callable[[Flavor], float]:
    """Return a function that returns how long an instance of a flavor lives: the median of those that began
    in the period. It is infinite if most of them still exist.
    """
    began: dict[Id, RecordedArrival] = {}
    lives: dict[Id, float] = {}
    for event in period.events:
        if isinstance(event, RecordedArrival) and not event.is_refused:
            began.setdefault(event.consumers[0], event)
        elif isinstance(event, RecordedEnd) and event.consumer in began:
            lives[event.consumer] = event.at - began[event.consumer].at
    of_flavor: dict[str, list[float]] = {}
    for consumer, arrival in began.items():
        of_flavor.setdefault(label_of(arrival.request.flavor), []).append(lives.get(consumer, inf))
    medians = {name: median_low(some) for name, some in of_flavor.items()}
    of_all = median_low([life for some in of_flavor.values() for life in some] or [inf])
    return lambda flavor: medians.get(label_of(flavor), of_all)


class HostsInUse:
    """Counts the hosts on which consumers have allocations, over time."""

    def __init__(self, index: Index, begin: float) -> None:
        self._index = index
        self._at, self._begin = begin, begin
        self._area = 0.0  # hosts in use, multiplied by seconds
        self._roots: dict[Id, frozenset[str]] = {}  # consumer → its hosts
        self.consumers = Counter[str]()  # root of a host → number of consumers there
        self.most = 0

    def put(self, consumer: Id, allocations: Allocations, at: float) -> frozenset[str]:
        """Set the allocations of a consumer ({}: none) from a time on; return the roots of the hosts whose
        consumers changed.
        """
        self._advance(at)
        rows = self._index.rows
        # the root of a tree that an agent reports; pools of resources have no agent
        now = frozenset([row.root for id_ in allocations if (row := rows.get(id_)) is not None and row.agent])
        before = self._roots.pop(consumer, frozenset())
        if now:
            self._roots[consumer] = now
        for root in before - now:
            self.consumers[root] -= 1
            if not self.consumers[root]:
                del self.consumers[root]
        self.consumers.update(now - before)
        self.most = max(self.most, len(self.consumers))
        return before ^ now

    def _advance(self, at: float) -> None:
        self._area += len(self.consumers) * max(at - self._at, 0.0)
        self._at = max(self._at, at)

    def outcome(
        self, end: float, requested: int, refused: int, gained: int = 0, lost: int = 0
    ) -> PeriodOutcome:
        self._advance(end)
        roots = [self._index.rows[root] for root in self._index.trees]
        hosts = sum(bool(row.agent) for row in roots)
        mean = self._area / (end - self._begin) if end > self._begin else float(len(self.consumers))
        in_use = len(self.consumers)
        return PeriodOutcome(requested, refused, gained, lost, mean, self.most, hosts - in_use, hosts)
