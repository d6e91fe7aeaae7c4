"""Reads and shortens requests that wait for a host."""

import msgspec

from bus.messages import BuildRequested
from bus.vocabulary import Id


def with_instances(request: BuildRequested, left: tuple[Id, ...]) -> BuildRequested:
    """Return a request for only the instances `left` of another request; the others have ended."""
    return msgspec.structs.replace(request, instances=left, at_least=min(request.at_least, len(left)))


def names_other_instances(request: BuildRequested) -> bool:
    """Return whether the hosts of a request may depend on other instances, which it or its parts name."""
    hints = request.hints
    named = hints.same_host or hints.different_host or any(part.limits_hosts for part in request.parts)
    return bool(named)
