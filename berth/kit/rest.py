"""The extension point of the REST API: a feature adds operations, and the ends of its requests.

`RestRequests` is all that the operations of a feature use of the API's own operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from berth.kit.http_descriptions import DescribedOperation, OperationKey
from berth.kit.rest_ends import EndRule
from berth.rest.call import Handler
from berth.rest.callers import RestCaller
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.projects import ProjectsFound
from bus.queries import WaitingRequest
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)


class RestRequests(Protocol):
    """Accepts requests over the REST API, and reads their projects and ends, for operations of features."""

    bus: Bus
    settings: Settings

    async def accept_request(
        self, caller: RestCaller, id_: str, message: Message, project: str, owners: ProjectsFound
    ) -> None:
        """Store and publish a request about an object of a project, if the caller may send it."""

    async def owners(self, caller: RestCaller, act: Message, build: str) -> ProjectsFound:
        """Return the owners of the ids in a message that changes a build that the caller may read."""

    async def project(self, caller: RestCaller, id_: str) -> str:
        """Return the project of a build or request that the caller may read."""

    async def join(self, build: str, project: str) -> None:
        """Record the project of a build or request, so that its results are stored."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages, and wait for the confirm up to a time limit."""

    async def end_of(self, request: str, kind: type[M]) -> M | None:
        """Return the stored message of this type that ended a request, or None."""

    async def waiting(self, id_: str) -> WaitingRequest | None:
        """Return how a request waits for capacity; None if it does not wait, or no scheduler answers."""


@dataclass(frozen=True)
class RestOperation:
    """An operation of the REST API: its description for OpenAPI, and the function that executes it."""

    described: DescribedOperation
    handler: Handler


@dataclass(frozen=True, kw_only=True)
class RestPart:
    """A feature's part of the REST API."""

    operations: Mapping[OperationKey, RestOperation]
    # messages for clients that the log of ends stores
    ends: Mapping[type[Message], EndRule] = field(default_factory=dict)
