"""Starts the servers that berth needs, such as RabbitMQ and PostgreSQL, for tests, demo and benchmarks."""
