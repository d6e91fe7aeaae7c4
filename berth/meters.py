"""Metrics of a process, for Prometheus."""

from prometheus_client import Gauge

INFO = Gauge("berth_info", "1; of which version of berth this process is", ["version"])
