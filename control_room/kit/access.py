"""The users of the control room, and the rules for who may sign in, read and act."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from bus.audit_trail import Operator


class Visitor(msgspec.Struct, frozen=True):
    """A user that has signed in to the control room, with the project and roles of the user's token."""

    user: str
    project: str
    roles: frozenset[str] = frozenset()
    operator: Operator = Operator(name="")  # for the audit trail, with the role in berth


Credential = Callable[[], Visitor | None]  # returns the user, or None if the token is no longer valid


SignIn = Callable[[Mapping[str, str]], Awaitable[Credential]]  # takes the fields of the sign-in form


Form = Literal["token", "name", "keystone"]


class Project(msgspec.Struct, frozen=True):
    """A project for which a user may sign in."""

    id: str
    name: str
    domain: str = ""


@dataclass(frozen=True, kw_only=True)
class SingleSignOn:
    """Single sign-on by an identity provider and Keystone; Keystone's page posts a token to this server."""

    origin: str  # of Keystone's page
    address: Callable[[str], str]  # of Keystone's page; the argument: the address to which it posts the token
    projects: Callable[[str], Awaitable[Sequence[Project] | None]]  # of a token; None: invalid token
    sign_in: Callable[[str, Project], Awaitable[Credential]]  # with a token and one of its projects


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Decides which users may sign in, read and act, from the tokens and the policy of the Placement API."""

    sign_in: SignIn
    form: Form  # which form the sign-in page shows
    single_sign_on: SingleSignOn | None = None
    may_read: Callable[[Visitor | None], bool]
    may_act: Callable[[Visitor | None], bool]
    names: frozenset[str] = frozenset()  # host names that requests may use, in addition to addresses
