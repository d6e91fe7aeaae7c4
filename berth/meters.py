"""Defines the metrics of every process, for Prometheus."""

from prometheus_client import Gauge

INFO = Gauge("berth_info", "always 1; the labels are the version of this process", ["version"])
