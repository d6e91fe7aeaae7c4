"""The workers of a cell whose agents share queues."""

from collections.abc import Container

from berth.kit import AgentQueuesPart
from bus.delivery.runner import Bus
from bus.worker import Worker
from features.shared_queues.gateway import agent_gateway
from features.shared_queues.messages import AGENT_ORDER, ANSWER_SECONDS
from features.shared_queues.relayed_orders import with_shared_queues


def gateway(cell: str, bus: Bus, removed: Container[str]) -> Worker:
    """Return the gateway of a cell, which runs in the processes of its conductor."""
    return agent_gateway(cell, bus.asker(AGENT_ORDER, timeout=ANSWER_SECONDS), bus.clock, removed)


def sharing(agent: Worker, bus: Bus) -> Worker:
    """Return an agent's worker without queues of its own."""
    return with_shared_queues(agent, bus.publish, bus.clock)


PART = AgentQueuesPart(gateway, sharing)
