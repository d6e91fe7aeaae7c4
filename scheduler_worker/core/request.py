"""Translates a build request into queries to placement, one for each flavor, or into a refusal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import msgspec

from bus.host_health import DISABLED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Image
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.destination import Named, destination
from scheduler_worker.core.extra_specs import GuestSpecs, unknown
from scheduler_worker.core.group_draft import QuestionDraft, draft_of, fill, tie
from scheduler_worker.core.guest_devices import add_capabilities, add_devices
from scheduler_worker.core.guest_topology import Pages, add_topology, page_choices
from scheduler_worker.core.hints import check_hints
from scheduler_worker.core.image_traits import add_image
from scheduler_worker.core.invalid_request import MAX_NOTES, Unreadable
from scheduler_worker.core.request_options import RequestOptions

__all__ = ["Unreadable", "alternatives_of", "seconds_of"]

MAX_GROUPS = 200
KEPT = 1024  # flavors with their images and places, read once
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# cell, zone, aggregates, excluded aggregates
_Place = tuple[str, str, tuple[tuple[str, ...], ...], tuple[str, ...]]

_shapes = msgspec.json.Encoder(order="deterministic")
_places = msgspec.json.Decoder(tuple[int, Flavor, Image | None, _Place])


@dataclass(frozen=True)
class FlavorRead:
    """The query for a flavor with this image and the host constraints, shared by equal requests."""

    flavor: Flavor
    question: FindCandidates
    preferred: dict[str, float]
    notes: tuple[str, ...]


def alternatives_of(
    request: BuildRequested,
    options: RequestOptions,
    named: Named,
    names: Callable[[], Iterable[str]] = tuple,
) -> tuple[Alternative, ...]:
    """Return the alternatives of a request in order: its flavor, then each of or_else. Raise Unreadable if
    the request is contradictory.

    A flavor has several alternatives if several page sizes are acceptable. `named` returns the roots of a
    host, `names` all host names; it is called only for an unknown name. Equal requests share one query
    object.
    """
    _check(request, options)
    notes = check_hints(request)
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    if request.forced_host or request.wanted_host or request.ignore_hosts:
        only, never, unknown_ = destination(request, named, names)
        notes += unknown_
    alternatives = []
    for alternative_index, flavor in enumerate((request.flavor, *request.or_else)):
        place = (request.cell, request.zone, request.aggregates, request.not_aggregates)
        for read in _read(_shapes.encode((alternative_index, flavor, request.image, place)), options):
            question = read.question
            if only or never:
                question = msgspec.structs.replace(question, roots=only, not_roots=never)
            preferred = read.preferred
            if request.preferred_traits:
                preferred = {**preferred, **request.preferred_traits}
                _check_preferred(request, question)
            told = (*notes, *read.notes) if notes else read.notes
            alternatives.append(Alternative(request, flavor, question, alternative_index, told, preferred))
    return tuple(alternatives)


def seconds_of(wait: str) -> float:
    """Return the seconds of a duration such as `30m`; an empty text is 0."""
    return float(int(wait[:-1]) * SECONDS[wait[-1]]) if wait else 0.0


def _check(request: BuildRequested, options: RequestOptions) -> None:
    """Raise Unreadable if the request as a whole contradicts itself."""
    if request.at_least > len(set(request.instances)):
        raise Unreadable(f"at_least: {request.at_least}, of {len(set(request.instances))} instances")
    if seconds_of(request.wait) > options.max_wait:
        raise Unreadable(
            f"wait: {request.wait}, at most {options.max_wait:g} seconds are allowed (the setting max_wait)"
        )
    if "," in request.zone:
        raise Unreadable(f"zone: {request.zone!r}: one zone, whose name has no comma")
    for position, any_of in enumerate(request.aggregates):
        if not any_of:
            raise Unreadable(f"aggregates[{position}]: an empty list, which no host can meet")
        if set(any_of) <= set(request.not_aggregates):
            raise Unreadable(f"aggregates[{position}]: all of it is among not_aggregates")


def _check_preferred(request: BuildRequested, question: FindCandidates) -> None:
    group = next((group for group in question.groups if not group.suffix), None)
    barred = {*question.root_forbidden, *(group.forbidden if group is not None else ())}
    for name in request.preferred_traits:
        if name in barred:
            raise Unreadable(f"preferred_traits: {name} is forbidden (by the flavor, or on every host)")


@lru_cache(KEPT)
def _read(asked: bytes, options: RequestOptions) -> tuple[FlavorRead, ...]:
    """Parse the parts that equal requests share, once."""
    alternative_index, flavor, image, place = _places.decode(asked)
    where = f"or_else[{alternative_index - 1}]" if alternative_index else "flavor"
    specs = GuestSpecs(flavor, image, where)
    notes = tuple(islice(unknown(flavor, where, options.unscoped), MAX_NOTES))
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
