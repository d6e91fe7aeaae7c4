"""Clients of berth for Python programs: over HTTP and over RabbitMQ, with asyncio and without."""

from berth.client.blocking import Blocking
from berth.client.over_bus import BusClient
from berth.client.over_http import RestClient, RestRefusal
from berth.features import add_messages

add_messages()

__all__ = ["Blocking", "BusClient", "RestClient", "RestRefusal"]
