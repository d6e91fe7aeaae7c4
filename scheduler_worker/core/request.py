"""Translates each flavor of a build request into a search of candidates, or refuses the request.

Limits from aggregates' metadata and disabled cells are computed once per change of aggregates or cells.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from heapq import nlargest
from itertools import islice, product, takewhile
from string import digits
from typing import Literal, NamedTuple

import msgspec

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Hints, Image, ResourceGroup
from bus.resources import PROCESSORS
from bus.vocabulary import MAX_INT, Resources
from scheduler_worker.core.order import flavors_of
from scheduler_worker.core.rule import Alternative

# Section: reads values of a request, and warns about extra specs without effect.


MAX_NOTES = 20  # most warnings about one list of a request
_LONGEST = 2000  # most characters of a warning, which may quote a long value
_LIKE = 0.65  # minimum similarity of a misspelt name and a suggestion, from 0 to 1
_COMPARED = 200  # maximum number of names to compare, which takes up to 50 microseconds each
_NUMBER = re.compile(r"[0-9]{1,10}")
# Extra specs that only the hypervisor reads; it receives them with the build order.
_OF_THE_HYPERVISOR = """
    hide_hypervisor_id hw:boot_menu hw:cpu_cores hw:cpu_sockets hw:cpu_threads hw:cpu_max_cores
    hw:cpu_max_sockets hw:cpu_max_threads hw:cpu_realtime hw:cpu_realtime_mask hw:hide_hypervisor_id
    hw:input_bus hw:locked_memory hw:maxphysaddr_bits hw:pointer_model hw:redirected_usb_ports
    hw:rescue_bus hw:serial_port_count hw:usb_model hw:vif_multiqueue_enabled hw:watchdog_action
""".split()  # noqa: SIM905 - shorter than a list
# Scopes of extra specs that Ironic or hypervisors read.
_OTHER_READERS = frozenset({"quota", "hw_rng", "hw_video", "powervm", "vmware"})
_SHAPED = re.compile(r"(resources|trait)[A-Za-z0-9_-]*:.*|same_subtree[A-Za-z0-9_-]*")


class Unreadable(ValueError):
    """The error for a request that contradicts itself or is invalid; the text names the field."""

    def __init__(self, why: str) -> None:
        super().__init__(why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion such as "did you mean …?", or an empty string if no known name is similar."""

    def alike(other: str) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))

    like = get_close_matches(name, nlargest(_COMPARED, known, key=alike), n=1, cutoff=_LIKE)
    return f"; did you mean {like[0]}?" if like else ""


@dataclass(frozen=True)
class SpecValue:
    """The value of an extra spec or image property, with the field's name for error messages."""

    value: str
    at: str

    def whole(self, least: int = 0, most: int = MAX_INT) -> int:
        if not _NUMBER.fullmatch(self.value) or not least <= int(self.value) <= most:
            raise Unreadable(f"{self.at}: {self.value!r} is no whole number from {least} to {most}")
        return int(self.value)


# Section: translates flavor and image into groups of resources and traits for the search of candidates.


_KEY = re.compile(r"(resources|trait)([A-Za-z0-9_-]*):(.*)", re.DOTALL)
_SAME = re.compile(r"same_subtree[A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_ANY = re.compile(r"any[A-Za-z0-9_-]*")
_MAX_SUFFIX = 64

_READ = frozenset({"group_policy", "same_subtree"})  # further extra specs that the kernel reads

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


Addition = Callable[[QuestionDraft], None]  # adds requirements to a draft


def _no_additions(flavor: Flavor, image: Image | None, where: str) -> Sequence[Addition]:
    return (lambda draft: None,)


@dataclass(frozen=True, kw_only=True)
class RequestReader:
    """A feature's reading of extra specs, image properties and scheduler hints."""

    # returns additions of what the flavor and the image require, one for each alternative, the preferred
    # first; raises Unreadable if they contradict themselves. The text names the flavor's field in the
    # request. It is not called for a flavor without extra specs and an image without properties.
    alternatives: Callable[[Flavor, Image | None, str], Sequence[Addition]] = _no_additions
    specs: frozenset[str] = frozenset()  # extra specs that it reads
    numbered: frozenset[str] = frozenset()  # prefixes of further ones, each followed by a number
    scopes: frozenset[str] = frozenset()  # scopes of which it, a filter or a hypervisor reads all extra specs
    # returns warnings about hints without effect; raises Unreadable if a hint is invalid
    check_hints: Callable[[Hints], Sequence[str]] = lambda hints: ()


@dataclass(frozen=True, eq=False)  # compared by identity: caches use it as a key
class RequestOptions:
    """The readers of features and the settings by which requests are interpreted. The defaults are Nova's."""

    readers: tuple[RequestReader, ...] = ()
    max_wait: float = 7 * 86400.0  # seconds that a request may wait for capacity
    unscoped: bool = False  # an enabled filter reads extra specs without scope: do not warn about them
    tenant_aggregates: bool = False  # with True, a project that aggregates name may use only their hosts
    tenant_aggregates_required: bool = False  # with True, a project that no aggregate names may use no host
    isolate_aggregates: bool = False  # aggregates with required traits accept only requests for these


def unknown(flavor: Flavor, where: str, options: RequestOptions) -> Iterator[str]:
    """Yield a warning sentence for each extra spec of a flavor that neither berth nor a hypervisor reads.
    `where` names the flavor's field in the request. Raise Unreadable for `accel:` specs.
    """
    if accelerated := next((key for key in flavor.extra_specs if key.partition(":")[0] == "accel"), None):
        why = "there are no device profiles here: ask for the device by its class, as resources1:FPGA=1"
        raise Unreadable(f"{where}.extra_specs[{accelerated!r}]: {why}")
    read = _READ.union(*(reader.specs for reader in options.readers))
    numbered = {prefix for reader in options.readers for prefix in reader.numbered}
    scopes = _OTHER_READERS.union(*(reader.scopes for reader in options.readers))
    for key in flavor.extra_specs:
        if key in read or key in _OF_THE_HYPERVISOR or _SHAPED.fullmatch(key):
            continue
        scope, colon, name = key.partition(":")
        is_numbered = key[-1:].isdecimal() and key.rstrip(digits) in numbered
        if is_numbered or (colon and scope in scopes):
            continue
        alike = nearest(key, [*read, *_OF_THE_HYPERVISOR, f"resources:{name}", f"trait:{name}"])
        if colon or alike:
            yield f"{where}.extra_specs: {key}: not known here{alike}"
        elif not options.unscoped:
            yield f"{where}.extra_specs: {key}: has no scope, and no enabled rule reads it"


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


def _weight(number: str, spec: SpecValue) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or not weight:
        raise Unreadable(f"{spec.at}: {number!r} is not a weight: a number other than 0")
    return weight


def tie(draft: QuestionDraft, flavor: Flavor) -> None:
    suffixes: Collection[str] = draft.groups
    for key, value in flavor.extra_specs.items():
        if _SAME.fullmatch(key):
            named_suffixes = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
            for suffix in named_suffixes:
                if not suffix or suffix not in suffixes:
                    at = f"{draft.where}.extra_specs[{key!r}]"
                    raise Unreadable(f"{at}: there is no group with suffix {suffix!r}")
            draft.same.append(named_suffixes)


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


MAX_GROUPS = 200

# what a request names: cell, zone, aggregates, excluded aggregates
_Place = tuple[str, str, tuple[tuple[str, ...], ...], tuple[str, ...]]

_shapes = msgspec.json.Encoder(order="deterministic")
_places = msgspec.json.Decoder(tuple[str, Flavor, Image | None, _Place])
NOBODY = "00000000-0000-0000-0000-000000000000"  # id of an aggregate that has no hosts

Named = Callable[[str], Sequence[str]]  # returns the roots of the hosts with a name or root


def check_hints(request: BuildRequested, options: RequestOptions) -> tuple[str, ...]:
    """Return a warning for each scheduler hint that has no effect. Raise Unreadable if a hint is invalid."""
    hints = request.hints
    both = set(hints.same_host) & set(hints.different_host)
    if both:
        raise Unreadable(f"hints.same_host and hints.different_host both name {min(both)}")
    for hint in ("same_host", "different_host"):
        named_instances = set(getattr(hints, hint)) & set(request.instances)
        if named_instances:
            raise Unreadable(f"hints.{hint}: {min(named_instances)} is one of the instances asked for")
    return tuple([note for reader in options.readers for note in reader.check_hints(hints)])


def destination(
    request: BuildRequested, named: Named, names: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the hosts that a request permits (if empty: all hosts), the hosts that it excludes, both by the
    ids of their root providers, and warnings about excluded hosts that do not exist. `named` returns the
    roots of hosts by name or root; `names` returns all host names, to suggest a similar name.
    """
    ignored: dict[str, str] = {}
    notes: list[str] = []
    for host in request.ignore_hosts:
        roots = named(host)
        if not roots and len(notes) < MAX_NOTES:
            notes.append(f"ignore_hosts: there is no host {host!r}{nearest(host, names())}")
        ignored |= dict.fromkeys(roots, host)
    wanted: dict[str, set[str]] = {}
    for hint in ("forced_host", "wanted_host"):
        host = getattr(request, hint)
        if not host:
            continue
        roots = named(host)
        if not roots:
            raise Unreadable(f"{hint}: there is no host {host!r}{nearest(host, names())}")
        if ignored.keys() >= set(roots):
            raise Unreadable(f"{hint}: {host!r} is among ignore_hosts")
        wanted[hint] = set(roots)
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


def alternatives_of(
    request: BuildRequested, options: RequestOptions, named: Named, names: Callable[[], Iterable[str]] = tuple
) -> tuple[Alternative, ...]:
    """Return the alternatives of each flavor, in the sequence of preference: one, or those of readers.

    Raise Unreadable if the request contradicts itself. `named` returns the roots of all hosts with a given
    name or root; `names` returns all host names, to suggest a similar name for an unknown one.
    """
    _check(request, options)
    notes = check_hints(request, options)
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
        # For a section, only the preferred alternative of readers is tried.
        for question, preferred, amounts, read_notes in (
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
    notes = tuple(islice(unknown(flavor, where, options), MAX_NOTES))
    has_specs = flavor.extra_specs or (image is not None and image.properties)
    readers = options.readers if has_specs else ()
    found = []
    for additions in product(*(reader.alternatives(flavor, image, where) for reader in readers)):
        draft = draft_of(flavor, where)
        for add in additions:
            add(draft)
        add_image(draft, image)
        fill(draft, flavor)
        tie(draft, flavor)
        draft.settle_traits()
        found.append(_FlavorRead(_question(draft, place), draft.preferred, draft.preferred_amounts, notes))
    return tuple(found)


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


TENANT = "filter_tenant_id"  # also the prefix of further keys, because the length of a value is limited


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


def listed(aggregate: Aggregate, key: str) -> list[str]:
    """Return the values, separated by commas, that an aggregate has for a metadata key."""
    text = aggregate.metadata.get(key)
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


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
                projects |= dict.fromkeys(listed(aggregate, key))
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
