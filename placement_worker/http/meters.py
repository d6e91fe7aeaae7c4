"""Prometheus metrics of the HTTP API."""

from functools import cache

from prometheus_client import Counter, Histogram

_REQUESTS = Counter(
    "berth_http_requests", "requests answered, by address pattern and status", ["method", "route", "status"]
)
_SECONDS = Histogram(
    "berth_http_seconds",
    "from a request's head to the end of its answer",
    ["method", "route"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "POST", "DELETE", "PATCH"))


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request. `route` is the pattern of the address, so that clients cannot create metric series."""
    known = method if method in _METHODS else "other"
    _counter(known, route, status).inc()
    _seconds(known, route).observe(seconds)


@cache
def _counter(method: str, route: str, status: int) -> Counter:
    return _REQUESTS.labels(method, route, str(status))


@cache
def _seconds(method: str, route: str) -> Histogram:
    return _SECONDS.labels(method, route)
