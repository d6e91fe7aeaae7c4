"""Prometheus metrics of every worker."""

from prometheus_client import Counter, Histogram

HANDLED = Counter("berth_messages", "messages settled, by how", ["worker", "topic", "outcome"])
HANDLING_SECONDS = Histogram(
    "berth_handling_seconds",
    "from taking messages off a queue to having settled them",
    ["worker", "topic"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
