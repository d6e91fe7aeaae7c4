"""The credential of a user or program, as `berth access list` lists it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from berth.settings import Settings
from bus.audit_trail import Role
from bus.delivery.runner import Bus


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential: a token of the token file, or a RabbitMQ user."""

    kind: str
    name: str  # of the user, client, cell or agent
    id: str = ""  # id of the token, or name of the RabbitMQ user
    role: Role = ""
    roles: Sequence[str] = ()  # roles of a token, which placement_policy uses
    cells: Sequence[str] = ()  # empty: all
    projects: Sequence[str] = ()  # empty: all, if it has a role
    since: float = 0.0  # when it got its secret; 0: unknown
    revoke: str = ""  # the command that revokes it


@dataclass(frozen=True)
class CredentialsPart:
    """Returns the RabbitMQ users that a feature has made."""

    listed: Callable[[Bus, Settings], Awaitable[list[Credential]]]
