"""Clients: programs outside berth that act for certain projects.

A client publishes with the routing key `client.NAME` and sends queries with `ask.scheduler.client.NAME`. The
broker's topic permissions let no other client use these keys, so a message's key identifies its sender, also
in retries and dead letters.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from bus.audit_trail import Role
from bus.messages import BuildRequested
from bus.vocabulary import (
    END,
    UNSAID_ID,
    Cause,
    Id,
    KeystoneId,
    LargeMap,
    LongList,
    Message,
    ShortList,
    Text,
    Value,
    Word,
)

ClientName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,31}" + END, description="at most 32 letters, digits and -")
]


class RegisteredClient(Value, frozen=True, kw_only=True):
    """A client (a program outside berth, or an operator) and the projects that it acts for.

    A client with a role may also send the other messages that the role permits. If the client has cells or
    projects, its role is limited to them.
    """

    name: ClientName
    projects: Annotated[tuple[KeystoneId, ...], Meta(max_length=1000)]
    role: Role = ""
    cells: ShortList[Word] = ()


class ClientEditRequested(Message, frozen=True, kw_only=True):
    """An operator's edit that registers a client with exactly these projects, role and cells. An edit without
    projects and role removes the client.
    """

    client: ClientName
    projects: Annotated[tuple[KeystoneId, ...], Meta(max_length=1000)] = ()
    role: Role = ""
    cells: ShortList[Word] = ()


class ClientEditAnswered(Message, frozen=True, kw_only=True):
    before: RegisteredClient | None = None  # the former registration, if there was one


class FindClients(Message, frozen=True, kw_only=True):
    """A query for all registered clients (programs outside berth), or for those with the given names."""

    names: ShortList[ClientName] = ()


class ClientsFound(Message, frozen=True, kw_only=True):
    clients: LongList[RegisteredClient]  # sorted by name


class FindProjects(Message, frozen=True, kw_only=True):
    """A query for the projects of ids: `existing` ones of builds and requests, and `new` ones that a request
    gives to a build, request or move, and that may be in use for any object.
    """

    new: LongList[Id] = ()
    existing: LongList[Id] = ()
    places: bool = False  # also return the cells and hosts of the builds with these ids


class BuildPlace(Value, frozen=True, kw_only=True):
    """The cell and the host of a build, as placement has recorded them."""

    cell: Text
    root: Text = ""  # empty: on no host, such as a shelved instance
    host: Text = ""  # name of the host


class ProjectsFound(Message, frozen=True, kw_only=True):
    """The answer to FindProjects: the project of each id that any worker has a record of. The project is
    empty if the id is in use, but not for a build or request of a known project.
    """

    projects: LargeMap[Id, Text] = field(default_factory=dict)
    places: LargeMap[Id, BuildPlace] = field(default_factory=dict)


class ClientRequested(Message, frozen=True, kw_only=True):
    """A client's request for one action: `boot` with the fields of build.requested, or `delete` with those of
    build.cancel. Features add actions, such as `move`.

    If a boot names no project, the instance is created for the client's project, if the client has only one.
    """

    client: ClientName
    do: Word  # the action
    message: Any  # the message that requests the action


class ClientAsked(Message, frozen=True, kw_only=True):
    """A client's query. The answer has data of the client's projects only."""

    client: ClientName
    query: Word  # such as `builds`, `instances`, `decision`, `usages`
    message: Any = field(default_factory=dict)


class ClientAnswered(Message, frozen=True, kw_only=True):
    """The answer to a client's query, or the reason of a refusal in `refused`."""

    refused: Cause = ""
    answer: Any = None


class ClientRelay(Message, frozen=True, kw_only=True):
    """A client's message to a topic or query. A scheduler sends it on if the client's role permits that."""

    client: ClientName
    to: Text  # routing pattern of the topic, or name of the query
    message: Annotated[str, Meta(max_length=500_000)]  # as JSON
    seconds: Annotated[float, Meta(ge=0.1, le=120)] = 10.0  # time limit for the answer to a query


class RelayAnswered(Message, frozen=True, kw_only=True):
    """The answer to a relayed query as JSON, or the reason why the query has no answer."""

    answer: Annotated[str, Meta(max_length=1_000_000)] = ""
    problem: Literal["", "denied", "refused", "unavailable", "unroutable"] = ""
    why: Cause = ""


def client_user(name: str, exchange: str = "berth") -> str:
    """Return the name of an API client's RabbitMQ user; its prefix differs from that of cells' users."""
    return f"{exchange}.client.{name}"


def client_key(client: str, key: str) -> str:
    """Return the routing key for a client's results: `key` if it is the client's name, or begins with this
    name and `_`; else the client's name.
    """
    return key if key == client or key.startswith(f"{client}_") else client


# Rules of what a client may request: for its projects only, and nothing that is reserved for operators.


DERIVED = "use random uuids: those of version 5 are derived from other ids"
UNKNOWN = "no build of this client's projects has this id, or its cell does not answer"

Projects = Mapping[Id, str]  # the project of each id that is in use; empty: of no build or request


Known = Callable[[Collection[Id], Collection[Id]], Awaitable[Projects]]  # projects of new and existing ids


@dataclass(frozen=True)
class ClientQuery:
    """A query that clients may send: the type of the question, and the function that answers it for a client
    with data of the client's projects only, or raises NotAllowed.
    """

    asks: type[Message]
    answer: Callable[[Any, RegisteredClient, Known], Awaitable[Message]]


# Returns a client's request with what berth adds to it; raises NotAllowed if the client may not send it.
Permit = Callable[[Any, RegisteredClient, Projects], Awaitable[Message]]


class NotAllowed(Exception):
    """The error that a client may not do what it requested. The text gives the reason."""


def project_of(client: RegisteredClient, named: str) -> str:
    """Return the project `named` by a client, or if `named` is empty, the client's only project. Raise
    NotAllowed if the client may not use the project, or has several projects and names none.
    """
    if named in client.projects:
        return named
    if named not in ("", UNSAID_ID):
        raise NotAllowed(f"project: client {client.name} is not bound to {named}")
    if len(client.projects) > 1:
        raise NotAllowed(f"project: name one of {', '.join(client.projects[:10])}")
    return client.projects[0]


def check_project(build: Id, client: RegisteredClient, known: Projects) -> None:
    """Raise NotAllowed unless the build is of a project of the client; `known` maps ids to their projects."""
    if not is_of(client, known.get(build)):
        raise NotAllowed(UNKNOWN)


def is_derived(id_: Id) -> bool:
    """Return whether an id may be one that berth derives from another id (a UUID of version 5), such as the
    id of the consumer that holds the source of a move. It can be in use before any worker has recorded it.
    """
    return id_[14] == "5"


def is_of(client: RegisteredClient, project: str | None) -> bool:
    return bool(project) and project in client.projects


def permitted_boot(request: BuildRequested, client: RegisteredClient, known: Projects) -> BuildRequested:
    """Return a client's build request with its project; raise NotAllowed if the client may not send it.
    `known` maps the ids of existing requests and instances to their projects.
    """
    project = project_of(client, request.project)
    if request.forced_host:
        raise NotAllowed("forced_host: only operators bypass the filters; wanted_host names a host")
    if not all(is_of(client, known.get(id_, project)) for id_ in (request.request, *request.instances)):
        raise NotAllowed("request, instances: use new uuids")
    if any(is_derived(id_) for id_ in (request.request, *request.instances)):
        raise NotAllowed(f"request, instances: {DERIVED}")
    for name in ("same_host", "different_host"):
        if not all(is_of(client, known.get(build)) for build in getattr(request.hints, name)):
            raise NotAllowed(f"hints.{name}: {UNKNOWN}")
    return structs.replace(request, project=project)
