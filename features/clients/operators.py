"""Recognizes the RabbitMQ user of a client with a role, with which an operator runs commands."""

from berth.kit import OperatorPart, Settings
from bus.broker_urls import client_user, user_of
from bus.protocol import Transport
from features.clients.relayed_bus import RelayedBus


def bus(settings: Settings, transport: Transport) -> RelayedBus | None:
    """Return the bus of a command whose RabbitMQ user is a client's; None for other users."""
    user, prefix = user_of(settings.bus.amqp_url) or "", client_user("", settings.bus.exchange)
    return RelayedBus(transport, user.removeprefix(prefix)) if user.startswith(prefix) else None


PART = OperatorPart(bus)
