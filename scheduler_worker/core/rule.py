"""Defines filters and weighers, and the data that they read: a host's data and a flavor of a request."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from bus.aggregates import Aggregate
from bus.candidates import Bools
from bus.groups import ServerGroup
from bus.messages import BuildRequested
from bus.queries import Candidate, FindCandidates
from bus.reports import HostState
from bus.requests import Flavor
from bus.reservations import ReservedSlot
from bus.vocabulary import Id

if TYPE_CHECKING:
    from scheduler_worker.core.host_map import AllHosts

# Fields of one request only. An `Alternative`'s request lacks them: equal requests share it.
ITS_OWN: Mapping[str, Any] = {"request": "", "instances": (), "reply_to": ""}
Number = Any  # a float of one host, or an array of floats of all hosts, with the same operators
UNKNOWN = float("nan")  # not reported
Reads = Callable[[HostState], float]
# The attributes that can be read by name. A version of 0 means that no version was reported.
FACTS: Mapping[str, Reads] = {
    "load": lambda state: state.load,
    "instances": lambda state: state.instances,
    "enabled": lambda state: state.enabled,
    "forced_down": lambda state: state.forced_down,
    "hypervisor_version": lambda state: state.hypervisor_version or UNKNOWN,
    "reported": lambda state: state.building,
}


def as_anybodys(request: BuildRequested) -> BuildRequested:
    return msgspec.structs.replace(request, **ITS_OWN)


@dataclass(frozen=True, slots=True)
class Together:
    """The number and total amounts of an affinity group's new instances, which need a host that fits all."""

    several: int
    asked: Mapping[str, int]  # amounts that all instances take from the host's provider tree


class AllowedHosts:
    """The hosts to which constraints on domains restrict a request, by position in placement's index."""

    def __init__(self, mask: Bools, name: str, why: Callable[[str], str] = lambda root: "") -> None:
        self.mask = mask
        self.rule = Rule(
            name,
            lambda host, alternative: why(host.root) or f"its domain is not open: {name}",
            code="topology",
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """The slots of a reservation that a flavor of a request may draw from."""

    reservation: Id
    name: str
    slots: tuple[ReservedSlot, ...]  # slots with enough capacity
    question: FindCandidates  # the search for hosts without the reservation
    optional: bool  # the request does not name the reservation, so it may be placed elsewhere
    why_none: str = ""  # why the reservation has no capacity for it


@dataclass(frozen=True, slots=True)
class Alternative:
    """One flavor of a request, the preferred or an alternative one, with its query for candidates and the
    data for filters and weighers."""

    request: BuildRequested  # without the fields of a single request
    flavor: Flavor
    question: FindCandidates
    alternative_index: int = 0  # 0: the requested flavor; n: the nth of or_else
    notes: tuple[str, ...] = ()  # sentences about parts of the request without effect
    preferred: Mapping[str, float] = field(default_factory=dict)  # trait → weight, also of the flavor
    # resource class → an amount that should be free, and its weight
    preferred_amounts: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    group: ServerGroup | None = None  # the group to join; the claim checks it again
    members: Mapping[str, int] = field(default_factory=dict)  # root → number of group members there
    together: Together | None = None  # several instances of an affinity group without members on any host
    same: frozenset[str] | None = None  # roots of the instances of `same_host`; None: no such hint
    different: frozenset[str] = frozenset()  # roots of the instances of `different_host`
    current_roots: frozenset[str] = frozenset()  # roots it holds already: a move's source
    reserved: frozenset[str] = frozenset()  # in `question.not_roots` because they are reserved
    is_external: bool = False  # another system, such as Nova, builds the instances
    allowed: AllowedHosts | None = field(default=None, compare=False)  # None: constraints allow all hosts
    draw: Draw | None = None  # the reservation that it draws from
    why_reserved: Callable[[str], str] = field(default=str, compare=False)

    @property
    def image_properties(self) -> Mapping[str, str]:
        return self.request.image.properties if self.request.image is not None else {}

    @property
    def pinned(self) -> frozenset[str]:
        """Return the roots to which the hosts or instances that the request names, or its affinity group,
        restrict it; empty: no restriction.
        """
        if self.question.roots:
            return frozenset(self.question.roots)
        if self.same is not None:
            return self.same
        affinity = self.group is not None and self.group.policy == "affinity"
        return frozenset(self.members) if affinity else frozenset()

    @property
    def asked(self) -> dict[str, int]:
        """Return the total amount of each resource class that the flavor requests."""
        asked: dict[str, int] = {}
        for group in self.question.groups:
            for name, amount in group.resources.items():
                asked[name] = asked.get(name, 0) + amount
        return asked


class HostFacts(msgspec.Struct, frozen=True, gc=False):
    """The data of one host for filters, from placement's records and from the host's reports."""

    root: str
    host: str
    cell: str
    agent: str
    zone: str = ""  # as its owner reports it; zones of aggregates are in their metadata
    traits: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    # in its whole tree, without reserved amounts
    free: Mapping[str, int] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, int] = msgspec.field(default_factory=dict)
    state: HostState | None = None  # None: no report so far
    down: str = ""  # why the host counts as down
    building: int = 0  # builds that the host reported, and builds sent since
    failures: float = 0.0  # failed builds that the host caused, decaying with time

    def metadata(self, key: str) -> Iterator[str]:
        """Yield the values that the host's aggregates have for a metadata key."""
        for aggregate in self.aggregates:
            if key in aggregate.metadata:
                yield aggregate.metadata[key]

    def limit(self, key: str, otherwise: float) -> float:
        """Return the lowest number that the host's aggregates have for a metadata key, or `otherwise`."""
        return min(numbers(self.metadata(key)), default=otherwise) if self.aggregates else otherwise

    @property
    def sent(self) -> int:
        """Return the number of builds sent to the host since its last report."""
        return self.building - (self.state.building if self.state is not None else 0)


def numbers(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if isfinite(number):
            yield number


Refuses = Callable[[HostFacts, Alternative], str | None]
WeightedCandidates = Sequence[tuple[float, Callable[[Candidate], float]]]  # multiplier, function
View: TypeAlias = "OneHost | AllHosts"


@dataclass(frozen=True)
class Rule:
    """A filter: it accepts a host, or rejects it with a sentence as the reason."""

    name: str
    refuses: Refuses
    code: str = ""  # the reason code; the name by default
    # of the alternative or its request: flavor.name, image, hints.query, group; * for all
    reads: tuple[str, ...] = ()
    passes: bool = False  # whether a rejection passes within seconds
    # A mask of the accepted hosts: for filters that reject many hosts.
    admits: Callable[[View, Alternative], Number] | None = None
    # Whether the filter applies to a request; if not, no host is evaluated.
    concerns: Callable[[Alternative], bool] = lambda alternative: True

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.code or self.name)


@dataclass(frozen=True)
class Weigher:
    """A weigher: a function that gives each host a number. More is better, unless the multiplier is negative.

    A host's score is the sum over weighers of multiplier × (value − lowest) / (highest − lowest). Lowest and
    highest are over all fitting hosts. The divisor is at least `least_span`, so small differences count
    little. The metadata field `key` of an aggregate sets the multiplier for the aggregate's hosts.
    """

    name: str
    value: Callable[[View, Alternative], Number]  # one number: all hosts are equal
    multiplier: float = 1.0
    lowest: float | None = None  # start of the scale, also for lower values; None: the lowest value
    least_span: float = 0.0
    # Sorts the allocation candidates of one host: the one with the highest sum over weighers is claimed.
    of_candidate: Callable[[Candidate], float] | None = None
    key: str = ""  # of the multiplier in aggregates' metadata; NAME_weight_multiplier by default
    reads: tuple[str, ...] = ()  # fields of a request, as for a filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or f"{self.name}_weight_multiplier")


class OneHost(msgspec.Struct, frozen=True, gc=False):
    """The data of one host for filters and weighers, as numbers.

    `AllHosts` has the same functions for all fitting hosts: they return arrays, or one number if all hosts
    are equal. A filter or weigher gets either, so it computes with operators and functions such as `where`.
    """

    host: HostFacts

    def free(self, resource_class: str) -> Number:
        """Return the host's free amount of a resource class."""
        return float(self.host.free.get(resource_class, 0))

    def capacity(self, resource_class: str) -> Number:
        """Return the host's total amount of a resource class."""
        return float(self.host.capacity.get(resource_class, 0))

    def has(self, trait: str) -> Number:
        """Return 1 for a host with the trait, else 0."""
        return float(trait in self.host.traits)

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        """Return an attribute of HostState (load, instances, hypervisor_version, enabled, forced_down), or
        `otherwise` if it was not reported.

        The scheduler adds: up, building, sent (builds that the report may not include yet), failures.
        """
        reads = _OF_THE_HOST.get(name)
        if reads is not None:
            return reads(self.host)
        state = self.host.state
        if state is None:
            return otherwise
        value = float(FACTS[name](state))
        return otherwise if isnan(value) else value

    def metric(self, name: str) -> Number:
        """Return the value of the metric with this name that the host reported, or UNKNOWN."""
        state = self.host.state
        return UNKNOWN if state is None else float(state.metrics.get(name, UNKNOWN))

    def members(self, alternative: Alternative) -> Number:
        """Return the number of members of the request's server group on the host."""
        return float(alternative.members.get(self.host.root, 0))

    def among(self, roots: Collection[str]) -> Number:
        """Return 1 if the host is one of the given roots, else 0."""
        return float(self.host.root in roots)

    def within(self, matches: Callable[[Aggregate], bool]) -> Number:
        """Return 1 if `matches` is true for an aggregate of the host, else 0."""
        return float(any(map(matches, self.host.aggregates))) if self.host.aggregates else 0.0

    def cached(self, image: str) -> Number:
        """Return 1 for a host that has cached this image, else 0."""
        return float(self.host.state is not None and image in self.host.state.images)

    def known(self, value: Number) -> Number:
        """Return whether a value that the host may report is known; a value not reported is UNKNOWN."""
        return not isnan(value)

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        """Return the result of the function `value` for the host. Use only for data that is not in arrays:
        each host costs 1 µs.
        """
        return value(self.host)

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number:
        return then if condition else otherwise

    def override(self, key: str, otherwise: float) -> Number:
        """Return the lowest number that aggregates set for the host under a metadata key, or `otherwise`."""
        return self.host.limit(key, otherwise)


_OF_THE_HOST: Mapping[str, Callable[[HostFacts], float]] = {
    "up": lambda host: not host.down,
    "building": lambda host: host.building,
    "sent": lambda host: host.sent,
    "failures": lambda host: host.failures,
}


def array_rule(
    name: str,
    admits: Callable[[View, Alternative], Number],
    why: Refuses,
    concerns: Callable[[Alternative], bool] = lambda alternative: True,
    **fields: Any,
) -> Rule:
    """Return a filter that evaluates all hosts as arrays. `why` returns the reason why a host is rejected;
    `concerns` returns whether the filter applies to a request.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if not concerns(alternative) or admits(OneHost(host), alternative):
            return None
        return why(host, alternative)

    return Rule(name, refuses, admits=admits, concerns=concerns, **fields)
