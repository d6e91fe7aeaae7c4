"""The bodies of requests and responses of the REST API, in addition to the messages of the bus."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bus.messages import BuildRequested
from bus.problems import KnownProblem
from bus.queries import BuildStands, DecisionFound, Instance, WaitingRequest
from bus.vocabulary import Id, Message, Value

MOST_REQUESTS = 1000


class BatchRequested(Message, frozen=True, kw_only=True):
    """Several build requests, which are accepted together or not at all."""

    requests: Annotated[tuple[BuildRequested, ...], Meta(min_length=1, max_length=MOST_REQUESTS)]


class Accepted(Value, frozen=True, kw_only=True):
    """A build request that was published. `notes`: sentences about parts of the request without effect."""

    request: Id
    project: str
    builds: tuple[Id, ...]
    notes: tuple[str, ...] = ()


class BatchAccepted(Value, frozen=True, kw_only=True):
    """The answer to a batch: its requests in order."""

    accepted: tuple[Accepted, ...]


class BuildResult(Value, frozen=True, kw_only=True):
    """The end of one build of a request, or `requested` until it has ended."""

    build: Id
    status: str  # requested, active, error, refused (no host)
    host: str = ""
    cell: str = ""
    reason: str = ""
    code: str = ""  # code of a refusal's reason (docs/reasons.md)


class RequestState(Value, frozen=True, kw_only=True):
    """A request with the results of its builds. `is_ended`: all of them have ended."""

    request: Id
    project: str
    is_ended: bool
    builds: tuple[BuildResult, ...]
    waiting: WaitingRequest | None = None  # None: the request does not wait for capacity


class BuildDetails(Value, frozen=True, kw_only=True):
    """A build: the record of its cell or, if it has no host, the scheduler's decision."""

    build: Id
    project: str
    status: str  # the status in its cell; or requested, waiting, refused
    stands: BuildStands | None = None
    decision: DecisionFound | None = None


class BuildsListed(Value, frozen=True, kw_only=True):
    """A page of instances, sorted by id. `after`: the parameter `after` for the next page; empty: this is the
    last page.
    """

    instances: tuple[Instance, ...]
    after: str = ""
    silent_cells: tuple[str, ...] = ()  # cells that did not answer: their instances are missing


class BuildAccepted(Value, frozen=True, kw_only=True):
    """A published deletion of a build; its result is an event."""

    build: Id


class Event(Value, frozen=True, kw_only=True):
    """An end or another result of a request: the message `data`, which has the topic `event` on the bus."""

    number: int
    event: str
    data: msgspec.Raw


class EventsListed(Value, frozen=True, kw_only=True):
    """Events with ascending numbers. `last`: the parameter `after` of the next request."""

    events: tuple[Event, ...]
    last: int


class ProblemsListed(Value, frozen=True, kw_only=True):
    """The present problems, the most severe first; empty: no known problems."""

    problems: tuple[KnownProblem, ...] = ()
