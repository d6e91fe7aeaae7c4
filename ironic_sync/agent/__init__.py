"""The agent that builds on an Ironic's nodes: orders from the conductor, carried out through Ironic's API."""

from ironic_sync.agent.worker import metal_agent, news_of

__all__ = ["metal_agent", "news_of"]
