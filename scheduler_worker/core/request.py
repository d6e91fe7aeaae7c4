"""A build request as a question to placement: flavor and image → a resource group, or why it is none."""

import re
from collections.abc import Hashable, Iterable

import msgspec

from bus.messages import BuildRequested
from bus.vocabulary import MAX_INT, Flavor, ResourceGroup, Resources

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_shapes = msgspec.json.Encoder(order="deterministic")


class Unreadable(ValueError):
    """The request asks for something that means nothing; the text names the field."""


def shape_of(request: BuildRequested) -> Hashable:
    """Requests of one shape can use each other's evaluation.

    It is made of all that the filters and weighers here read. A policy whose own filters read more of a
    request (its project, its metadata) names its own shape.
    """
    return _shapes.encode((request.flavor, request.image, request.zone, request.cell, request.aggregates))


def group_of(request: BuildRequested) -> ResourceGroup:
    """What placement must find room for; Unreadable when the request cannot be meant."""
    resources, required, forbidden = _extra_specs(request.flavor)
    if request.image is not None:
        required.update(dict.fromkeys(request.image.traits_required))
    for name in required:
        if name in forbidden:
            raise Unreadable(f"flavor.extra_specs: trait {name} is forbidden, and required as well")
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
    _defaults(request.flavor, resources)
    wanted = {name: amount for name, amount in resources.items() if amount > 0}
    if not wanted:
        raise Unreadable("flavor: it asks for no resources at all")
    return ResourceGroup(
        resources=wanted,
        required=tuple(sorted(required)),
        forbidden=tuple(sorted(forbidden)),
        member_of=request.aggregates,
    )


def _extra_specs(flavor: Flavor) -> tuple[Resources, dict[str, None], dict[str, None]]:
    """Resources (zeros included), required and forbidden traits."""
    resources: Resources = {}
    traits: dict[str, dict[str, None]] = {"required": {}, "forbidden": {}}
    for key, value in flavor.extra_specs.items():
        parts = _KEY.fullmatch(key)
        if parts is None:
            continue  # not about placement
        kind, suffix, name = parts.groups()
        field = f"flavor.extra_specs[{key!r}]"
        if suffix:
            raise Unreadable(f"{field}: groups with a suffix (here {suffix!r}) are not supported")
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{field}: {name!r} is no {kind.removesuffix('s')} name (A-Z, 0-9 and _)")
        if kind == "resources":
            resources[name] = _amount(value, field)
        elif value in traits:
            traits[value][name] = None
        else:
            raise Unreadable(f"{field}: {value!r} is neither 'required' nor 'forbidden'")
    return resources, traits["required"], traits["forbidden"]


def _amount(value: str, field: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) > MAX_INT:
        raise Unreadable(f"{field}: {value!r} is no whole number from 0 to {MAX_INT}")
    return int(value)


def _defaults(flavor: Flavor, resources: Resources) -> None:
    """What the flavor says where its extra specs are silent. An explicit zero is not silence."""
    if not _mentions(resources, ("VCPU", "PCPU")):
        resources["VCPU"] = flavor.vcpus
    resources.setdefault("MEMORY_MB", flavor.memory_mb)
    resources.setdefault("DISK_GB", flavor.disk_gb)


def _mentions(resources: Resources, classes: Iterable[str]) -> bool:
    return any(resource_class in resources for resource_class in classes)
