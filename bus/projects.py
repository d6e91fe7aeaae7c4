"""Projects: the query that finds the project of an id, and the members of projects, who may request acts for
these projects only (`bus.acts.permitted`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import field

from bus.vocabulary import UNSAID_ID, Id, LargeMap, LongList, Message, Text, Value


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


DERIVED = "use random uuids: those of version 5 are derived from other ids"
UNKNOWN = "no build of this client's projects has this id, or its cell does not answer"

Projects = Mapping[Id, str]  # the project of each id that is in use; empty: of no build or request


FindOwners = Callable[[FindProjects], Awaitable[ProjectsFound]]


@dataclass(frozen=True)
class ProjectMember:
    """A client (a program outside berth) or a user, with the projects in which it may act."""

    name: str
    projects: Sequence[str]


@dataclass(frozen=True)
class ClientQuery:
    """A query that clients may send: the type of the question, and the function that answers it for a client
    with data of the client's projects only, or raises NotAllowed.
    """

    asks: type[Message]
    answer: Callable[[Any, ProjectMember, FindOwners], Awaitable[Message]]


class NotAllowed(Exception):
    """The error that a client or user may not do what it requested. The text gives the reason."""


def project_of(member: ProjectMember, named: str) -> str:
    """Return the project `named` by a member, or if `named` is empty, the member's only project. Raise
    NotAllowed if the member may not act in the project, or names none and has none or several.
    """
    if named in member.projects:
        return named
    if named not in ("", UNSAID_ID):
        raise NotAllowed(f"project: {member.name} is not bound to {named}")
    if not member.projects:
        raise NotAllowed(f"project: {member.name} is bound to none")
    if len(member.projects) > 1:
        raise NotAllowed(f"project: name one of {', '.join(member.projects[:10])}")
    return member.projects[0]


def check_filtered(forced_host: str) -> None:
    """Raise NotAllowed if the request of a member forces a host."""
    if forced_host:
        raise NotAllowed("forced_host: only operators bypass the filters; wanted_host names a host")


def is_derived(id_: Id) -> bool:
    """Return whether an id may be one that berth derives from another id (a UUID of version 5), such as the
    id of the consumer that holds the source of a move. It can be in use before any worker has recorded it.
    """
    return id_[14] == "5"


def is_of(member: ProjectMember, project: str | None) -> bool:
    """Return whether the project is one of the member's; False for no project."""
    return bool(project) and project in member.projects
