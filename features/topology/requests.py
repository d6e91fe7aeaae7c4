"""The server group that placement creates for a request with a topology."""

from uuid import UUID, uuid5

from bus.messages import BuildRequested
from bus.vocabulary import Id
from features.groups.messages import ServerGroup
from features.topology.messages import topology_of


def own_group_id(request: BuildRequested) -> Id:
    """Return the id of the server group that the claims of a request with a topology make."""
    return str(uuid5(UUID(request.request), "topology"))


def own_group(request: BuildRequested, known: ServerGroup | None) -> ServerGroup:
    """Return the server group that a request with a topology makes: `known` if placement has it already, else
    an empty one.
    """
    id_, topology = own_group_id(request), topology_of(request.parts)
    return known or ServerGroup(
        id=id_, name=id_, policy="topology", project=request.project, topology=topology
    )
