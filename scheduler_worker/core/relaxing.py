"""Relaxed variants of a request: each requirement left out singly, or with a smaller amount."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from scheduler_worker.core.rule import Alternative


@dataclass(frozen=True, slots=True)
class Relaxed:
    """An alternative with one requirement removed."""

    alternative: Alternative
    what: str  # "without zone a"
    trait: str = ""  # the trait that is left out

    def says(self, hosts: str) -> str:
        """Return a sentence with the number of hosts that would fit then, such as "2 hosts"."""
        return f"trait {self.trait} on any of {hosts}" if self.trait else f"{self.what}: {hosts}"


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


def lessened(alternative: Alternative) -> Iterator[Lessened]:
    """Yield the alternative without each of its resource classes in turn."""
    for index, group in enumerate(alternative.question.groups):
        for name, asked in group.resources.items():
            left = {one: amount for one, amount in group.resources.items() if one != name}
            without = _with_group(alternative, index, structs.replace(group, resources=left))
            yield Lessened(without, alternative, index, name, asked)


def relaxed(alternative: Alternative) -> Iterator[Relaxed]:
    """Yield the alternative without each of its other requirements in turn."""
    yield from _elsewhere(alternative)
    yield from _otherwise(alternative)
    hints = alternative.request.hints
    if alternative.group is not None:
        name = f"without server group {alternative.group.name}"
        yield Relaxed(replace(alternative, group=None, members={}), name)
    if alternative.same is not None:
        yield Relaxed(replace(alternative, same=None), "without the hint same_host")
    if alternative.different:
        yield Relaxed(replace(alternative, different=frozenset()), "without the hint different_host")
    for field in ("query", "build_near_host_ip"):
        if getattr(hints, field):
            other = structs.replace(hints, **{field: ""})
            request = structs.replace(alternative.request, hints=other)
            yield Relaxed(replace(alternative, request=request), f"without the hint {field}")


def _elsewhere(alternative: Alternative) -> Iterator[Relaxed]:
    question, request = alternative.question, alternative.request
    if question.zone:
        anywhere = replace(alternative, request=structs.replace(request, zone=""))
        yield Relaxed(_asking(anywhere, zone=""), f"without zone {question.zone}")
    if question.cell:
        anywhere = replace(alternative, request=structs.replace(request, cell=""))
        yield Relaxed(_asking(anywhere, cell=""), f"without cell {question.cell}")
    for cell in question.not_cells:
        closed = tuple(one for one in question.not_cells if one != cell)
        yield Relaxed(_asking(alternative, not_cells=closed), f"with cell {cell} enabled")
    if question.roots:
        named = request.forced_host or request.wanted_host
        anywhere = replace(alternative, request=structs.replace(request, forced_host="", wanted_host=""))
        yield Relaxed(_asking(anywhere, roots=()), f"without host {named}")
    if request.ignore_hosts:
        anywhere = replace(alternative, request=structs.replace(request, ignore_hosts=()))
        reserved = tuple(root for root in question.not_roots if root in alternative.reserved)
        yield Relaxed(_asking(anywhere, not_roots=reserved), "without ignore_hosts")
    for index, some in enumerate(request.aggregates):
        if some in question.root_member_of:  # aggregates that operators' metadata requires cannot be left out
            others = tuple(one for one in question.root_member_of if one != some)
            yield Relaxed(_asking(alternative, root_member_of=others), f"without aggregates[{index}]")
    own = tuple(one for one in question.root_not_member_of if one not in request.not_aggregates)
    if own != question.root_not_member_of:
        yield Relaxed(_asking(alternative, root_not_member_of=own), "without not_aggregates")


def _otherwise(alternative: Alternative) -> Iterator[Relaxed]:
    question = alternative.question
    for trait in question.root_required:
        others = tuple(one for one in question.root_required if one != trait)
        yield Relaxed(_asking(alternative, root_required=others), f"without trait {trait}", trait)
    for trait in question.root_forbidden:
        if trait != DISABLED:
            others = tuple(one for one in question.root_forbidden if one != trait)
            yield Relaxed(_asking(alternative, root_forbidden=others), f"without {trait}=forbidden")
    for index, group in enumerate(question.groups):
        for trait in group.required:
            left = tuple(one for one in group.required if one != trait)
            yield Relaxed(
                _with_group(alternative, index, structs.replace(group, required=left)),
                f"without trait {trait}",
                trait,
            )
        for trait in group.forbidden:
            left = tuple(one for one in group.forbidden if one != trait)
            forgiving = structs.replace(group, forbidden=left)
            yield Relaxed(_with_group(alternative, index, forgiving), f"without {trait}=forbidden")
        for some in group.required_any:
            choices, any_of = tuple(one for one in group.required_any if one != some), " or ".join(some)
            easier = structs.replace(group, required_any=choices)
            yield Relaxed(_with_group(alternative, index, easier), f"without trait {any_of}", any_of)
    if question.same_subtree:
        yield Relaxed(_asking(alternative, same_subtree=()), "without same_subtree")
    if question.group_policy == "isolate":
        yield Relaxed(_asking(alternative, group_policy="none"), "without group_policy=isolate")


def _asking(alternative: Alternative, **fields: Any) -> Alternative:
    question: FindCandidates = structs.replace(alternative.question, **fields)
    return replace(alternative, question=question)


def _with_group(alternative: Alternative, index: int, group: ResourceGroup) -> Alternative:
    groups = list(alternative.question.groups)
    groups[index] = group
    tied = {suffix for some in alternative.question.same_subtree for suffix in some}
    if not group.resources and group.suffix not in tied:
        del groups[index]
    return _asking(alternative, groups=tuple(groups))
