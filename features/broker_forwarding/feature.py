"""Declares the feature broker_forwarding."""

from bus.feature import Feature

FEATURE = Feature(
    name="broker_forwarding",
    says="forwards all messages to another RabbitMQ while a running berth moves there",
    commands={"Inspect and check": {"broker": "commands"}},
    command_groups={
        "broker": "Move a running berth to another RabbitMQ (features/broker_forwarding/README.md)."
    },
)
