"""The instances of an order by the sections of its request; each section has a flavor of its own."""

from collections.abc import Sequence
from typing import NamedTuple

from bus.messages import BuildRequested
from bus.requests import Flavor
from bus.vocabulary import Id
from scheduler_worker.core.rule import Alternative


class OrderSection(NamedTuple):
    """Instances of an order in one section of its request, with the alternative being tried for them."""

    alternative: Alternative
    name: str  # of the section; "": the request has no sections
    instances: tuple[Id, ...]


def flavors_of(request: BuildRequested) -> tuple[Flavor, ...]:
    """Return the flavors of a request, in the sequence of `alternative_index`: those of its sections, or the
    preferred flavor and then its alternatives.
    """
    if sections := request.parts.sections:
        return tuple([section.flavor for section in sections])
    return (request.flavor, *request.or_else)


def sections_of(
    request: BuildRequested, alternatives: Sequence[Alternative], instances: Sequence[Id]
) -> list[OrderSection]:
    """Return the given instances grouped by section; without sections, one group with all of them.
    `alternatives` has one alternative for each section.
    """
    if not (sections := request.parts.sections):
        return [OrderSection(alternatives[0], "", tuple(instances))]
    of_each: list[list[Id]] = [[] for _ in sections]
    for instance in instances:
        of_each[section_of(request, instance)].append(instance)
    return [
        OrderSection(alternative, section.name, tuple(some))
        for alternative, section, some in zip(alternatives, sections, of_each, strict=True)
        if some
    ]


def section_of(request: BuildRequested, instance: Id) -> int:
    """Return the index of the section that an instance is in; 0 without sections."""
    if len(sections := request.parts.sections) < 2:
        return 0
    position = request.instances.index(instance)
    for number, section in enumerate(sections):
        position -= section.count
        if position < 0:
            return number
    return len(sections) - 1
