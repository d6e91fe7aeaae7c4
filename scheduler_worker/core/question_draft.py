"""Translates flavor and image into groups of resources and traits for the search of candidates."""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from bus.requests import Flavor, Image, ResourceGroup
from bus.resources import PROCESSORS
from bus.vocabulary import Resources
from scheduler_worker.core.spec_values import SpecValue, Unreadable

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_ANY = re.compile(r"any[A-Za-z0-9_-]*")
_MAX_SUFFIX = 64

KERNEL_SPECS = frozenset({"group_policy", "same_subtree"})  # further extra specs that the kernel reads

GroupPolicy = Literal["none", "isolate"]


@dataclass(slots=True)
class GroupDraft:
    """A draft of a request group: the amount of each resource class, and traits with their origin."""

    resources: Resources = field(default_factory=dict)
    required: dict[str, str] = field(default_factory=dict)
    forbidden: dict[str, str] = field(default_factory=dict)
    any_of: dict[str, list[str]] = field(default_factory=dict)  # label → traits, of which one is required

    @property
    def wanted(self) -> Resources:
        """Return the amounts above 0."""
        return {name: amount for name, amount in self.resources.items() if amount > 0}


@dataclass(slots=True)
class QuestionDraft:
    """A draft of the search for candidates: request groups by suffix, and traits that hosts must have."""

    where: str  # the request's field that contains the flavor, for error messages
    groups: dict[str, GroupDraft] = field(default_factory=lambda: {"": GroupDraft()})
    policy: GroupPolicy = "none"
    same: list[tuple[str, ...]] = field(default_factory=list)
    isolated: tuple[str, ...] = ()
    root_required: dict[str, str] = field(default_factory=dict)  # trait → its source in the request
    root_forbidden: dict[str, str] = field(default_factory=dict)
    preferred: dict[str, float] = field(default_factory=dict)
    preferred_amounts: dict[str, tuple[int, float]] = field(default_factory=dict)  # class → amount, weight

    def ask(self, suffix: str, resource_class: str, amount: int) -> None:
        """Add an amount of a class to the group with this suffix."""
        resources = self.groups.setdefault(suffix, GroupDraft()).resources
        resources[resource_class] = resources.get(resource_class, 0) + amount

    def asked(self) -> Iterator[ResourceGroup]:
        """Yield the request groups that have resources or that `same_subtree` names."""
        tied = {suffix for suffixes in self.same for suffix in suffixes}
        for suffix, group in self.groups.items():
            resources = group.wanted
            if not resources and suffix not in tied:
                if group.required or group.forbidden or group.any_of:
                    group_name = f"group {suffix!r}" if suffix else "the group without a suffix"
                    raise Unreadable(f"{self.where}.extra_specs: {group_name} has traits but no resources")
                continue
            yield ResourceGroup(
                suffix=suffix,
                resources=resources,
                required=tuple(sorted(group.required)),
                forbidden=tuple(sorted(group.forbidden)),
                required_any=tuple(tuple(sorted(some)) for some in group.any_of.values()),
            )

    def settle_traits(self) -> None:
        """Apply the traits of the group without suffix to the root provider if the group has no resources.
        Raise Unreadable for contradicting traits."""
        group = self.groups[""]
        if not group.wanted and not group.any_of:
            self.root_required |= group.required
            self.root_forbidden |= group.forbidden
            group.required, group.forbidden = {}, {}
        pairs = [(each_group.required, each_group.forbidden) for each_group in self.groups.values()]
        for required, forbidden in (*pairs, (self.root_required, self.root_forbidden)):
            for name in required:
                if name in forbidden:
                    why = f"required by {required[name]}, forbidden by {forbidden[name]}"
                    raise Unreadable(f"trait {name}: {why}")
        for each_group in self.groups.values():
            for some in each_group.any_of.values():
                if each_group.forbidden.keys() >= set(some):
                    why = f"one of {', '.join(some)} is wanted, and all are forbidden"
                    raise Unreadable(f"{self.where}.extra_specs: {why}")


def draft_of(flavor: Flavor, where: str) -> QuestionDraft:
    """Return the resources and traits of the flavor as request groups of placement.

    `resources:CLASS` and `trait:NAME` without a suffix may come from several providers of a tree;
    `resources1:CLASS` and `trait1:NAME` must come from one. `group_policy` is none or isolate, and
    `same_subtree` lists suffixes; `same_subtree2` and so on list more sets of them.
    """
    draft = QuestionDraft(where)
    for key, value in flavor.extra_specs.items():
        parts = _KEY.fullmatch(key)
        if parts is None:
            continue  # the extra spec requests no resources or traits
        kind, suffix, name = parts.groups()
        spec = SpecValue(value, f"{where}.extra_specs[{key!r}]")
        if len(suffix) > _MAX_SUFFIX:
            raise Unreadable(f"{spec.at}: a suffix of {len(suffix)} characters, at most {_MAX_SUFFIX}")
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{spec.at}: {name!r} is no {kind.removesuffix('s')} name (A-Z, 0-9 and _)")
        if kind == "resources" and value.startswith("preferred:"):
            _amount(draft, suffix, name, spec)
        elif kind == "resources":
            draft.groups.setdefault(suffix, GroupDraft()).resources[name] = spec.whole()
        else:
            _trait(draft, suffix, name, spec)
    policy = flavor.extra_specs.get("group_policy", "none")
    if policy not in ("none", "isolate"):
        raise Unreadable(f"{where}.extra_specs['group_policy']: {policy!r} is neither 'none' nor 'isolate'")
    draft.policy = "isolate" if policy == "isolate" else "none"
    return draft


def _trait(draft: QuestionDraft, suffix: str, name: str, spec: SpecValue) -> None:
    group = draft.groups.setdefault(suffix, GroupDraft())
    keyword, colon, number = spec.value.partition(":")
    if keyword == "preferred":
        if suffix:
            raise Unreadable(f"{spec.at}: preferred traits are of the host: write the key without a suffix")
        draft.preferred[name] = _weight(number, spec) if colon else 1.0
    elif spec.value == "required":
        group.required[name] = spec.at
    elif spec.value == "forbidden":
        group.forbidden[name] = spec.at
    elif _ANY.fullmatch(spec.value):
        group.any_of.setdefault(spec.value, []).append(name)
    else:
        raise Unreadable(f"{spec.at}: {spec.value!r} is none of required, forbidden, preferred, any")


def _amount(draft: QuestionDraft, suffix: str, name: str, spec: SpecValue) -> None:
    if suffix:
        raise Unreadable(f"{spec.at}: preferred amounts are of the host: write the key without a suffix")
    number, colon, weight = spec.value.removeprefix("preferred:").partition(":")
    amount = SpecValue(number, spec.at).whole(1)
    draft.preferred_amounts[name] = amount, _weight(weight, spec) if colon else 1.0


def tie_groups(draft: QuestionDraft, flavor: Flavor) -> None:
    """Read the extra specs that require groups in one subtree; refuse a group that does not exist."""
    suffixes: Collection[str] = draft.groups
    for key, value in flavor.extra_specs.items():
        if _SAME.fullmatch(key):
            named_suffixes = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
            for suffix in named_suffixes:
                if not suffix or suffix not in suffixes:
                    at = f"{draft.where}.extra_specs[{key!r}]"
                    raise Unreadable(f"{at}: there is no group with suffix {suffix!r}")
            draft.same.append(named_suffixes)


def _weight(number: str, spec: SpecValue) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or not weight:
        raise Unreadable(f"{spec.at}: {number!r} is not a weight: a number other than 0")
    return weight


def fill(draft: QuestionDraft, flavor: Flavor) -> None:
    """Add to the draft request the flavor's vcpus, memory and disk, unless extra specs set the amounts of
    their resource classes.
    """
    requested = {name for group in draft.groups.values() for name in group.resources}
    resources = draft.groups[""].resources
    if PROCESSORS.isdisjoint(requested):
        resources["VCPU"] = flavor.vcpus
    for name, amount in (("MEMORY_MB", flavor.memory_mb), ("DISK_GB", flavor.disk_gb)):
        if name not in requested:
            resources[name] = amount


def add_image(draft: QuestionDraft, image: Image | None) -> None:
    """Add to the draft request the traits that the image requires."""
    if image is None:
        return
    required = draft.groups[""].required
    for name in image.traits_required:
        required.setdefault(name, "image.traits_required")
    for key, value in image.properties.items():
        at = f"image.properties[{key!r}]"
        if key.startswith("trait:"):
            if value != "required":
                raise Unreadable(f"{at}: {value!r}: an image can only have it required")
            required.setdefault(key.removeprefix("trait:"), at)
