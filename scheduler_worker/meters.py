"""Prometheus metrics of the scheduler, above all about conflicts with other schedulers."""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import Counter, Gauge

from bus.claims import Claimed, ClaimResult, Refused

CLAIMED = Counter(
    "berth_scheduler_claims", "instances a host was claimed for, by placement's answer", ["result"]
)
TURNED_DOWN = Counter(
    "berth_scheduler_choices_refused", "hosts that placement refused in claims, by reason", ["why"]
)
CROSSED = Counter(
    "berth_scheduler_crossings", "picks outside the slice of this scheduler, for want of room in it"
)
LIVE = Gauge("berth_schedulers_live", "schedulers that share the hosts, by their heartbeats")
RESCUED = Counter(
    "berth_scheduler_rescued", "requests that waited though there was a host, found by the slow sweep alone"
)
UNPLACEABLE = Counter("berth_scheduler_unplaceable", "requests that ended without a host")
HOSTS = Gauge("berth_scheduler_hosts", "hosts by state, as this scheduler judges it", ["status"])
WAITING_NOW = Gauge("berth_scheduler_waiting", "requests that wait for room with this scheduler")


def count_claims(results: Sequence[ClaimResult]) -> None:
    refusals = [
        refusal
        for result in results
        if isinstance(result, Claimed | Refused)
        for refusal in (result.refused if isinstance(result, Claimed) else result.refusals)
    ]
    for meter, counted in ((CLAIMED, Tally(map(type, results))), (TURNED_DOWN, Tally(map(type, refusals)))):
        for kind, count in counted.items():
            meter.labels(kind.__name__.lower()).inc(count)
