"""The instances of a request by role, where a role is a set of instances with a flavor of its own, and the
server group that placement creates for a request with placement rules for racks or other domains.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID, uuid5

from bus.groups import ServerGroup
from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.vocabulary import Id
from features.groups.messages import group_of
from scheduler_worker.core.rule import Alternative


class RolePart(NamedTuple):
    """Instances of a request that have the same role, with the alternative being tried for the role."""

    alternative: Alternative
    name: str  # of the role; "": the request has no roles
    instances: tuple[Id, ...]


def group_id(request: BuildRequested) -> Id | None:
    """Return the id of the server group that the instances of a request join: the named group or, for a
    request with a topology, a new group that its claim makes; else None.
    """
    named = group_of(request.parts)
    if request.topology.levels and named is None:
        return str(uuid5(UUID(request.request), "topology"))
    return named


def own_group(request: BuildRequested, known: ServerGroup | None) -> ServerGroup:
    """Return the server group that a request with a topology makes: `known` if placement has it already, else
    an empty one.
    """
    id_ = group_id(request)
    assert id_ is not None  # a request with a topology has a group id
    return known or ServerGroup(
        id=id_, name=id_, policy="topology", project=request.project, topology=request.topology
    )


def flavors_of(request: BuildRequested) -> tuple[Flavor, ...]:
    """Return the flavors of a request, in the sequence of `alternative_index`: the flavors of its roles, or
    the preferred flavor and then its alternatives.
    """
    if request.roles:
        return tuple([role.flavor for role in request.roles])
    return (request.flavor, *request.or_else)


def parts_of(
    request: BuildRequested, alternatives: Sequence[Alternative], instances: Sequence[Id]
) -> list[RolePart]:
    """Return the given instances grouped by role; without roles, one part with all of them. `alternatives`
    has one alternative for each role.
    """
    if not request.roles:
        return [RolePart(alternatives[0], "", tuple(instances))]
    of_role: list[list[Id]] = [[] for _ in request.roles]
    for instance in instances:
        of_role[role_of(request, instance)].append(instance)
    return [
        RolePart(alternative, role.name, tuple(some))
        for alternative, role, some in zip(alternatives, request.roles, of_role, strict=True)
        if some
    ]


def role_of(request: BuildRequested, instance: Id) -> int:
    """Return the index of the role that an instance has; 0 without roles."""
    if len(request.roles) < 2:
        return 0
    position = request.instances.index(instance)
    for number, role in enumerate(request.roles):
        position -= role.count
        if position < 0:
            return number
    return len(request.roles) - 1


def wrong_roles(request: BuildRequested) -> str:
    """Return what is wrong with a request's roles and topology, with the field's name; "" if valid."""
    if request.topology.levels and group_of(request.parts) is not None:
        return "topology: the request joins a server group, whose own topology decides (hints.group)"
    if request.topology.pack and request.topology.pack == request.topology.spread:
        return f"topology: pack and spread both name the level {request.topology.pack}"
    if not request.roles:
        return ""
    total = sum(role.count for role in request.roles)
    if total != len(set(request.instances)):
        return f"roles: {total} instances by their counts, but {len(set(request.instances))} in the request"
    name, times = Counter(role.name for role in request.roles).most_common(1)[0]
    if times > 1:
        return f"roles: {name!r} is there twice"
    if request.or_else or request.at_least:
        field = "or_else" if request.or_else else "at_least"
        return f"{field}: not possible with roles, which are claimed all together"
    if request.flavor != request.roles[0].flavor:
        return "flavor: it must be the flavor of the first role"
    return ""
