"""Compares the decisions of Nova's scheduler with berth's about the same requests."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt

from bus.vocabulary import cause_of
from features.nova.core.notifications import NO_VALID_HOST, Event
from features.nova.with_what_if.core.fragmentation import UNKNOWN, FreeMemory
from features.nova.with_what_if.messages import (
    HostShare,
    MissingPeriod,
    NovaReportFound,
    ObservedRequest,
    ReasonCount,
    SchedulerFigures,
    Verdict,
)

LATE_SECONDS = (
    5.0  # after this time, Nova may have claimed hosts for the request, and berth sees them as used
)
MOST_SHARES = 200
MOST_REASONS = 50
MOST_PERIODS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRequest:
    """The record of a request to Nova's scheduler, with berth's decision on the same request."""

    id: str
    request: str  # id of the request to Nova's API
    instance: str
    at: float
    operation: str = "boot"
    project: str = ""
    flavor: str = ""
    instances: int = 1
    hosts: tuple[str, ...] = ()
    reason: str = ""  # why berth has no host
    code: str = ""
    undecided: str = ""  # why berth did not decide
    seconds: float = 0.0  # berth's latency
    lag: float = 0.0  # from the request to berth's decision
    free: FreeMemory = UNKNOWN  # before the decision
    is_searched: bool = True  # False: Nova's scheduler searched no hosts, as Placement had no candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class NovaOutcome:
    """A result of Nova for an instance, from a notification: hosts were selected, a host finished its build
    or move (even with an error), or the request was refused.
    """

    request: str
    instance: str
    at: float
    event: Event
    operation: str = ""
    host: str = ""
    cause: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Case:
    """The record of a request to Nova's scheduler, joined with Nova's results for the request's instances."""

    decided: DecidedRequest
    selected_at: float | None = None
    used: dict[str, NovaOutcome] = field(default_factory=dict)  # instance → its first host
    refused: NovaOutcome | None = None

    def add(self, outcome: NovaOutcome) -> None:
        """Add one of Nova's results to this request; results must be added in chronological order."""
        if outcome.event == "selected":
            self.selected_at = outcome.at if self.selected_at is None else self.selected_at
        elif outcome.event == "used":
            self.used.setdefault(outcome.instance, outcome)
        elif self.refused is None:
            self.refused = outcome

    @property
    def operation(self) -> str:
        known = [outcome.operation for outcome in self.used.values()]
        if self.refused is not None:
            known.append(self.refused.operation)
        return self.decided.operation if self.decided.operation == "rebuild" or not known else known[0]

    @property
    def nova_hosts(self) -> tuple[str, ...]:
        return tuple(sorted(outcome.host for outcome in self.used.values()))

    @property
    def nova_reason(self) -> str:
        return "" if self.refused is None or self.used else self.refused.reason

    @property
    def is_refused_by_nova(self) -> bool:
        """Return whether Nova's scheduler found no host; False if a host was found but the build failed
        later.
        """
        return (
            self.refused is not None
            and self.refused.cause == NO_VALID_HOST
            and self.selected_at is None
            and not self.used
        )

    @property
    def nova_seconds(self) -> float | None:
        if self.selected_at is None or not self.decided.is_searched:
            return None
        return max(0.0, self.selected_at - self.decided.at)

    @property
    def verdict(self) -> Verdict:
        if self.decided.undecided:
            return "undecided"
        if self.decided.lag > LATE_SECONDS:
            return "late"
        if self.is_refused_by_nova:
            return "nova refused" if self.decided.hosts else "both refused"
        if not self.used:
            return "open"
        if not self.decided.hosts:
            return "berth refused"
        return "same" if not Counter(self.nova_hosts) - Counter(self.decided.hosts) else "different"

    def shown(self) -> ObservedRequest:
        decided = self.decided
        return ObservedRequest(
            id=decided.id,
            instance=decided.instance,
            at=decided.at,
            operation=self.operation,
            verdict=self.verdict,
            instances=decided.instances,
            flavor=decided.flavor,
            project=decided.project,
            nova_hosts=self.nova_hosts,
            nova_reason=cause_of(self.nova_reason),
            nova_seconds=self.nova_seconds,
            berth_hosts=tuple(sorted(decided.hosts)),
            berth_reason=cause_of(decided.undecided or decided.reason),
            berth_code=decided.code,
            berth_seconds=None if decided.undecided else decided.seconds,
        )


def report(
    decided: Iterable[DecidedRequest],
    outcomes: Iterable[NovaOutcome],
    hosts: Collection[str],
    *,
    since: float = 0.0,
    until: float = 0.0,
    listed: int = 100,
) -> NovaReportFound:
    """Return the comparison of Nova's and berth's decisions; `hosts`: all compute hosts, even if empty.

    `listed`: the number of requests to list for each kind of difference, at most.
    """
    cases = _joined(decided, outcomes)
    verdicts = Counter(case.verdict for case in cases)
    compared = [case for case in cases if case.verdict in ("same", "different")]
    by_nova = Counter(host for case in compared for host in case.nova_hosts)
    by_berth = Counter(host for case in compared for host in case.decided.hosts)
    shares = _shares(by_nova, by_berth)
    everywhere = {*hosts, *by_nova, *by_berth}
    answered = [case.decided.seconds for case in cases if not case.decided.undecided]
    selected = [seconds for case in cases if (seconds := case.nova_seconds) is not None]
    reasons = Counter(case.decided.undecided for case in cases if case.verdict == "undecided")
    return NovaReportFound(
        since=since,
        until=until,
        requests=len(cases),
        same=verdicts["same"],
        different=verdicts["different"],
        nova_refused=verdicts["nova refused"],
        berth_refused=verdicts["berth refused"],
        both_refused=verdicts["both refused"],
        undecided=verdicts["undecided"],
        late=verdicts["late"],
        open=verdicts["open"],
        nova=_figures(by_nova, everywhere, selected, _fragmentation(compared, lambda case: case.nova_hosts)),
        berth=_figures(
            by_berth, everywhere, answered, _fragmentation(compared, lambda case: case.decided.hosts)
        ),
        shares=tuple(shares[:MOST_SHARES]),
        more_hosts=max(0, len(shares) - MOST_SHARES),
        listed=tuple(_listed(cases, listed)),
        undecided_reasons=tuple(
            ReasonCount(reason=cause_of(reason), requests=number)
            for reason, number in reasons.most_common(MOST_REASONS)
        ),
    )


def of_instance(
    decided: Iterable[DecidedRequest], outcomes: Iterable[NovaOutcome]
) -> tuple[ObservedRequest, ...]:
    """Return the requests for an instance, each with Nova's results for it, the newest request first."""
    cases = sorted(_joined(decided, outcomes), key=lambda case: -case.decided.at)
    return tuple(case.shown() for case in cases)


def _joined(decided: Iterable[DecidedRequest], outcomes: Iterable[NovaOutcome]) -> list[_Case]:
    """Return the requests, each with Nova's results for it.

    A live migration may call the scheduler several times under one API request id: a result is assigned to
    the last call before the result. In a multi-create, results are matched by API request id alone.
    """
    by_key: dict[tuple[str, str], list[_Case]] = {}
    for request in sorted(decided, key=lambda each: each.at):
        by_key.setdefault((request.request, request.instance), []).append(_Case(request))
    several: dict[str, list[_Case]] = {}
    for (request_id, _), cases in by_key.items():
        if any(case.decided.is_searched for case in cases):
            cases[:] = [case for case in cases if case.decided.is_searched]
        if request_id:
            several.setdefault(request_id, []).extend(case for case in cases if case.decided.instances > 1)
    for outcome in sorted(outcomes, key=lambda each: each.at):
        found = by_key.get((outcome.request, outcome.instance)) or several.get(outcome.request) or []
        earlier = [case for case in found if case.decided.at <= outcome.at]
        if found:  # clocks of hosts differ: a result may seem older than its request
            (earlier[-1] if earlier else found[0]).add(outcome)
    return [case for cases in by_key.values() for case in cases]


def _shares(by_nova: Mapping[str, int], by_berth: Mapping[str, int]) -> list[HostShare]:
    shares = [
        HostShare(host=host, nova=by_nova.get(host, 0), berth=by_berth.get(host, 0))
        for host in {*by_nova, *by_berth}
    ]
    return sorted(
        shares, key=lambda share: (-abs(share.nova - share.berth), -share.nova - share.berth, share.host)
    )


def _figures(
    by_host: Mapping[str, int],
    everywhere: Collection[str],
    seconds: Sequence[float],
    fragmentation: float | None,
) -> SchedulerFigures:
    return SchedulerFigures(
        instances=sum(by_host.values()),
        hosts=len(by_host),
        imbalance=imbalance([by_host.get(host, 0) for host in everywhere]),
        fragmentation=fragmentation,
        p50=percentile(seconds, 50),
        p99=percentile(seconds, 99),
    )


def _fragmentation(compared: Iterable[_Case], hosts_of: Callable[[_Case], Sequence[str]]) -> float | None:
    """Return the mean share of free memory that is stranded after a decision, over all requests that ask for
    a single instance; None if unknown. `hosts_of` returns the hosts that Nova, or berth, chose.

    Each decision, of Nova and of berth, is applied to the free memory before Nova's decision.
    """
    single = [case for case in compared if case.decided.instances == 1]
    shares = [case.decided.free.fragmentation(hosts_of(case)[0]) for case in single]
    found = [share for share in shares if share is not None]
    return sum(found) / len(found) if found else None


def merged_periods(periods: Iterable[MissingPeriod]) -> tuple[MissingPeriod, ...]:
    """Merge overlapping periods of missing notifications; return the newest `MOST_PERIODS` periods."""
    found: list[MissingPeriod] = []
    for period in sorted(periods, key=lambda each: each.since):
        if found and period.since <= found[-1].until:
            found[-1] = MissingPeriod(since=found[-1].since, until=max(found[-1].until, period.until))
        else:
            found.append(period)
    return tuple(found[-MOST_PERIODS:])


def imbalance(instances: Sequence[int]) -> float | None:
    """Return the imbalance of instances on hosts: standard deviation divided by mean; None: no instances."""
    if not sum(instances):
        return None
    mean = sum(instances) / len(instances)
    return sqrt(sum((number - mean) ** 2 for number in instances) / len(instances)) / mean


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that at least `percent` % of the values do not exceed; None: no values."""
    ordered = sorted(values)
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else None


def _listed(cases: Iterable[_Case], most: int) -> Iterable[ObservedRequest]:
    """Yield the newest requests, at most `most` of each kind of difference between Nova and berth."""
    ordered = sorted(cases, key=lambda case: -case.decided.at)
    left = dict.fromkeys(("nova refused", "berth refused", "different", "undecided"), most)
    for case in ordered:
        if left.get(case.verdict):
            left[case.verdict] -= 1
            yield case.shown()
