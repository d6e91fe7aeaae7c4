"""Moves a running berth to another RabbitMQ."""
