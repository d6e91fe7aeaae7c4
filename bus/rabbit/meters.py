"""Prometheus metrics of a process's connections to RabbitMQ."""

from prometheus_client import Counter, Gauge

CONNECTIONS = Gauge("berth_broker_connections", "connections to RabbitMQ that are up", ["broker"])
LOST = Counter("berth_broker_connections_lost", "connections to RabbitMQ that broke off", ["broker"])
