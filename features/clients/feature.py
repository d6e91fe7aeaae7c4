"""Declares the feature clients."""

from bus.decisions import OF_THE_WHOLE, ReasonTable
from bus.feature import Feature

FEATURE = Feature(
    name="clients",
    says="programs outside berth act for certain projects, or with a role, as RabbitMQ users of their own",
    adds=("messages", "scheduler", "operators", "credentials"),
    commands={"access client": "commands"},
    command_groups={
        "access client": "Programs outside berth: each has a RabbitMQ user of its own and acts for its"
        " projects only"
        " (features/clients/README.md)."
    },
    reasons=(
        ReasonTable(
            OF_THE_WHOLE,
            {"client": "the client is not registered for the project, or may not send this request"},
        ),
    ),
)
