"""The callers of the REST API, and what each may do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bus.client_acts import NotAllowed
from bus.vocabulary import UNSAID_ID
from placement_worker.http.access import Identity

Act = Literal["show", "act", "operate"]
Allows = Callable[[Act, Identity, str], bool]  # whether an identity may do this in a project


class NotFound(Exception):
    """The error that no build, request or move with this id is visible to the caller."""


@dataclass(frozen=True)
class RestCaller:
    """The identity of a request, and what it may do. `operate`: anything that an operator may."""

    identity: Identity
    allows: Allows

    def may(self, act: Act, project: str) -> bool:
        return self.allows(act, self.identity, project)

    def project(self, act: Act, named: str) -> str:
        """Return the named project, or the caller's own; raise NotAllowed if it may not act there."""
        project = named if named not in ("", UNSAID_ID) else self.identity.project
        if not self.may(act, project):
            raise NotAllowed(f"policy: this token has no right berth:builds:{act} in project {project}")
        return project
