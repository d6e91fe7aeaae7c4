"""Prometheus metrics of a ferry."""

from prometheus_client import Counter, Gauge

_OF = ["cell", "way", "crossing"]
CARRIED = Counter("berth_ferry_carried", "messages carried through the wall of a cell", _OF)
WAITING = Gauge("berth_ferry_waiting", "messages, or frames of them, that wait to be carried", _OF)
LAG = Gauge("berth_ferry_lag_seconds", "age of the oldest waiting message; 0: none waits", _OF)
