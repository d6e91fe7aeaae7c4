"""Relaxed variants of a request: each requirement left out singly, or with a smaller amount."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from bus.host_marks import DISABLED
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from scheduler_worker.core.wish import Alternative


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A wish that asks for one thing less."""

    wish: Alternative
    what: str  # "without zone a"
    trait: str = ""  # the trait that is left out

    def says(self, hosts: str) -> str:
        """Return the sentence with the number of hosts, such as "2 hosts", that would fit."""
        return f"trait {self.trait} on any of {hosts}" if self.trait else f"{self.what}: {hosts}"


@dataclass(frozen=True, slots=True)
class Lessened:
    """A wish without one class in one of its groups: how much of it would be there?"""

    wish: Alternative
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


def lessened(wish: Alternative) -> Iterator[Lessened]:
    """Without each of its classes in turn."""
    for nth, group in enumerate(wish.question.groups):
        for name, asked in group.resources.items():
            left = {one: amount for one, amount in group.resources.items() if one != name}
            without = _with_group(wish, nth, structs.replace(group, resources=left))
            yield Lessened(without, wish, nth, name, asked)


def relaxed(wish: Alternative) -> Iterator[Relaxed]:
    """Without each of its other demands in turn."""
    yield from _elsewhere(wish)
    yield from _otherwise(wish)
    hints = wish.request.hints
    if wish.group is not None:
        name = f"without server group {wish.group.name}"
        yield Relaxed(replace(wish, group=None, members={}), name)
    if wish.same is not None:
        yield Relaxed(replace(wish, same=None), "without the hint same_host")
    if wish.different:
        yield Relaxed(replace(wish, different=frozenset()), "without the hint different_host")
    for field in ("query", "build_near_host_ip"):
        if getattr(hints, field):
            other = structs.replace(hints, **{field: ""})
            request = structs.replace(wish.request, hints=other)
            yield Relaxed(replace(wish, request=request), f"without the hint {field}")


def _elsewhere(wish: Alternative) -> Iterator[Relaxed]:
    """Where it may be."""
    question, request = wish.question, wish.request
    if question.zone:
        anywhere = replace(wish, request=structs.replace(request, zone=""))
        yield Relaxed(_asking(anywhere, zone=""), f"without zone {question.zone}")
    if question.cell:
        anywhere = replace(wish, request=structs.replace(request, cell=""))
        yield Relaxed(_asking(anywhere, cell=""), f"without cell {question.cell}")
    for cell in question.not_cells:
        closed = tuple(one for one in question.not_cells if one != cell)
        yield Relaxed(_asking(wish, not_cells=closed), f"with cell {cell} enabled")
    if question.roots:
        named = request.forced_host or request.wanted_host
        anywhere = replace(wish, request=structs.replace(request, forced_host="", wanted_host=""))
        yield Relaxed(_asking(anywhere, roots=()), f"without host {named}")
    if request.ignore_hosts:
        anywhere = replace(wish, request=structs.replace(request, ignore_hosts=()))
        reserved = tuple(root for root in question.not_roots if root in wish.reserved)
        yield Relaxed(_asking(anywhere, not_roots=reserved), "without ignore_hosts")
    for nth, some in enumerate(request.aggregates):
        if some in question.root_member_of:  # aggregates that operators' metadata requires cannot be left out
            others = tuple(one for one in question.root_member_of if one != some)
            yield Relaxed(_asking(wish, root_member_of=others), f"without aggregates[{nth}]")
    own = tuple(one for one in question.root_not_member_of if one not in request.not_aggregates)
    if own != question.root_not_member_of:
        yield Relaxed(_asking(wish, root_not_member_of=own), "without not_aggregates")


def _otherwise(wish: Alternative) -> Iterator[Relaxed]:
    """Yield the variants without a requirement other than an amount."""
    question = wish.question
    for trait in question.root_required:
        others = tuple(one for one in question.root_required if one != trait)
        yield Relaxed(_asking(wish, root_required=others), f"without trait {trait}", trait)
    for trait in question.root_forbidden:
        if trait != DISABLED:
            others = tuple(one for one in question.root_forbidden if one != trait)
            yield Relaxed(_asking(wish, root_forbidden=others), f"without {trait}=forbidden")
    for nth, group in enumerate(question.groups):
        for trait in group.required:
            left = tuple(one for one in group.required if one != trait)
            yield Relaxed(
                _with_group(wish, nth, structs.replace(group, required=left)), f"without trait {trait}", trait
            )
        for trait in group.forbidden:
            left = tuple(one for one in group.forbidden if one != trait)
            forgiving = structs.replace(group, forbidden=left)
            yield Relaxed(_with_group(wish, nth, forgiving), f"without {trait}=forbidden")
        for some in group.required_any:
            choices, any_of = tuple(one for one in group.required_any if one != some), " or ".join(some)
            easier = structs.replace(group, required_any=choices)
            yield Relaxed(_with_group(wish, nth, easier), f"without trait {any_of}", any_of)
    if question.same_subtree:
        yield Relaxed(_asking(wish, same_subtree=()), "without same_subtree")
    if question.group_policy == "isolate":
        yield Relaxed(_asking(wish, group_policy="none"), "without group_policy=isolate")


def _asking(wish: Alternative, **fields: Any) -> Alternative:
    question: FindCandidates = structs.replace(wish.question, **fields)
    return replace(wish, question=question)


def _with_group(wish: Alternative, nth: int, group: ResourceGroup) -> Alternative:
    """Return the `Wish` with this group replaced, or removed if it requests nothing and no other group refers
    to it.
    """
    groups = list(wish.question.groups)
    groups[nth] = group
    tied = {suffix for some in wish.question.same_subtree for suffix in some}
    if not group.resources and group.suffix not in tied:
        del groups[nth]
    return _asking(wish, groups=tuple(groups))
