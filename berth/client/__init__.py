"""A client of the REST API for Python programs, with asyncio and without, and the messages of clients."""

from berth.client.blocking import Blocking
from berth.client.over_http import RestClient, RestRefusal
from berth.features import add_messages
from bus.messages import (
    BuildCancelled,
    BuildCancelRequested,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
)
from bus.queries import FindWaiting, WaitingFound
from bus.requests import Flavor, Hints, Image, ResourceGroup

add_messages()

__all__ = [
    "Blocking",  # runs a client for programs without asyncio
    "BuildCancelRequested",  # cancels a request
    "BuildCancelled",  # the result of a cancellation
    "BuildDeleteRequested",  # deletes an instance
    "BuildDeleted",  # the result of a deletion
    "BuildEnded",  # the result of a build
    "BuildRequested",  # requests instances
    "FindWaiting",  # asks a scheduler for waiting requests
    "Flavor",  # `BuildRequested.flavor`
    "Hints",  # `BuildRequested.hints`
    "Image",  # `BuildRequested.image`
    "ResourceGroup",  # an element of `BuildRequested.groups`
    "RestClient",  # a client of the REST API
    "RestRefusal",  # a request that the REST API refused
    "WaitingFound",  # the answer to FindWaiting
]
