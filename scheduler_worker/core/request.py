"""A build request as a question to placement: flavor and image → resource groups, or why it is none."""

import re
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from bus.messages import BuildRequested, FindCandidates
from bus.vocabulary import MAX_INT, Flavor, ResourceGroup, Resources

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_POLICIES: dict[str, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}
_MAX_SUFFIX = 64
_shapes = msgspec.json.Encoder(order="deterministic")


class Unreadable(ValueError):
    """The request asks for something that means nothing; the text names the field."""


@dataclass(slots=True)
class _Group:
    """What extra specs say of one group; zeros included."""

    resources: Resources = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    forbidden: dict[str, None] = field(default_factory=dict)

    @property
    def wanted(self) -> Resources:
        return {name: amount for name, amount in self.resources.items() if amount > 0}


def shape_of(request: BuildRequested) -> Hashable:
    """Requests of one shape can use each other's evaluation.

    It is made of all that the filters and weighers here read. A policy whose own filters read more of a
    request (its project, its metadata) names its own shape.
    """
    return _shapes.encode((request.flavor, request.image, request.zone, request.cell, request.aggregates))


def question_of(request: BuildRequested, limit: int, per_host: int = 1) -> FindCandidates:
    """What placement must find room for; Unreadable when the request cannot be meant.

    As Nova's flavors say it: `resources:CLASS` and `trait:NAME` without a suffix, which a tree may meet
    together; `resources1:CLASS` and `trait1:NAME` for what one provider must have; `group_policy` (none or
    isolate) and `same_subtree` (suffixes; `same_subtree2` and so on for more sets of them).
    """
    groups = _groups(request.flavor)
    if request.image is not None:
        groups[""].required.update(dict.fromkeys(request.image.traits_required))
    for suffix, group in groups.items():
        for name in group.required:
            if name in group.forbidden:
                of = f" of group {suffix!r}" if suffix else ""
                raise Unreadable(f"flavor.extra_specs: trait {name}{of} is forbidden, and required as well")
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
    _defaults(request.flavor, groups)
    if not any(group.wanted for group in groups.values()):
        raise Unreadable("flavor: it asks for no resources at all")
    same = _same_subtree(request.flavor, groups)
    return FindCandidates(
        groups=tuple(_asked(request, groups, {suffix for one in same for suffix in one})),
        group_policy=_policy(request.flavor),
        same_subtree=same,
        cell=request.cell,
        limit=limit,
        seed=request.request,
        per_host=per_host,
    )


def _groups(flavor: Flavor) -> dict[str, _Group]:
    """By suffix, the one without first."""
    groups = {"": _Group()}
    for key, value in flavor.extra_specs.items():
        parts = _KEY.fullmatch(key)
        if parts is None:
            continue  # not about resources
        kind, suffix, name = parts.groups()
        at = f"flavor.extra_specs[{key!r}]"
        if len(suffix) > _MAX_SUFFIX:
            raise Unreadable(f"{at}: a suffix of {len(suffix)} characters, at most {_MAX_SUFFIX}")
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{at}: {name!r} is no {kind.removesuffix('s')} name (A-Z, 0-9 and _)")
        group = groups.setdefault(suffix, _Group())
        if kind == "resources":
            group.resources[name] = _amount(value, at)
        elif value == "required":
            group.required[name] = None
        elif value == "forbidden":
            group.forbidden[name] = None
        else:
            raise Unreadable(f"{at}: {value!r} is neither 'required' nor 'forbidden'")
    return groups


def _asked(
    request: BuildRequested, groups: dict[str, _Group], tied: Collection[str]
) -> Iterable[ResourceGroup]:
    """The groups that ask for something, or that others are to be related to."""
    for suffix, group in groups.items():
        resources = group.wanted
        if not resources and suffix not in tied:
            if group.required or group.forbidden:
                which = f"group {suffix!r}" if suffix else "the group without a suffix"
                raise Unreadable(f"flavor.extra_specs: {which} has traits and asks for no resources")
            if request.aggregates and not suffix:
                raise Unreadable("aggregates: the flavor asks for nothing without a suffix that may be there")
            continue
        yield ResourceGroup(
            suffix=suffix,
            resources=resources,
            required=tuple(sorted(group.required)),
            forbidden=tuple(sorted(group.forbidden)),
            member_of=() if suffix else request.aggregates,
        )


def _policy(flavor: Flavor) -> Literal["none", "isolate"]:
    value = flavor.extra_specs.get("group_policy", "none")
    if value not in _POLICIES:
        raise Unreadable(f"flavor.extra_specs['group_policy']: {value!r} is neither 'none' nor 'isolate'")
    return _POLICIES[value]


def _same_subtree(flavor: Flavor, suffixes: Collection[str]) -> tuple[tuple[str, ...], ...]:
    sets = []
    for key, value in flavor.extra_specs.items():
        if _SAME.fullmatch(key):
            one = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
            for suffix in one:
                if not suffix or suffix not in suffixes:
                    raise Unreadable(f"flavor.extra_specs[{key!r}]: there is no group with suffix {suffix!r}")
            sets.append(one)
    return tuple(sets)


def _amount(value: str, at: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) > MAX_INT:
        raise Unreadable(f"{at}: {value!r} is no whole number from 0 to {MAX_INT}")
    return int(value)


def _defaults(flavor: Flavor, groups: dict[str, _Group]) -> None:
    """What the flavor says where no group speaks of it. An explicit zero is speaking."""
    spoken = {name for group in groups.values() for name in group.resources}
    resources = groups[""].resources
    if not spoken & {"VCPU", "PCPU"}:
        resources["VCPU"] = flavor.vcpus
    for name, amount in (("MEMORY_MB", flavor.memory_mb), ("DISK_GB", flavor.disk_gb)):
        if name not in spoken:
            resources[name] = amount
