"""Translates each flavor of a build request into a search of candidates, or refuses the request.

Limits from aggregates' metadata and disabled cells are computed once per change of aggregates or cells.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import msgspec

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Image
from scheduler_worker.core import request_groups
from scheduler_worker.core.attributes import (
    MAX_NOTES,
    GuestSpecs,
    RequestOptions,
    Unreadable,
    UnreadableQuery,
    nearest,
    parsed,
    unknown,
)
from scheduler_worker.core.guest_numa import add_numa_cells, page_choices
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.rules.demands import TENANT
from scheduler_worker.core.sections import flavors_of

MAX_GROUPS = 200

# what a request names: cell, zone, aggregates, excluded aggregates
_Place = tuple[str, str, tuple[tuple[str, ...], ...], tuple[str, ...]]

_shapes = msgspec.json.Encoder(order="deterministic")
_places = msgspec.json.Decoder(tuple[str, Flavor, Image | None, _Place])
NOBODY = "00000000-0000-0000-0000-000000000000"  # id of an aggregate that has no hosts

Named = Callable[[str], Sequence[str]]  # returns the roots of the hosts with a name or root


def check_hints(request: BuildRequested) -> tuple[str, ...]:
    """Return a warning for each scheduler hint that has no effect. Raise Unreadable if a hint is invalid."""
    hints = request.hints
    both = set(hints.same_host) & set(hints.different_host)
    if both:
        raise Unreadable(f"hints.same_host and hints.different_host both name {min(both)}")
    for field in ("same_host", "different_host"):
        named_instances = set(getattr(hints, field)) & set(request.instances)
        if named_instances:
            raise Unreadable(f"hints.{field}: {min(named_instances)} is one of the instances asked for")
    if hints.query:
        try:
            parsed(hints.query)
        except UnreadableQuery as problem:
            raise Unreadable(f"hints.query: {problem}") from None
    if hints.build_near_host_ip:
        try:
            near = ipaddress.ip_address(hints.build_near_host_ip)
        except ValueError:
            why = f"{hints.build_near_host_ip!r} is no IP address"
            raise Unreadable(f"hints.build_near_host_ip: {why}") from None
        bits = hints.cidr.removeprefix("/")
        if not bits.isdecimal() or int(bits) > near.max_prefixlen:
            raise Unreadable(f"hints.cidr: {hints.cidr!r} is none of /0 to /{near.max_prefixlen}")
    elif hints.cidr != "/24":
        return ("hints.cidr: means something only with hints.build_near_host_ip",)
    return ()


def destination(
    request: BuildRequested, named: Named, names: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the roots of the hosts that a request permits (empty: all), the roots that it excludes, and
    warnings about excluded hosts that do not exist. `named` returns the roots of hosts by name or root;
    `names` returns all host names, to suggest a similar name.
    """
    ignored: dict[str, str] = {}
    notes: list[str] = []
    for host in request.ignore_hosts:
        roots = named(host)
        if not roots and len(notes) < MAX_NOTES:
            notes.append(f"ignore_hosts: there is no host {host!r}{nearest(host, names())}")
        ignored |= dict.fromkeys(roots, host)
    wanted: dict[str, set[str]] = {}
    for field in ("forced_host", "wanted_host"):
        host = getattr(request, field)
        if not host:
            continue
        roots = named(host)
        if not roots:
            raise Unreadable(f"{field}: there is no host {host!r}{nearest(host, names())}")
        if ignored.keys() >= set(roots):
            raise Unreadable(f"{field}: {host!r} is among ignore_hosts")
        wanted[field] = set(roots)
    if len(wanted) == 2 and not wanted["forced_host"] & wanted["wanted_host"]:
        raise Unreadable(f"forced_host: {request.forced_host!r}, but wanted_host: {request.wanted_host!r}")
    only: set[str] = set.intersection(*wanted.values()) if wanted else set()
    return tuple(sorted(only)), tuple(sorted(ignored)), tuple(notes)


class _FlavorRead(NamedTuple):
    """One flavor and image, parsed: the search of candidates, preferred traits and amounts, and warnings."""

    question: FindCandidates
    preferred: dict[str, float]  # preferred trait → weight
    preferred_amounts: dict[str, tuple[int, float]]
    notes: tuple[str, ...]
    prefers_near_devices: bool = False


def alternatives_of(
    request: BuildRequested, options: RequestOptions, named: Named, names: Callable[[], Iterable[str]] = tuple
) -> tuple[Alternative, ...]:
    """Return an alternative for each flavor and acceptable page size, in the sequence of preference.

    A device that prefers a NUMA cell of the guest yields two alternatives: with the affinity, then without.

    Raise Unreadable if the request contradicts itself. `named` returns the roots of all hosts with a given
    name or root; `names` returns all host names, to suggest a similar name for an unknown one.
    """
    _check(request, options)
    notes = check_hints(request)
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    if request.forced_host or request.wanted_host or request.ignore_hosts:
        only, never, unknown_ = destination(request, named, names)
        notes += unknown_
    alternatives = []
    for alternative_index, flavor in enumerate(flavors_of(request)):
        place = (request.cell, request.zone, request.aggregates, request.not_aggregates)
        where = f"or_else[{alternative_index - 1}]" if alternative_index else "flavor"
        if request.parts.sections:
            where = request.parts.sections[alternative_index].where
        asked = _shapes.encode((where, flavor, request.image, place))
        every_read = _read(asked, options)
        # For a section, only the preferred page size and NUMA affinity are tried.
        for question, preferred, amounts, read_notes, _ in (
            every_read[:1] if request.parts.sections else every_read
        ):
            if only or never:
                question = msgspec.structs.replace(question, roots=only, not_roots=never)
            question = with_further_groups(question, request)
            if request.preferred_traits:
                preferred = {**preferred, **request.preferred_traits}
                bare = next((group for group in question.groups if not group.suffix), None)
                barred = {*question.root_forbidden, *(bare.forbidden if bare is not None else ())}
                if wrong := [name for name in request.preferred_traits if name in barred]:
                    why = "is forbidden (by the flavor, or on every host)"
                    raise Unreadable(f"preferred_traits: {wrong[0]} {why}")
            every = (*notes, *read_notes) if notes else read_notes
            alternatives.append(
                Alternative(request, flavor, question, alternative_index, every, preferred, amounts)
            )
    return tuple(alternatives)


def with_further_groups(question: FindCandidates, request: BuildRequested) -> FindCandidates:
    """Return the search extended by the resource groups and traits that the request requires in addition to
    its flavor.
    """
    if request.not_cells:
        question = msgspec.structs.replace(question, not_cells=request.not_cells)
    if not (request.groups or request.root_required or request.root_forbidden or request.same_subtree):
        return question
    suffixes = {group.suffix for group in question.groups}
    for position, group in enumerate(request.groups):
        if not group.suffix or group.suffix in suffixes:
            raise Unreadable(f"groups[{position}].suffix: {group.suffix!r} is empty or used before")
        suffixes.add(group.suffix)
    for position, tied in enumerate(request.same_subtree):
        if strange := set(tied) - suffixes:
            raise Unreadable(f"same_subtree[{position}]: there is no group {min(strange)!r}")
    if both := set(request.root_required) & set(request.root_forbidden):
        raise Unreadable(f"root_required and root_forbidden both name {min(both)}")
    groups = (*question.groups, *request.groups)
    if len(groups) > MAX_GROUPS:
        raise Unreadable(f"groups: {len(groups)} groups with those of the flavor, at most {MAX_GROUPS}")
    return msgspec.structs.replace(
        question,
        groups=groups,
        same_subtree=(*question.same_subtree, *request.same_subtree),
        root_required=tuple(sorted({*question.root_required, *request.root_required})),
        root_forbidden=tuple(sorted({*question.root_forbidden, *request.root_forbidden})),
    )


def _check(request: BuildRequested, options: RequestOptions) -> None:
    for part in request.parts:
        if wrong := part.contradiction(request, options):
            raise Unreadable(wrong)
    if request.at_least > len(set(request.instances)):
        raise Unreadable(f"at_least: {request.at_least}, of {len(set(request.instances))} instances")
    if "," in request.zone:
        raise Unreadable(f"zone: {request.zone!r}: one zone; its name contains no comma")
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
        if set(any_of) <= set(request.not_aggregates):
            raise Unreadable(f"aggregates[{position}]: all of it is among not_aggregates")


@lru_cache(maxsize=1024)
def _read(asked: bytes, options: RequestOptions) -> tuple[_FlavorRead, ...]:
    where, flavor, image, place = _places.decode(asked)
    specs = GuestSpecs(flavor, image, where)
    notes = tuple(islice(unknown(flavor, where, request_groups.READ, options.unscoped), MAX_NOTES))
    found = []
    for page_kb in page_choices(specs):
        near = _with_pages(specs, image, place, options, page_kb)
        found.append(near)
        if near.prefers_near_devices:
            found.append(_with_pages(specs, image, place, options, page_kb, near=False))
    return tuple([read._replace(notes=notes) for read in found])


def _with_pages(
    specs: GuestSpecs,
    image: Image | None,
    place: _Place,
    options: RequestOptions,
    page_kb: int,
    *,
    near: bool = True,
) -> _FlavorRead:
    flavor = specs.flavor
    draft = request_groups.draft_of(flavor, specs.where)
    cells = add_numa_cells(draft, specs, page_kb)
    prefers = request_groups.add_devices(draft, specs, options, cells, near=near)
    request_groups.add_capabilities(draft, specs)
    request_groups.add_image(draft, image, options)
    request_groups.fill(draft, flavor)
    request_groups.tie(draft, flavor)
    draft.settle_traits()
    question = _question(draft, place)
    return _FlavorRead(question, draft.preferred, draft.preferred_amounts, (), prefers)


def _question(draft: request_groups.QuestionDraft, place: _Place) -> FindCandidates:
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


@dataclass(frozen=True)
class Prefilters:
    """Limits that operators set for all requests: aggregates for certain projects or traits only, and
    disabled cells."""

    of_tenant: Mapping[str, tuple[str, ...]] | None = None  # project → its aggregates; None: no limits
    tenants_need_one: bool = False
    demanding: tuple[tuple[str, frozenset[str]], ...] = ()  # aggregate, the traits it requires
    closed: tuple[str, ...] = ()  # names of the disabled cells

    def narrow(self, alternative: Alternative) -> Alternative:
        """Return a flavor of a request with its search restricted to hosts that operators' limits permit."""
        question, notes = alternative.question, alternative.notes
        if self.of_tenant is not None:
            tenant_aggregates = self.of_tenant.get(alternative.request.project)
            if tenant_aggregates is None and self.tenants_need_one:
                tenant_aggregates = (NOBODY,)
                notes = (*notes, f"no aggregate is for project {alternative.request.project} ({TENANT})")
            if tenant_aggregates is not None:
                member_of = (*question.root_member_of, tenant_aggregates)
                question = msgspec.structs.replace(question, root_member_of=member_of)
        if self.demanding:
            # As in Nova, traits of the flavor and the image count here, but not traits that the request
            # itself requires.
            required = set(question.root_required).difference(alternative.request.root_required)
            required = required.union(*(group.required for group in question.groups))
            barred = tuple(uuid for uuid, demands in self.demanding if not demands <= required)
            if barred:
                not_member_of = (*question.root_not_member_of, *barred)
                question = msgspec.structs.replace(question, root_not_member_of=not_member_of)
        if self.closed:
            not_cells = tuple(dict.fromkeys((*question.not_cells, *self.closed)))
            question = msgspec.structs.replace(question, not_cells=not_cells)
        if question is alternative.question:
            return alternative
        return replace(alternative, question=question, notes=notes)


def prefilters(
    aggregates: Iterable[Aggregate], options: RequestOptions, cells: Iterable[RegisteredCell] = ()
) -> Prefilters:
    """Return the limits that operators set for all requests: by aggregates' metadata, disabled cells,
    settings."""
    tenants: dict[str, list[str]] = {}
    demanding = []
    for aggregate in sorted(aggregates, key=lambda item: item.id):
        projects: dict[str, None] = {}
        demands = set()
        for key, value in aggregate.metadata.items():
            if key.startswith(TENANT):
                projects |= dict.fromkeys(item.strip() for item in value.split(",") if item.strip())
            elif key.startswith("trait:") and value == "required":
                demands.add(key.removeprefix("trait:"))
        for project in projects:
            tenants.setdefault(project, []).append(aggregate.id)
        if demands:
            demanding.append((aggregate.id, frozenset(demands)))
    return Prefilters(
        {project: tuple(some) for project, some in tenants.items()} if options.tenant_aggregates else None,
        options.tenant_aggregates_required,
        tuple(demanding) if options.isolate_aggregates else (),
        tuple(sorted(cell.name for cell in cells if not cell.enabled)),
    )
