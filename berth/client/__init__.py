"""A client of the REST API for Python programs, with asyncio and without."""

from berth.client.blocking import Blocking
from berth.client.over_http import RestClient, RestRefusal
from berth.features import add_messages

add_messages()

__all__ = ["Blocking", "RestClient", "RestRefusal"]
