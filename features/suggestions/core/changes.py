"""Finds changes of a request that would make it fit, with a limited number of searches.

Each requirement is relaxed alone; if that does not suffice, two together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from scheduler_worker.extension import MOST_SEARCHES, Alternative, Choosing, Found, FoundHosts, Order, Tally

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Relaxed:
    """One flavor of a request with one of its requirements removed."""

    alternative: Alternative
    what: str  # the text of the suggestion, such as "without zone a"
    trait: str = ""  # the trait that is no longer required, if any
    state: str = ""  # without a filter for a state: the state that it rejects


@dataclass(frozen=True, slots=True)
class Lessened:
    """One flavor of a request without one resource class, to find how much of this class hosts have free."""

    alternative: Alternative
    of: Alternative  # the flavor before the resource class was removed
    group: int
    resource_class: str
    asked: int

    def with_amount(self, amount: int) -> Alternative:
        asked = {**self.of.question.groups[self.group].resources, self.resource_class: amount}
        return _with_group(self.of, self.group, resources=asked)

    def says(self, amount: int) -> str:
        groups = self.of.question.groups
        suffix = groups[self.group].suffix
        of = f" in group {suffix}" if suffix and len(groups) > 1 else ""
        if not amount:
            return f"without {self.resource_class}{of}"
        return f"with {amount} {self.resource_class} instead of {self.asked}{of}"


def lessened(alternative: Alternative) -> Iterator[Lessened]:
    """Yield copies of one flavor of a request, each without one of its resource classes."""
    for index, group in enumerate(alternative.question.groups):
        for name, asked in group.resources.items():
            left = {resource: amount for resource, amount in group.resources.items() if resource != name}
            yield Lessened(_with_group(alternative, index, resources=left), alternative, index, name, asked)


def relaxed(alternative: Alternative) -> Iterator[Relaxed]:
    """Yield copies of one flavor of a request; each lacks one requirement. The requested amounts stay."""
    yield from _elsewhere(alternative)
    yield from _otherwise(alternative)
    for part in alternative.parts:
        yield Relaxed(alternative.without_part(part), part.without)
    if alternative.same is not None:
        yield Relaxed(replace(alternative, same=None), "without the hint same_host")
    if alternative.different:
        yield Relaxed(replace(alternative, different=frozenset()), "without the hint different_host")
    for field in ("query", "build_near_host_ip"):
        if getattr(alternative.request.hints, field):
            hints = structs.replace(alternative.request.hints, **{field: ""})
            yield Relaxed(_asking(alternative, {"hints": hints}), f"without the hint {field}")


def _elsewhere(alternative: Alternative) -> Iterator[Relaxed]:
    question, request = alternative.question, alternative.request
    for field in ("zone", "cell"):
        if name := getattr(question, field):
            yield Relaxed(_asking(alternative, {field: ""}, **{field: ""}), f"without {field} {name}")
    for cell in question.not_cells:
        closed = _without(question.not_cells, cell)
        yield Relaxed(_asking(alternative, not_cells=closed), f"with cell {cell} enabled")
    if question.roots:
        named = request.forced_host or request.wanted_host
        anywhere = _asking(alternative, {"forced_host": "", "wanted_host": ""}, roots=())
        yield Relaxed(anywhere, f"without host {named}")
    if request.ignore_hosts:
        limited = {root for limit in alternative.limits for root in limit.roots}
        reserved = tuple(root for root in question.not_roots if root in limited)
        yield Relaxed(_asking(alternative, {"ignore_hosts": ()}, not_roots=reserved), "without ignore_hosts")
    for index, some in enumerate(request.aggregates):
        if some in question.root_member_of:  # not an aggregate that operators require
            left = _without(question.root_member_of, some)
            yield Relaxed(_asking(alternative, root_member_of=left), f"without aggregates[{index}]")
    rest = tuple(id_ for id_ in question.root_not_member_of if id_ not in request.not_aggregates)
    if rest != question.root_not_member_of:
        yield Relaxed(_asking(alternative, root_not_member_of=rest), "without not_aggregates")


def _otherwise(alternative: Alternative) -> Iterator[Relaxed]:
    question = alternative.question
    for trait in question.root_required:
        left = _without(question.root_required, trait)
        yield Relaxed(_asking(alternative, root_required=left), f"without trait {trait}", trait)
    for trait in question.root_forbidden:
        if trait != DISABLED:
            left = _without(question.root_forbidden, trait)
            yield Relaxed(_asking(alternative, root_forbidden=left), f"without {trait}=forbidden")
    for index, group in enumerate(question.groups):
        for trait in group.required:
            easier = _with_group(alternative, index, required=_without(group.required, trait))
            yield Relaxed(easier, f"without trait {trait}", trait)
        for trait in group.forbidden:
            easier = _with_group(alternative, index, forbidden=_without(group.forbidden, trait))
            yield Relaxed(easier, f"without {trait}=forbidden")
        for some in group.required_any:
            easier = _with_group(alternative, index, required_any=_without(group.required_any, some))
            yield Relaxed(easier, f"without trait {' or '.join(some)}", " or ".join(some))
    if question.same_subtree:
        yield Relaxed(_asking(alternative, same_subtree=()), "without same_subtree")
    if question.group_policy == "isolate":
        yield Relaxed(_asking(alternative, group_policy="none"), "without group_policy=isolate")


def _without(values: tuple[_T, ...], left_out: _T) -> tuple[_T, ...]:
    return tuple([value for value in values if value != left_out])


def _asking(alternative: Alternative, of_request: dict[str, Any] | None = None, **fields: Any) -> Alternative:
    question: FindCandidates = structs.replace(alternative.question, **fields)
    request = structs.replace(alternative.request, **of_request or {})
    return replace(alternative, question=question, request=request)


def _with_group(alternative: Alternative, index: int, **fields: Any) -> Alternative:
    groups = list(alternative.question.groups)
    groups[index] = group = structs.replace(groups[index], **fields)
    tied = {suffix for some in alternative.question.same_subtree for suffix in some}
    if not group.resources and group.suffix not in tied:
        del groups[index]
    return _asking(alternative, groups=tuple(groups))


NEVER_WITHOUT = frozenset({"VCPU", "PCPU", "MEMORY_MB"})  # required by every guest
MOST_TRIED = 24  # changes tried for one equivalence class
MOST_PAIRED = 48  # searches for pairs of changes
PAIRS_SHOWN = 3  # pairs of changes that fit, after which the search stops
MOST_SHOWN = 6
_STATES = {"up": "down", "enabled": "disabled"}  # filter → the state of the hosts that it rejects


@dataclass(frozen=True, slots=True)
class Helps:
    """A suggestion to change a request, with the number of hosts that would then fit."""

    found: Found
    what: str  # the text as a part of a longer sentence
    says: str  # the text as a sentence


def by_less(tally: Tally, less: Lessened, choosing: Choosing) -> Helps | None:
    """Suggest a resource class's largest amount that fits, or to leave it out; None if neither helps."""
    without = _without_class(less)
    hosts = tally.find(without, choosing)
    if hosts is None:
        return None
    for amount in _amounts(hosts, less):
        found = tally.count(less.with_amount(amount), choosing)
        if found.hosts:
            return Helps(found, less.says(amount), f"{found} would fit {less.says(amount)}")
    found = tally.counted(hosts)
    if found.hosts and without is less.alternative and less.resource_class not in NEVER_WITHOUT:
        return _helps(found, less.says(0))
    return None


def _without_class(reduction: Lessened) -> Alternative:
    """Return the flavor without the resource class that `reduction` removes. If the flavor requests no other
    class, return the flavor with 1 unit of this class."""
    asks = any(group.resources for group in reduction.alternative.question.groups)
    return reduction.alternative if asks else reduction.with_amount(1)


def _amounts(hosts: FoundHosts, less: Lessened) -> Sequence[int]:
    if not hosts.passing.size:
        return ()
    free = int(np.max(hosts.search.free(less.resource_class)[hosts.passing]))
    most = min(free, less.asked - 1)
    # `most` may not fit because of other limits, so smaller amounts are tried too.
    halves = {amount >> shift for amount in (most, less.asked) for shift in range(4)}
    return sorted((half for half in halves if 0 < half <= most), reverse=True)


def paired(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    """Yield pairs of changes that would make a request fit, first pairs that reduce two resource classes."""
    yield from _both_less(alternative, choosing, tally)
    for index, (first, first_choosing) in enumerate(_changes(alternative, choosing)):
        for less in lessened(first.alternative):
            if tally.spent:
                return
            if fits := by_less(tally, less, first_choosing):
                yield _helps(fits.found, f"{first.what} and {fits.what}")
        for second, elsewhere in list(_changes(first.alternative, first_choosing))[index:]:
            if tally.spent:
                return
            found = tally.count(second.alternative, elsewhere)
            if found.hosts:
                yield _helps(found, f"{first.what} and {second.what}")


def _changes(alternative: Alternative, choosing: Choosing) -> Iterator[tuple[Relaxed, Choosing]]:
    """Yield changed requests, each with a `Choosing`: without one requirement, then without one filter."""
    for easier in relaxed(alternative):
        yield easier, choosing
    for rule in choosing.policy.rules:
        if rule.concerns(alternative):
            state = _STATES.get(rule.name, "")
            description = f"with hosts that are {state}" if state else f"without the filter {rule.name}"
            yield Relaxed(alternative, description, state=state), choosing.without(rule.name)


def _both_less(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    """Yield suggestions to reduce two resource classes together, where reducing one does not suffice."""
    for index, first in enumerate(lessened(alternative)):
        for second in list(lessened(first.alternative))[index:]:
            if tally.spent:
                return
            hosts = tally.find(_without_class(second), choosing)
            for amount in _amounts(hosts, first) if hosts is not None else ():
                less_too = lessened(first.with_amount(amount))
                other = [less for less in less_too if less.resource_class == second.resource_class]
                fits = next(filter(None, (by_less(tally, less, choosing) for less in other)), None)
                if fits is not None:
                    yield _helps(fits.found, f"{first.says(amount)} and {fits.what}")
                    break


def _helps(found: Found, change: str) -> Helps:
    return Helps(found, change, f"{change}: {found}")


def helps(order: Order, choosing: Choosing, shared: Tally) -> Iterator[str]:
    """Yield sentences with changes after which enough instances of an order fit, first changes that fit on
    most hosts. The searches have limits of their own, and the limit of time of `shared`.
    """
    alternative, tally = order.preferred, shared.another(MOST_SEARCHES)
    if alternative.request.parts.sections:  # a change of one does not make the others fit
        return
    for part in alternative.parts:
        if part.is_joint:
            anywhere = tally.count(alternative.without_part(part), choosing)
            if anywhere.hosts:
                yield f"{part.without}: {anywhere}"
            return
    # The amounts fit here, so a resource of a pool is lacking, which this search does not consider.
    if tally.needed > 1 and tally.count(alternative, choosing).hosts:
        return
    found = [help_ for help_ in islice(_tried(alternative, choosing, tally), MOST_TRIED) if help_ is not None]
    if not found:
        pairs = paired(alternative, choosing, tally.another(MOST_PAIRED))
        found = list(islice(pairs, PAIRS_SHOWN))
    found.sort(key=lambda help_: -help_.found.hosts)
    yield from islice(dict.fromkeys(help_.says for help_ in found), MOST_SHOWN)


def _tried(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps | None]:
    for less in lessened(alternative):
        yield by_less(tally, less, choosing)
    for easier, easier_choosing in _changes(alternative, choosing):
        found = tally.count(easier.alternative, easier_choosing)
        yield Helps(found, easier.what, _sentence(easier, found, tally.needed)) if found.hosts else None
    if choosing.is_reserved(alternative):
        yield Helps(Found(1), "", "wait: builds that were just sent there may leave room after all")


def _sentence(easier: Relaxed, found: Found, needed: int) -> str:
    if easier.trait:
        return f"trait {easier.trait} on any of {found}"
    if easier.state and needed == 1:  # `found` also counts hosts that the filter accepts
        return f"{found} {'is' if found.hosts == 1 else 'are'} {easier.state}"
    return f"{easier.what}: {found}"
