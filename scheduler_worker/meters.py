"""What a scheduler counts, for Prometheus: above all how often another was there before it."""

from prometheus_client import Counter, Gauge, Histogram

CLAIMED = Counter(
    "berth_scheduler_claims", "instances a host was claimed for, by placement's answer", ["result"]
)
TURNED_DOWN = Counter(
    "berth_scheduler_choices_refused", "hosts placement turned down in claims, by why", ["why"]
)
CROSSED = Counter(
    "berth_scheduler_crossings", "picks outside the slice of this scheduler, for want of room in it"
)
DECIDED = Counter("berth_scheduler_requests", "requests decided, by what came of them", ["outcome"])
KINDS = Histogram(
    "berth_scheduler_kinds",
    "kinds of requests in a batch: each is one search over all hosts",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
)
LIVE = Gauge("berth_schedulers_live", "schedulers that share the hosts, as this one hears")
