"""The agent that builds on Ironic's nodes: executes the conductor's orders through Ironic's API."""

from ironic_sync.agent.lease import NodeLease
from ironic_sync.agent.worker import metal_agent, notification_source

__all__ = ["NodeLease", "metal_agent", "notification_source"]
