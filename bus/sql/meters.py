"""Prometheus metrics of a process's databases."""

from prometheus_client import Counter

LOST_RACES = Counter(
    "berth_transactions_lost", "transactions that were retried after a serialization failure"
)
REFUSED = Counter("berth_database_refused", "times when no connection to a database was to be had")
