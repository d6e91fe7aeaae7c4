"""Reads and shortens requests that wait for a host; describes what a request that boots nothing waits for."""

import msgspec

from bus.messages import BuildRequested
from bus.vocabulary import Id


class Subject(msgspec.Struct, frozen=True):
    """The subject of a waiting request that boots no instance, such as a move of an instance."""

    purpose: str  # name of the purpose of its orders; its `WaitingPurpose` evaluates the request
    action: str  # shown to users, such as `migrate`
    instance: Id  # at most one request for this instance waits
    lane: str  # requests with the same lane are evaluated together
    data: str  # of the `WaitingPurpose`, as JSON: what the last evaluation found


def with_instances(request: BuildRequested, left: tuple[Id, ...]) -> BuildRequested:
    """Return a request for only the instances `left` of another request; the others have ended."""
    return msgspec.structs.replace(request, instances=left, at_least=min(request.at_least, len(left)))


def names_other_instances(request: BuildRequested) -> bool:
    """Return whether the hosts of a request may depend on other instances, which it or its parts name."""
    hints = request.hints
    named = hints.same_host or hints.different_host or any(part.limits_hosts for part in request.parts)
    return bool(named)
