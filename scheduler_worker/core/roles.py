"""The instances of a request by role, where a role is a section of the request with a flavor of its own."""

from collections.abc import Sequence
from typing import NamedTuple

from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.vocabulary import Id
from scheduler_worker.core.rule import Alternative


class RolePart(NamedTuple):
    """Instances of a request that have the same role, with the alternative being tried for the role."""

    alternative: Alternative
    name: str  # of the role; "": the request has no roles
    instances: tuple[Id, ...]


def flavors_of(request: BuildRequested) -> tuple[Flavor, ...]:
    """Return the flavors of a request, in the sequence of `alternative_index`: those of its sections, or the
    preferred flavor and then its alternatives.
    """
    if sections := request.parts.sections:
        return tuple([section.flavor for section in sections])
    return (request.flavor, *request.or_else)


def parts_of(
    request: BuildRequested, alternatives: Sequence[Alternative], instances: Sequence[Id]
) -> list[RolePart]:
    """Return the given instances grouped by role; without roles, one part with all of them. `alternatives`
    has one alternative for each role.
    """
    if not (sections := request.parts.sections):
        return [RolePart(alternatives[0], "", tuple(instances))]
    of_role: list[list[Id]] = [[] for _ in sections]
    for instance in instances:
        of_role[role_of(request, instance)].append(instance)
    return [
        RolePart(alternative, role.name, tuple(some))
        for alternative, role, some in zip(alternatives, sections, of_role, strict=True)
        if some
    ]


def role_of(request: BuildRequested, instance: Id) -> int:
    """Return the index of the role that an instance has; 0 without roles."""
    if len(sections := request.parts.sections) < 2:
        return 0
    position = request.instances.index(instance)
    for number, role in enumerate(sections):
        position -= role.count
        if position < 0:
            return number
    return len(sections) - 1
