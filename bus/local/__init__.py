"""The bus without RabbitMQ: an in-process broker, its file of messages, and a socket for local processes."""

from bus.local.broker import Chaos, LocalBroker
from bus.local.transport import LocalTransport
