"""Rules of what a client may request: for its projects only, and nothing that is reserved for operators."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bus.clients import RegisteredClient
from bus.messages import BuildRequested
from bus.vocabulary import UNSAID_ID, Id, Message

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
