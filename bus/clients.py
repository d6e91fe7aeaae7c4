"""Clients: programs outside berth that act for certain projects.

A client publishes with the routing key `client.NAME` and sends queries with `ask.scheduler.client.NAME`. The
broker's topic permissions let no other client use these keys, so a message's key identifies its sender, also
in retries and dead letters.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.audit_trail import Role
from bus.decisions import FindRefused, RefusedFound
from bus.groups import FindGroups, GroupsFound
from bus.messages import BuildCancelRequested, BuildRequested
from bus.moves import FindMoves, MoveRequested, MovesFound, MoveSteered
from bus.queries import (
    BuildsFound,
    DecisionFound,
    FindBuilds,
    FindDecision,
    FindInstances,
    FindWaiting,
    InstancesFound,
    WaitingFound,
)
from bus.resources import Consumer, FindUsages, UsagesFound
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
from bus.what_if import WhatIf, WhatIfAnswered

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
    """A client's request for one action: exactly one of the fields boot, delete, move and steer is set.

    `steer` directs a move that has begun. If `boot` names no project, the instance is created for the
    client's project, if the client has only one.
    """

    client: ClientName
    boot: BuildRequested | None = None
    delete: BuildCancelRequested | None = None  # delete a waiting build, or an instance in any cell
    move: MoveRequested | None = None
    steer: MoveSteered | None = None


class ClientAsked(Message, frozen=True, kw_only=True):
    """A client's query; exactly one field is set. The answer has data of the client's projects only."""

    client: ClientName
    builds: FindBuilds | None = None
    instances: FindInstances | None = None
    moves: FindMoves | None = None  # must name moves or builds
    waiting: FindWaiting | None = None
    ended_without_host: FindRefused | None = None
    decision: FindDecision | None = None
    what_if: WhatIf | None = None
    allocations: ShortList[Id] | None = None  # ids of builds whose allocations are queried
    usages: FindUsages | None = None
    groups: FindGroups | None = None


class ClientAnswered(Message, frozen=True, kw_only=True):
    """The answer to a client's query: data in the field with the query's name, or the reason of a refusal in
    `refused`.
    """

    refused: Cause = ""
    builds: BuildsFound | None = None
    instances: InstancesFound | None = None
    moves: MovesFound | None = None
    waiting: WaitingFound | None = None
    ended_without_host: RefusedFound | None = None
    decision: DecisionFound | None = None
    what_if: WhatIfAnswered | None = None
    allocations: LongList[Consumer] | None = None
    usages: UsagesFound | None = None
    groups: GroupsFound | None = None


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
