"""Relaxed variants of a request: each requirement left out singly, or with a smaller amount."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from scheduler_worker.core.rule import Alternative

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Relaxed:
    """An alternative with one requirement removed."""

    alternative: Alternative
    what: str  # "without zone a"
    trait: str = ""  # the trait that is left out
    state: str = ""  # the state of the hosts that a left-out filter rejects


@dataclass(frozen=True, slots=True)
class Lessened:
    """An alternative without one resource class of a group, to find how much of the class is free."""

    alternative: Alternative
    of: Alternative  # with it
    group: int
    resource_class: str
    asked: int

    def with_amount(self, amount: int) -> Alternative:
        groups = list(self.of.question.groups)
        group = groups[self.group]
        asked = {**group.resources, self.resource_class: amount}
        groups[self.group] = structs.replace(group, resources=asked)
        return _asking(self.of, groups=tuple(groups))

    def says(self, amount: int) -> str:
        groups = self.of.question.groups
        suffix = groups[self.group].suffix
        of = f" in group {suffix}" if suffix and len(groups) > 1 else ""
        if not amount:
            return f"without {self.resource_class}{of}"
        return f"with {amount} {self.resource_class} instead of {self.asked}{of}"


def lessened(alternative: Alternative) -> Iterator[Lessened]:
    """Yield the alternative without each of its resource classes in turn."""
    for index, group in enumerate(alternative.question.groups):
        for name, asked in group.resources.items():
            left = {one: amount for one, amount in group.resources.items() if one != name}
            yield Lessened(_with_group(alternative, index, resources=left), alternative, index, name, asked)


def relaxed(alternative: Alternative) -> Iterator[Relaxed]:
    """Yield the alternative without each of its other requirements in turn."""
    yield from _elsewhere(alternative)
    yield from _otherwise(alternative)
    if alternative.group is not None:
        name = f"without server group {alternative.group.name}"
        yield Relaxed(replace(alternative, group=None, members={}), name)
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
        reserved = tuple(root for root in question.not_roots if root in alternative.reserved)
        yield Relaxed(_asking(alternative, {"ignore_hosts": ()}, not_roots=reserved), "without ignore_hosts")
    for index, some in enumerate(request.aggregates):
        if some in question.root_member_of:  # aggregates that operators' metadata requires cannot be left out
            left = _without(question.root_member_of, some)
            yield Relaxed(_asking(alternative, root_member_of=left), f"without aggregates[{index}]")
    own = tuple(one for one in question.root_not_member_of if one not in request.not_aggregates)
    if own != question.root_not_member_of:
        yield Relaxed(_asking(alternative, root_not_member_of=own), "without not_aggregates")


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


def _asking(
    alternative: Alternative, of_request: Mapping[str, Any] | None = None, **fields: Any
) -> Alternative:
    question: FindCandidates = structs.replace(alternative.question, **fields)
    return replace(
        alternative, question=question, request=structs.replace(alternative.request, **of_request or {})
    )


def _with_group(alternative: Alternative, index: int, **fields: Any) -> Alternative:
    groups = list(alternative.question.groups)
    groups[index] = group = structs.replace(groups[index], **fields)
    tied = {suffix for some in alternative.question.same_subtree for suffix in some}
    if not group.resources and group.suffix not in tied:
        del groups[index]
    return _asking(alternative, groups=tuple(groups))
