"""Makes copies of a request, each with one requirement removed or with less of one resource class."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from scheduler_worker.core.rule import Alternative

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
