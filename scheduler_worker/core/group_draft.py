"""Builds the query to placement: resource groups, and demands on the host itself."""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import MAX_INT, Resources
from scheduler_worker.core.extra_specs import SpecValue
from scheduler_worker.core.invalid_request import Unreadable

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_ANY = re.compile(r"any[A-Za-z0-9_-]*")
_MAX_SUFFIX = 64

GroupPolicy = Literal["none", "isolate"]


@dataclass(slots=True)
class GroupDraft:
    """One resource group, zeros included, with the source of each entry."""

    resources: Resources = field(default_factory=dict)
    required: dict[str, str] = field(default_factory=dict)
    forbidden: dict[str, str] = field(default_factory=dict)
    any_of: dict[str, list[str]] = field(default_factory=dict)  # label → traits, of which one is required

    @property
    def wanted(self) -> Resources:
        return {name: amount for name, amount in self.resources.items() if amount > 0}


@dataclass(slots=True)
class QuestionDraft:
    """All groups by suffix, the one without first; and what is asked of the host itself."""

    where: str  # the field of the request that the flavor stands in
    groups: dict[str, GroupDraft] = field(default_factory=lambda: {"": GroupDraft()})
    policy: GroupPolicy = "none"
    same: list[tuple[str, ...]] = field(default_factory=list)
    isolated: tuple[str, ...] = ()
    root_required: dict[str, str] = field(default_factory=dict)  # trait → its source in the request
    root_forbidden: dict[str, str] = field(default_factory=dict)
    preferred: dict[str, float] = field(default_factory=dict)

    def speaks_of(self, *classes: str) -> str:
        """Return the key that names one of the classes, or an empty string."""
        for suffix, group in self.groups.items():
            for name in classes:
                if name in group.resources:
                    return f"{self.where}.extra_specs['resources{suffix}:{name}']"
        return ""

    def ask(self, suffix: str, resource_class: str, amount: int) -> None:
        resources = self.groups.setdefault(suffix, GroupDraft()).resources
        resources[resource_class] = resources.get(resource_class, 0) + amount

    def asked(self) -> Iterator[ResourceGroup]:
        """Return the groups that request something, or that another group refers to."""
        tied = {suffix for one in self.same for suffix in one}
        for suffix, group in self.groups.items():
            resources = group.wanted
            if not resources and suffix not in tied:
                if group.required or group.forbidden or group.any_of:
                    which = f"group {suffix!r}" if suffix else "the group without a suffix"
                    raise Unreadable(
                        f"{self.where}.extra_specs: {which} has traits and asks for no resources"
                    )
                continue
            yield ResourceGroup(
                suffix=suffix,
                resources=resources,
                required=tuple(sorted(group.required)),
                forbidden=tuple(sorted(group.forbidden)),
                required_any=tuple(tuple(sorted(some)) for some in group.any_of.values()),
            )

    def settle_traits(self) -> None:
        """Refuse a trait that is both required and forbidden. Traits without a suffix apply to the host if
        the group without suffix has no resources.
        """
        group = self.groups[""]
        if not group.wanted and not group.any_of:
            self.root_required |= group.required
            self.root_forbidden |= group.forbidden
            group.required, group.forbidden = {}, {}
        pairs = [(one.required, one.forbidden) for one in self.groups.values()]
        for required, forbidden in (*pairs, (self.root_required, self.root_forbidden)):
            for name in required:
                if name in forbidden:
                    raise Unreadable(
                        f"trait {name}: required by {required[name]}, forbidden by {forbidden[name]}"
                    )
        for one in self.groups.values():
            for some in one.any_of.values():
                if one.forbidden.keys() >= set(some):
                    raise Unreadable(
                        f"{self.where}.extra_specs: one of {', '.join(some)} is wanted, and all are forbidden"
                    )


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
            continue  # not about resources
        kind, suffix, name = parts.groups()
        said = SpecValue(value, f"{where}.extra_specs[{key!r}]")
        if len(suffix) > _MAX_SUFFIX:
            raise Unreadable(f"{said.at}: a suffix of {len(suffix)} characters, at most {_MAX_SUFFIX}")
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{said.at}: {name!r} is no {kind.removesuffix('s')} name (A-Z, 0-9 and _)")
        if kind == "resources":
            draft.groups.setdefault(suffix, GroupDraft()).resources[name] = said.whole()
        else:
            _trait(draft, suffix, name, said)
    policy = flavor.extra_specs.get("group_policy", "none")
    if policy not in ("none", "isolate"):
        raise Unreadable(f"{where}.extra_specs['group_policy']: {policy!r} is neither 'none' nor 'isolate'")
    draft.policy = "isolate" if policy == "isolate" else "none"
    return draft


def _trait(draft: QuestionDraft, suffix: str, name: str, said: SpecValue) -> None:
    group = draft.groups.setdefault(suffix, GroupDraft())
    word, colon, number = said.value.partition(":")
    if word == "preferred":
        if suffix:
            raise Unreadable(f"{said.at}: what is preferred is of the host: write it without a suffix")
        draft.preferred[name] = _weight(number, said) if colon else 1.0
    elif said.value == "required":
        group.required[name] = said.at
    elif said.value == "forbidden":
        group.forbidden[name] = said.at
    elif _ANY.fullmatch(said.value):
        group.any_of.setdefault(said.value, []).append(name)
    else:
        raise Unreadable(f"{said.at}: {said.value!r} is none of required, forbidden, preferred, any")


def _weight(number: str, said: SpecValue) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or not weight:
        raise Unreadable(f"{said.at}: {number!r} is no weight, a number other than 0")
    return weight


def tie(draft: QuestionDraft, flavor: Flavor) -> None:
    """Set `same_subtree`, once all groups are known."""
    suffixes: Collection[str] = draft.groups
    for key, value in flavor.extra_specs.items():
        if _SAME.fullmatch(key):
            one = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
            for suffix in one:
                if not suffix or suffix not in suffixes:
                    raise Unreadable(
                        f"{draft.where}.extra_specs[{key!r}]: there is no group with suffix {suffix!r}"
                    )
            draft.same.append(one)


def fill(draft: QuestionDraft, flavor: Flavor) -> None:
    """Add the flavor's sizes for classes that no group names. An explicit zero counts as named."""
    spoken = {name for group in draft.groups.values() for name in group.resources}
    resources = draft.groups[""].resources
    if not spoken & {"VCPU", "PCPU"}:
        resources["VCPU"] = flavor.vcpus
    for name, amount in (("MEMORY_MB", flavor.memory_mb), ("DISK_GB", flavor.disk_gb)):
        if name not in spoken:
            resources[name] = amount


def within(amount: int, at: str) -> int:
    if amount > MAX_INT:
        raise Unreadable(f"{at}: {amount} is more than {MAX_INT}")
    return amount
