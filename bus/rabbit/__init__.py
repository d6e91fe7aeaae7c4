"""The bus over RabbitMQ."""

from bus.rabbit.transport import RabbitTransport
