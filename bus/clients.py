"""Clients: programs outside berth that act for certain projects.

A client publishes with the routing key `client.NAME` and sends queries with `ask.scheduler.client.NAME`. The
broker's topic permissions let no other client use these keys, so a message's key identifies its sender, also
in retries and dead letters.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from bus.audit_trail import Role
from bus.vocabulary import (
    END,
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


def client_key(client: str, key: str) -> str:
    """Return the routing key for a client's results: `key` if it is the client's name, or begins with this
    name and `_`; else the client's name.
    """
    return key if key == client or key.startswith(f"{client}_") else client
