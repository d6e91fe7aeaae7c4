"""The callers of the REST API: an operator may do what its role covers, a member acts for its project as a
client does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import msgspec
from msgspec import structs

from bus.acts import READ, Act, Target, act_of, allowed, asked_json, describe, is_limited, judged, names_of
from bus.audit_trail import Operator
from bus.messages import BuildRequested
from bus.projects import NotAllowed, ProjectMember, ProjectsFound
from bus.vocabulary import UNSAID_ID, Id, Message, portions
from placement_worker.http.access import AccessPolicy, Identity

BUILDS_IN_RECORD = 100
M = TypeVar("M", bound=Message)


class NotFound(Exception):
    """Error: no build, request or move with an id exists, or the caller may not see it."""


@dataclass(frozen=True)
class NotedAct:
    """An act that a request asks for, as the audit trail records it."""

    act: Act
    target: Target
    asked: str = ""
    is_denied: bool = False  # the trail records the act as denied, whatever status the response has
    builds: tuple[Id, ...] = ()  # the builds that a boot requests


UNIDENTIFIED = Operator(name="")  # the caller of a request without a valid token


@dataclass
class RestCaller:
    """The caller of one request, and the acts of the request."""

    operator: Operator = UNIDENTIFIED
    member: ProjectMember | None = None  # of the project of its token, within the limits of clients
    is_reader: bool = False  # may read in the project of its token
    acts: list[NotedAct] = field(default_factory=list)

    @property
    def is_limited(self) -> bool:
        return is_limited(self.operator)

    @property
    def reads_all(self) -> bool:
        """Return whether the caller may read the data of all projects."""
        return not allowed(self.operator, READ, Target())

    def named(self, project: str) -> str:
        """Return the project that a request names, by default the project of the token."""
        return project if project not in ("", UNSAID_ID) else self.operator.project

    def may_read(self, project: str) -> bool:
        """Return whether the caller may read objects of a project."""
        is_own = self.is_reader and project == self.operator.project
        return is_own or not allowed(self.operator, READ, Target(project=project))

    def reading(self, named: str) -> str:
        """Return the project in which to read, by default the project of the token; raise NotAllowed if the
        caller may not read there.
        """
        project = self.named(named)
        if not self.may_read(project):
            target = Target(project=project)
            self.acts.append(NotedAct(READ, target))
            raise NotAllowed(allowed(self.operator, READ, target))
        return project

    def check_reads_all(self) -> None:
        """Raise NotAllowed if the caller may not read the data of all projects."""
        if why := allowed(self.operator, READ, Target()):
            self.acts.append(NotedAct(READ, Target()))
            raise NotAllowed(why)

    def note(self, message: Message, project: str, *, is_denied: bool = False) -> NotedAct:
        """Note the act that a message requests in a project, for the audit trail."""
        act = act_of(message)
        assert act is not None
        target = replace(describe(message), project=project)
        if isinstance(message, BuildRequested):  # not recorded again: the decision contains it
            noted = NotedAct(act, target, is_denied=is_denied, builds=message.instances)
        else:
            noted = NotedAct(act, target, asked_json(message), is_denied)
        self.acts.append(noted)
        return noted

    def check(
        self, message: M, project: str, owners: ProjectsFound | None = None, state: Message | None = None
    ) -> M:
        """Note the act of a message about a project. Return the message to publish; raise NotAllowed if the
        caller may not do the act.
        """
        self.note(message, project)
        why, permitted = judged(self.operator, message, owners or ProjectsFound(), state, self.member)
        if why:
            raise NotAllowed(why)
        return permitted


def combined(acts: Iterable[NotedAct]) -> Iterator[NotedAct]:
    """Yield the acts; the boots of a batch in one cell and project are merged into acts that list up to
    BUILDS_IN_RECORD builds each.
    """
    boots: dict[tuple[str, str], list[NotedAct]] = {}
    for noted in acts:
        if noted.builds:
            boots.setdefault((noted.target.cell, noted.target.project), []).append(noted)
        else:
            yield noted
    for first, *others in boots.values():
        if not others:
            yield first
            continue
        for builds in portions(chain(first.builds, *(noted.builds for noted in others)), BUILDS_IN_RECORD):
            id_, _, ids = names_of(builds)
            target = replace(first.target, id=id_, ids=ids)
            yield replace(first, target=target, asked=msgspec.json.encode(builds).decode())


def rest_caller(policy: AccessPolicy, identity: Identity, known_by: str) -> RestCaller:
    """Return the caller for an identity, with the role and the limits that the policy gives."""
    operator = policy.operator(identity, known_by)
    if not operator.role:
        operator = structs.replace(operator, is_program=True)
    if identity.cells or identity.project not in (identity.projects or (identity.project,)):
        return RestCaller(operator)
    is_member, is_reader = (
        policy.allows(rule, identity, {"project_id": identity.project})
        for rule in ("berth:member", "berth:project_reader")
    )
    member = ProjectMember(operator.name, (operator.project,)) if is_member else None
    return RestCaller(operator, member, is_reader)
