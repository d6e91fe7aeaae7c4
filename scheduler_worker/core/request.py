"""A build request as questions to placement, one for each way to meet it; or why it is none."""

import re
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import msgspec

from bus.messages import BuildRequested, FindCandidates
from bus.vocabulary import MAX_INT, Flavor, Image, ResourceGroup, Resources
from scheduler_worker.core.destination import Named, destination
from scheduler_worker.core.extra_specs import GuestSpecs, unknown
from scheduler_worker.core.group_draft import QuestionDraft, draft_of, fill, tie
from scheduler_worker.core.guest_devices import add_capabilities, add_devices
from scheduler_worker.core.guest_topology import Pages, add_topology, page_choices
from scheduler_worker.core.hints import check_hints
from scheduler_worker.core.image_traits import add_image
from scheduler_worker.core.request_options import RequestOptions
from scheduler_worker.core.unreadable import Unreadable
from scheduler_worker.core.wish import Wish

__all__ = ["Unreadable", "question_of", "seconds_of", "shape_of", "wishes_of"]

DISABLED = "COMPUTE_STATUS_DISABLED"  # how Nova marks a disabled host in placement
MAX_GROUPS = 200
KEPT = 1024  # flavors with their images and places, read once
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_Place = tuple[str, str, tuple[tuple[str, ...], ...], tuple[str, ...]]  # cell, zone, aggregates, not these


@dataclass(frozen=True)
class FlavorRead:
    """What a flavor comes to, with this image and in this place: nothing of one request alone."""

    flavor: Flavor
    question: FindCandidates
    preferred: dict[str, float]
    notes: tuple[str, ...]


def wishes_of(
    request: BuildRequested,
    options: RequestOptions,
    named: Named,
    names: Callable[[], Iterable[str]] = tuple,
) -> tuple[Wish, ...]:
    """The ways to meet a request, in order: its flavor, each of or_else. Unreadable when it means nothing.

    A flavor has more than one way where pages of several sizes would do. `named` gives the roots of a host,
    `names` all hosts' names, asked for only where one is unknown. The questions of requests that ask for the
    same are one object.
    """
    notes = (*_check(request, options), *check_hints(request))
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    if request.forced_host or request.wanted_host or request.ignore_hosts:
        only, never, unknown_ = destination(request, named, names)
        notes += unknown_
    wishes = []
    for nth, flavor in enumerate((request.flavor, *request.or_else)):
        place = (request.cell, request.zone, request.aggregates, request.not_aggregates)
        for read in _read(_shapes.encode((nth, flavor, request.image, place)), options):
            question = read.question
            if only or never:
                question = msgspec.structs.replace(question, roots=only, not_roots=never)
            preferred = read.preferred
            if request.preferred_traits:
                preferred = {**preferred, **request.preferred_traits}
                _check_preferred(request, question)
            told = (*notes, *read.notes) if notes else read.notes
            wishes.append(Wish(request, flavor, question, nth, told, preferred))
    return tuple(wishes)


def seconds_of(wait: str) -> float:
    """How long `30m` is; nothing is 0."""
    return float(int(wait[:-1]) * SECONDS[wait[-1]]) if wait else 0.0


def _check(request: BuildRequested, options: RequestOptions) -> tuple[str, ...]:
    """What contradicts itself, of the request as a whole."""
    if request.at_least > len(set(request.instances)):
        raise Unreadable(f"at_least: {request.at_least}, of {len(set(request.instances))} instances")
    if seconds_of(request.wait) > options.max_wait:
        raise Unreadable(
            f"wait: {request.wait}, at most {options.max_wait:g} seconds are allowed (the setting max_wait)"
        )
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
        if set(any_of) <= set(request.not_aggregates):
            raise Unreadable(f"aggregates[{position}]: all of it is among not_aggregates")
    if request.priority and not request.wait:
        return ("priority: means something only with wait",)
    return ()


def _check_preferred(request: BuildRequested, question: FindCandidates) -> None:
    group = next((one for one in question.groups if not one.suffix), None)
    barred = {*question.root_forbidden, *(group.forbidden if group is not None else ())}
    for name in request.preferred_traits:
        if name in barred:
            raise Unreadable(f"preferred_traits: {name} is forbidden (by the flavor, or on every host)")


@lru_cache(KEPT)
def _read(asked: bytes, options: RequestOptions) -> tuple[FlavorRead, ...]:
    """All that does not depend on one request alone is read once."""
    nth, flavor, image, place = _places.decode(asked)
    where = f"or_else[{nth - 1}]" if nth else "flavor"
    specs = GuestSpecs(flavor, image, where)
    notes = tuple(unknown(flavor, where, options.unscoped))
    choices = page_choices(specs, options.large_pages)
    return tuple(_with_pages(specs, image, place, options, pages, notes) for pages in choices)


def _with_pages(
    specs: GuestSpecs,
    image: Image | None,
    place: _Place,
    options: RequestOptions,
    pages: Pages | None,
    notes: tuple[str, ...],
) -> FlavorRead:
    flavor, where = specs.flavor, specs.where
    draft = draft_of(flavor, where)
    cells = add_topology(draft, specs, pages)
    add_devices(draft, specs, options, cells)
    add_capabilities(draft, specs)
    add_image(draft, image, options)
    fill(draft, flavor)
    tie(draft, flavor)
    draft.settle_traits()
    return FlavorRead(flavor, _question(draft, place), draft.preferred, notes)


def _question(draft: QuestionDraft, place: _Place) -> FindCandidates:
    cell, zone, aggregates, not_aggregates = place
    groups = tuple(draft.asked())
    if not any(group.resources for group in groups):
        raise Unreadable(f"{draft.where}: it asks for no resources at all")
    if len(groups) > MAX_GROUPS:
        raise Unreadable(f"{draft.where}.extra_specs: {len(groups)} groups, at most {MAX_GROUPS}")
    return FindCandidates(
        groups=groups,
        group_policy=draft.policy,
        isolated=draft.isolated if draft.policy == "none" else (),
        same_subtree=tuple(draft.same),
        root_required=tuple(sorted(draft.root_required)),
        root_forbidden=tuple(sorted({*draft.root_forbidden, DISABLED})),
        root_member_of=aggregates,
        root_not_member_of=not_aggregates,
        cell=cell,
        zone=zone,
    )


# As it was asked before a scheduler searched by itself

_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_POLICIES: dict[str, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}
_MAX_SUFFIX = 64
_shapes = msgspec.json.Encoder(order="deterministic")
_places = msgspec.json.Decoder(tuple[int, Flavor, Image | None, _Place])


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
