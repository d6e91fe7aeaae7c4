"""Prometheus metrics of placement."""

from prometheus_client import Gauge

HELD_UP = Gauge(
    "berth_relay_held_up",
    "1 while committed changes cannot be published",
    ["what"],
)
LAST_CHANGE = Gauge("berth_placement_last_change", "number of the last commit that this memory knows")
ROOTS = Gauge("berth_placement_roots", "hosts and bare-metal nodes that this memory knows")
