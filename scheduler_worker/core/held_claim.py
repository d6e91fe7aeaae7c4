"""Finds the host of an existing claim, and the provider that serves each of its request groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bus.claims import Held
from bus.queries import FindCandidates
from bus.reports import SHARES
from bus.requests import ResourceGroup
from bus.resources import Provider
from bus.vocabulary import Allocations
from scheduler_worker.core.rule import Alternative

PATIENCE = 10_000  # search steps, exceeded only with many equal groups, where any assignment is correct
Mappings = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """The host on which an existing claim has its allocations, and the agent of this host."""

    root: str
    host: str
    cell: str
    agent: str
    # the providers that the claim has allocations of
    providers: Mapping[str, Provider] = field(default_factory=dict, compare=False)


def place_of(held: Held, providers: Mapping[str, Provider]) -> ClaimPlace | None:
    """Return the host of existing allocations, or None if no agent reports any of their providers."""
    holds = {id_: providers[id_] for id_ in held.allocations if id_ in providers}
    owned = [provider for provider in holds.values() if provider.agent and provider.cell]
    if not owned:
        return None
    order = [(SHARES in one.traits, one.root not in held.allocations, one.root) for one in owned]
    first = owned[order.index(min(order))]
    return ClaimPlace(first.root, first.host, first.cell, first.agent, holds)


def alternative_of(held: Held, alternatives: Sequence[Alternative]) -> Alternative:
    """Return the first alternative that requests exactly the allocated amounts; else the first of all."""
    holds: dict[str, int] = {}
    for resources in held.allocations.values():
        for name, amount in resources.items():
            holds[name] = holds.get(name, 0) + amount
    return next((each for each in alternatives if each.asked == holds), alternatives[0])


def mappings_of(
    allocations: Allocations, question: FindCandidates, providers: Mapping[str, Provider], root: str
) -> Mappings:
    """Return the provider that serves each request group of a claim, by the group's suffix, as derived from
    the claim's allocations.

    The result is empty if the root provider serves all groups, or if no assignment of groups to providers is
    found. Of several possible assignments the first is returned.
    """
    several = [group for group in question.groups if group.suffix and group.resources]
    if not several:
        return {}
    unnamed = [group.resources for group in question.groups if not group.suffix]
    rest = sorted((name, amount) for asked in unnamed for name, amount in asked.items() if amount)
    for served, left in _ways(several, allocations, question, providers, [PATIENCE]):
        parts = sorted((name, amount) for amounts in left.values() for name, amount in amounts.items())
        if parts == rest and _tied(served, question, providers):
            if set(served.values()) == {root} and set(left) <= {root}:
                return {}
            mappings: Mappings = {"": tuple(left)} if left else {}
            return mappings | {suffix: (provider,) for suffix, provider in served.items()}
    return {}


def _ways(
    groups: Sequence[ResourceGroup],
    left: Allocations,
    question: FindCandidates,
    providers: Mapping[str, Provider],
    patience: list[int],
) -> Iterator[tuple[dict[str, str], Allocations]]:
    if not groups:
        yield {}, left
        return
    first, later = groups[0], groups[1:]
    for id_, has in left.items():
        patience[0] -= 1
        if patience[0] < 0:
            return
        if not _may_serve(first, has, providers.get(id_)):
            continue
        less = {name: has[name] - first.resources.get(name, 0) for name in has}
        after = {**left, id_: {name: amount for name, amount in less.items() if amount}}
        if not after[id_]:
            del after[id_]
        for served, rest in _ways(later, after, question, providers, patience):
            suffixes = [suffix for suffix, provider in served.items() if provider == id_]
            isolated = [suffix for suffix in suffixes if {first.suffix, suffix} <= set(question.isolated)]
            if not isolated and not (suffixes and question.group_policy == "isolate"):
                yield {first.suffix: id_, **served}, rest


def _may_serve(group: ResourceGroup, has: Mapping[str, int], provider: Provider | None) -> bool:
    if provider is None or any(has.get(name, 0) < amount for name, amount in group.resources.items()):
        return False
    traits = set(provider.traits)
    if not traits.issuperset(group.required) or not traits.isdisjoint(group.forbidden):
        return False
    return all(not traits.isdisjoint(some) for some in group.required_any)


def _tied(served: Mapping[str, str], question: FindCandidates, providers: Mapping[str, Provider]) -> bool:
    for suffixes in question.same_subtree:
        among = {served[suffix] for suffix in suffixes if suffix in served}
        if not any(all(_below(provider, top, providers) for provider in among) for top in among):
            return not among
    return True


def _below(provider: str, top: str, providers: Mapping[str, Provider]) -> bool:
    ancestor: str | None = provider
    while ancestor is not None and ancestor != top:
        ancestor = providers[ancestor].parent if ancestor in providers else None
    return ancestor == top
