"""Translates each flavor of a build request into a search of candidates, or refuses the request.

Limits from aggregates' metadata and disabled cells are computed once per change of aggregates or cells.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from heapq import nlargest
from itertools import islice, product, takewhile
from string import digits
from typing import NamedTuple

import msgspec

from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Hints, Image
from scheduler_worker.core.order_sections import flavors_of
from scheduler_worker.core.question_draft import (
    KERNEL_SPECS,
    QuestionDraft,
    add_image,
    draft_of,
    fill,
    tie_groups,
)
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.spec_values import Unreadable

MAX_NOTES = 20  # most warnings about one list of a request
_LIKE = 0.65  # minimum similarity of a misspelt name and a suggestion, from 0 to 1
_COMPARED = 200  # maximum number of names to compare, which takes up to 50 microseconds each
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


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion such as "did you mean …?", or an empty string if no known name is similar."""

    def alike(other: str) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))

    like = get_close_matches(name, nlargest(_COMPARED, known, key=alike), n=1, cutoff=_LIKE)
    return f"; did you mean {like[0]}?" if like else ""


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
    read = KERNEL_SPECS.union(*(reader.specs for reader in options.readers))
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
    """Read a flavor and image into questions, one for each combination of the alternatives of readers."""
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
        tie_groups(draft, flavor)
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
