"""Declares the feature shared_queues."""

from bus.feature import Feature

FEATURE = Feature(
    name="shared_queues",
    adds=("messages", "scheduler", "agent_queues"),
    says="lets the agents of a cell share queues, which a gateway reads",
)
