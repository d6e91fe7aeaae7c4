"""Defines filters and weighers, and the data that they read: a host's data and a flavor of a request."""

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from typing import Any, Protocol, TypeVar

import msgspec

from bus.aggregates import Aggregate
from bus.candidates import Bools, Floats, FreeProvider, Ints, ProviderArrays, SenselessQuery
from bus.claims import Choice, ConsumerClaim
from bus.decisions import RULE_ERROR
from bus.messages import BuildPlaced, BuildRequested
from bus.queries import Candidate, FindCandidates
from bus.reports import HostState
from bus.requests import Flavor
from bus.vocabulary import Allocations, Id, cause_of
from scheduler_worker.core.demand import Shape, UsualShapes

# The scope of a choice of hosts, limits of hosts, and parts of claims: what narrowings give to orders.


@dataclass(frozen=True, slots=True)
class Scope:
    """The way in which an order's hosts are chosen, joined over the narrowings that concern the order."""

    alone: bool = False  # its choice changes the hosts of the next order, so it shares no evaluation
    # choices of orders with one key change each other's hosts; None: they do not
    key: Id | None = None
    free: tuple[Allocations, ...] = ()  # counted as free while its hosts are searched
    source: Id = ""  # the object of a feature that holds `free`; "": none
    # what its instance holds already and needs only once: counted as free, and not reserved again
    held: Allocations = field(default_factory=dict)
    # True if only preferred hosts are searched: a shortage is no reason, because further alternatives follow,
    # and alternates are chosen after the claim, by `Narrowing.late`
    optional: bool = False
    jointly: Any = None  # a JointChoice for all instances; at most one narrowing sets it

    def joined(self, other: "Scope") -> "Scope":
        """Return the scope with the restrictions of both. For values that only one scope may set, such as
        `key`, this scope's precede.
        """
        return Scope(
            alone=self.alone or other.alone,
            key=self.key or other.key,
            free=(*self.free, *other.free),
            source=self.source or other.source,
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
    roots: frozenset[str]  # of the hosts
    why: Callable[[str], str] = field(compare=False)  # returns why the host with a root is excluded


class ClaimPart(Protocol):
    """A feature's part of the claim of a chosen host, and of the message about the placed instance."""

    def in_claim(self, claim: ConsumerClaim, parts: "Sequence[ClaimPart]") -> ConsumerClaim:
        """Return the claim with this part; `parts` are those of all claims of the order."""

    def in_placed(self, placed: BuildPlaced) -> BuildPlaced:
        """Return the message about the instance with this part."""


# Fields that differ between otherwise equal requests. An `Alternative` has them empty, so that equal requests
# share it.
ITS_OWN: Mapping[str, Any] = {
    "request": "",
    "instances": (),
    "reply_to": "",
    "strict": False,
    "unknown_fields": (),
}
T = TypeVar("T")
Number = Any  # one host's float, or an array of all hosts' floats; both have the same operators
UNKNOWN = float("nan")  # the value of an attribute that the host did not report
Reads = Callable[[HostState], float]
# Attributes of a host by name. A hypervisor version of 0 means that none was reported.
FACTS: Mapping[str, Reads] = {
    "load": lambda state: state.load,
    "instances": lambda state: state.instances,
    "enabled": lambda state: state.enabled,
    "forced_down": lambda state: state.forced_down,
    "hypervisor_version": lambda state: state.hypervisor_version or UNKNOWN,
    "reported": lambda state: state.building,
}


class RuleError(SenselessQuery):
    """The error that a filter or weigher raised an exception, so that no host can be chosen for a request."""

    code = RULE_ERROR

    def __init__(self, rule: str, problem: BaseException) -> None:
        where = traceback.extract_tb(problem.__traceback__)
        place = f" ({where[-1].filename}, line {where[-1].lineno})" if where else ""
        said = " ".join(str(problem).split())
        super().__init__(cause_of(f"{rule} raised {type(problem).__name__}: {said}{place}"))
        self.rule = rule


def guarded(rule: str, function: Callable[..., Any], wrong: Callable[[Any], str] | None = None) -> Any:
    """Return a function of a filter or weigher that raises RuleError if it raises any exception, or if it
    returns a value for which `wrong` returns a reason.
    """

    def call(*arguments: Any) -> Any:
        try:
            result = function(*arguments)
            if wrong is not None and (why := wrong(result)):
                raise TypeError(why)
            return result
        except SenselessQuery:
            raise
        except (Exception, SystemExit) as problem:
            raise RuleError(rule, problem) from problem

    return call


def as_anybodys(request: BuildRequested) -> BuildRequested:
    """Return the request without its id and the other fields that only this request has, so that equal
    requests compare equal.
    """
    return msgspec.structs.replace(request, **ITS_OWN)


@dataclass(frozen=True, slots=True)
class Together:
    """Several instances that need one host that fits all of them."""

    several: int  # number of these instances
    asked: Mapping[str, int]  # amounts that all instances together need from one host's provider tree
    rule: str  # name of the filter that demands it; without this filter, it is no demand
    # returns the alternative as filters see it if instances are on a host, given its root and their number
    placed: Callable[["Alternative", str, int], "Alternative"] = field(compare=False)


class AllowedHosts:
    """The hosts to which a narrowing restricts a request, by position in placement's index. `why` returns the
    reason for the rejection of a host, given its root; `code` is that of the reason (docs/reasons.md).
    """

    def __init__(self, mask: Bools, name: str, code: str, why: Callable[[str], str]) -> None:
        self.mask = mask
        self.rule = Rule(name, lambda host, alternative: why(host.root), code=code)


class AlternativePart(Protocol):
    """Knowledge of a narrowing about an alternative. It is immutable. A filter or weigher that uses it names
    `parts` among the fields that it reads.
    """

    @property
    def without(self) -> str:
        """Return the text of the suggestion to leave this part out of the request, such as `without ...`."""

    @property
    def is_joint(self) -> bool:
        """Return whether the hosts of all instances must fit together. Then only a request without this part
        may fit, and no other change of it.
        """

    def most_on(self, root: str) -> int | None:
        """Return how many further instances a host may have; None: as many as fit."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The reason why no host fits, if it is known before the search."""

    code: str  # of the reason (docs/reasons.md)
    why: str


class Restriction(Protocol):
    """A narrowing's restriction of an alternative to certain amounts on certain hosts."""

    @property
    def id(self) -> Id:
        """Return the id of what the alternative is restricted to."""

    @property
    def is_optional(self) -> bool:
        """Return whether attempts without this restriction follow, so that other hosts may be used."""

    @property
    def within(self) -> Mapping[str, Sequence[Allocations]]:
        """Return, by root, lists of allocations: one of them must cover each candidate of the host."""

    def choices(self, ways: Sequence[Candidate], taken: dict[Id, Allocations]) -> tuple[Choice, ...]:
        """Return what a claim names for each candidate. `taken` belongs to the restrictions of a feature: it
        records what earlier claims of the batch have taken.
        """

    def renewed(self, renew: Callable[[FindCandidates], FindCandidates]) -> "Restriction":
        """Return this restriction of the search that `renew` returns."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One flavor of a request, the preferred or an alternative one, with its query for candidates and the
    data for filters and weighers."""

    request: BuildRequested  # the request without the fields of `ITS_OWN`
    flavor: Flavor
    question: FindCandidates
    alternative_index: int = 0  # 0: the preferred flavor; n: the n-th flavor of `or_else`
    notes: tuple[str, ...] = ()  # warnings about parts of the request that have no effect
    preferred: Mapping[str, float] = field(default_factory=dict)  # preferred trait → weight
    # resource class → preferred free amount, and its weight
    preferred_amounts: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    parts: tuple[AlternativePart, ...] = ()  # what narrowings know about it, at most one value of a type
    together: Together | None = None  # set if one host must fit several instances
    within_roots: frozenset[str] = frozenset()  # hosts to which a narrowing restricts it; empty: all
    same: frozenset[str] | None = None  # hosts of instances in the hint `same_host`; None: no such hint
    different: frozenset[str] = frozenset()  # roots of the hosts of instances in the hint `different_host`
    current_roots: frozenset[str] = frozenset()  # for a move: root of the source host
    limits: tuple[HostLimit, ...] = ()  # hosts that it may not use for now; `question` excludes them
    is_external: bool = False  # another system, such as Nova, builds the instances
    allowed: AllowedHosts | None = field(default=None, compare=False)  # None: all hosts
    restriction: Restriction | None = None  # set by a narrowing
    unfit: Unfit | None = None  # why no host fits, if that is known before the search

    def limited(self, limit: HostLimit) -> "Alternative":
        """Return a copy that may not use the hosts of a limit."""
        excluded = tuple(sorted({*self.question.not_roots, *limit.roots}))
        question = msgspec.structs.replace(self.question, not_roots=excluded)
        return replace(self, question=question, limits=(*self.limits, limit))

    def part(self, type_: type[T]) -> T | None:
        """Return the alternative's part of this type, or None."""
        for part in self.parts:
            if isinstance(part, type_):
                return part
        return None

    def with_part(self, part: AlternativePart) -> "Alternative":
        """Return a copy with a part, which replaces one of the same type."""
        others = [other for other in self.parts if type(other) is not type(part)]
        return replace(self, parts=(*others, part))

    def without_part(self, part: AlternativePart) -> "Alternative":
        """Return the alternative without this part."""
        return replace(self, parts=tuple([other for other in self.parts if other is not part]))

    def most_on(self, root: str) -> int | None:
        """Return how many further instances a host may have; None: as many as fit."""
        return min((most for part in self.parts if (most := part.most_on(root)) is not None), default=None)

    @property
    def image_properties(self) -> Mapping[str, str]:
        """Return the properties of the request's image; empty if it names none."""
        return self.request.image.properties if self.request.image is not None else {}

    @property
    def pinned(self) -> frozenset[str]:
        """Return the roots to which the hosts or instances that the request names, or a narrowing, restrict
        it; empty: no restriction.
        """
        if self.question.roots:
            return frozenset(self.question.roots)
        if self.same is not None:
            return self.same
        return self.within_roots

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
    zone: str = ""  # zone that the agent reports; aggregates may name other zones in their metadata
    traits: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    # free amounts of the provider tree by resource class, without reserved amounts
    free: Mapping[str, int] = msgspec.field(default_factory=dict)
    capacity: Mapping[str, int] = msgspec.field(default_factory=dict)
    state: HostState | None = None  # the last report; None: no report so far
    down: str = ""  # why the host counts as down; "" if it does not
    building: int = 0  # builds in progress by the last report, and builds sent since then
    failures: float = 0.0  # count of failed builds that the host caused, decaying with time

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
    """Yield the texts that are finite numbers; skip all other texts."""
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if isfinite(number):
            yield number


Refuses = Callable[[HostFacts, Alternative], str | None]
# Each: the multiplier of a weigher, and its function of an allocation candidate.
WeightedCandidates = Sequence[tuple[float, Callable[[Candidate], float]]]


class View(Protocol):
    """The data of hosts for filters and weighers, as numbers.

    `OneHost` has that of one host. `AllHosts` has that of all fitting hosts: its functions return arrays, or
    one number if all hosts are equal. So a filter or weigher computes with operators and functions such as
    `where`.
    """

    def free(self, resource_class: str) -> Number:
        """Return the host's free amount of a resource class."""

    def capacity(self, resource_class: str) -> Number:
        """Return the host's total amount of a resource class."""

    def has(self, trait: str) -> Number:
        """Return 1 for a host with the trait, else 0."""

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        """Return an attribute of HostState (load, instances, hypervisor_version, enabled, forced_down), or
        `otherwise` if it was not reported.

        The scheduler adds: up, building, sent (builds that the report may not include yet), failures.
        """

    def metric(self, name: str) -> Number:
        """Return the value of the metric with this name that the host reported, or UNKNOWN."""

    def by_root(self, values: Mapping[str, float]) -> Number:
        """Return the number that `values` has for the root of the host, or 0."""

    def among(self, roots: Collection[str]) -> Number:
        """Return 1 if the host is one of the given roots, else 0."""

    def within(self, matches: Callable[[Aggregate], bool]) -> Number:
        """Return 1 if `matches` is true for an aggregate of the host, else 0."""

    def cached(self, image: str) -> Number:
        """Return 1 for a host that has cached this image, else 0."""

    def known(self, value: Number) -> Number:
        """Return whether a value that the host may report is known; a value not reported is UNKNOWN."""

    @property
    def demand(self) -> UsualShapes:
        """Return the usual shapes of requests. Only a view of all hosts has them."""

    def providers(self) -> ProviderArrays:
        """Return the amounts of each provider. Only a view of all hosts has them."""

    def positions(self) -> Ints:
        """Return the rows of the hosts in the arrays of `providers`."""

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        """Return the result of the function `value` for the host. Use only for data that is not in arrays:
        each host costs 1 µs.
        """

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number:
        """Return `then` for the hosts that fulfil the condition, and `otherwise` for all others."""

    def override(self, key: str, otherwise: float) -> Number:
        """Return the lowest number that aggregates set for the host under a metadata key, or `otherwise`."""


@dataclass(frozen=True)
class Rule:
    """A filter: it accepts a host, or rejects it with a sentence as the reason."""

    name: str
    refuses: Refuses
    code: str = ""  # code of the reason for a rejection (docs/reasons.md); "": the filter's name
    # fields of an `Alternative` or its request that the filter reads, such as hints.query; "*": all
    reads: tuple[str, ...] = ()
    passes: bool = False  # whether a rejection can end within seconds without a change of the host
    # Returns a mask of the accepted hosts: faster than `refuses` if many hosts are rejected.
    admits: Callable[[View, Alternative], Number] | None = None
    # Returns whether the filter applies to a request; if not, it is skipped.
    concerns: Callable[[Alternative], bool] = lambda alternative: True
    reads_unscoped: bool = False  # whether it reads the flavor's extra specs that have no scope

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.code or self.name)


class WayValues(Protocol):
    """The values that a weigher of allocation candidates has for one request."""

    @property
    def highest(self) -> Number:
        """Return for each host the value of its best candidate, or an estimate that is rarely too low. Hosts
        are examined in this order, and a host whose estimate was too high is sorted in again.
        """

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> Sequence[float]:
        """Return the value of each candidate of a host with these providers, the root first, as of now."""


class ExpectedValues:
    """A base of `WayValues` that are computed faster for several hosts together."""

    def expect(self, indices: list[int]) -> None:
        """Name the hosts whose values will be asked for, probably in this order, by their indices in
        `highest`. Called after the first choice of a host for equal requests.
        """

    def of_expected(self, index: int, free: Mapping[str, int]) -> float | None:
        """Return the value of the only candidate of a host with these free amounts, which is on its root;
        None if it was not computed: then `of` is called.
        """


# What an instance holds: each time the row of a provider in placement's index, a class and an amount.
Held = tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class AlteredHost:
    """A host as it would be without some of its instances, and with further ones."""

    position: int  # of its root
    without: tuple[Held, ...] = ()
    added: tuple[Shape, ...] = ()  # each gets its best way on the host, one after the other


class UsableCapacity(Protocol):
    """The capacity of hosts that the usual requests could use, in average hosts. It is a copy of one moment,
    which threads may read.
    """

    def values(self, hosts: Sequence[AlteredHost]) -> Floats:
        """Return how much of each host is usable; minus infinity if an added instance does not fit."""

    def costs(self, shape: Shape) -> Floats:
        """Return for each row of placement's index how much less of the host is usable with one more instance
        of a shape; infinite if it does not fit.
        """

    def wasted(self) -> Floats:
        """Return for each row of placement's index what is free on the host, but not usable."""

    def instances(self, hosts: Sequence[AlteredHost]) -> Floats:
        """Return how many instances of a usual shape fit on each host: the mean over the shapes, by how much
        is requested of each.
        """


@dataclass(frozen=True)
class Weigher:
    """A weigher: a function that gives each host a number. More is better, unless the multiplier is negative.

    A host's score is the sum over weighers of multiplier × (value − lowest) / (highest − lowest). Lowest and
    highest are over all fitting hosts. The divisor is at least `least_span`, so small differences count
    little. The metadata field `key` of an aggregate sets the multiplier for the aggregate's hosts.
    """

    name: str
    value: Callable[[View, Alternative], Number]  # returns an array, or one number for all hosts
    multiplier: float = 1.0
    lowest: float | None = None  # values up to this have score 0; None: the lowest value of all hosts
    least_span: float = 0.0
    # Returns a number for an allocation candidate. Of a host's candidates, the one with the highest weighted
    # sum is claimed.
    of_candidate: Callable[[Candidate], float] | None = None
    # Replaces `value`: returns the values of allocation candidates. A host counts as much as its best
    # candidate, which is claimed. The highest value of all hosts counts 1, one that is lower by `half_at`
    # counts 1/2, and lower ones less and less: half_at / (half_at + difference).
    of_ways: Callable[[View, Alternative], WayValues] | None = None
    half_at: float = 1.0
    # Returns what would be usable of hosts, for planners of moves of instances of these shapes.
    usable: Callable[[View, Collection[Shape]], UsableCapacity] | None = None
    # Returns whether the weigher with this multiplier prefers hosts with little free capacity now; None: it
    # never does.
    packs: Callable[[float], bool] | None = None
    # Returns what decides its values now, which decision records show; "": nothing in particular.
    decided_by: Callable[[], str] | None = None
    key: str = ""  # metadata key of aggregates that sets the multiplier; "": NAME_weight_multiplier
    reads: tuple[str, ...] = ()  # fields of a request that the weigher reads, as in `Rule`
    # True if hosts are evaluated one by one: with the multiplier 0 the weigher is left out, whatever
    # multipliers aggregates set
    is_slow: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or f"{self.name}_weight_multiplier")


class OneHost(msgspec.Struct, frozen=True, gc=False):
    """The data of one host for filters and weighers."""

    host: HostFacts

    def free(self, resource_class: str) -> Number:
        return float(self.host.free.get(resource_class, 0))

    def capacity(self, resource_class: str) -> Number:
        return float(self.host.capacity.get(resource_class, 0))

    def has(self, trait: str) -> Number:
        return float(trait in self.host.traits)

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        reads = _OF_THE_HOST.get(name)
        if reads is not None:
            return reads(self.host)
        state = self.host.state
        if state is None:
            return otherwise
        value = float(FACTS[name](state))
        return otherwise if isnan(value) else value

    def metric(self, name: str) -> Number:
        state = self.host.state
        return UNKNOWN if state is None else float(state.metrics.get(name, UNKNOWN))

    def by_root(self, values: Mapping[str, float]) -> Number:
        return float(values.get(self.host.root, 0))

    def among(self, roots: Collection[str]) -> Number:
        return float(self.host.root in roots)

    def within(self, matches: Callable[[Aggregate], bool]) -> Number:
        return float(any(map(matches, self.host.aggregates))) if self.host.aggregates else 0.0

    def cached(self, image: str) -> Number:
        return float(self.host.state is not None and image in self.host.state.images)

    def known(self, value: Number) -> Number:
        return not isnan(value)

    @property
    def demand(self) -> UsualShapes:
        raise TypeError("a view of one host has no demand")

    def providers(self) -> ProviderArrays:
        raise TypeError("a view of one host has no arrays of providers")

    def positions(self) -> Ints:
        raise TypeError("a view of one host has no positions")

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        return value(self.host)

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number:
        return then if condition else otherwise

    def override(self, key: str, otherwise: float) -> Number:
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
