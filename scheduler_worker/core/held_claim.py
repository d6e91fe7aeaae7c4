"""Finds the host of a build that holds its claim already, by placement: no heartbeat of it is needed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.claims import Held
from bus.resources import Provider
from scheduler_worker.core.alternative import Alternative

SHARES = "MISC_SHARES_VIA_AGGREGATE"


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """The host of a claim, and its agent."""

    root: str
    host: str
    cell: str
    agent: str
    providers: Mapping[str, Provider] = field(default_factory=dict, compare=False)  # with allocations


def place_of(held: Held, providers: Mapping[str, Provider]) -> ClaimPlace | None:
    """Return the host of the allocations, or None if no agent reports any of the providers. A shared pool
    counts only if all providers are pools.
    """
    owned = [provider for provider in _named(held, providers) if provider.agent and provider.cell]
    if not owned:
        return None
    first = min(owned, key=lambda one: (SHARES in one.traits, one.root not in held.allocations, one.root))
    holds = {provider.id: provider for provider in _named(held, providers)}
    return ClaimPlace(first.root, first.host, first.cell, first.agent, holds)


def alternative_of(held: Held, alternatives: Sequence[Alternative]) -> int:
    """Return the index of the first alternative that requests exactly the held resources."""
    holds: dict[str, int] = {}
    for resources in held.allocations.values():
        for name, amount in resources.items():
            holds[name] = holds.get(name, 0) + amount
    return next(
        (
            alternative_index
            for alternative_index, alternative in enumerate(alternatives)
            if alternative.asked == holds
        ),
        0,
    )


def _named(held: Held, providers: Mapping[str, Provider]) -> Iterable[Provider]:
    return (providers[provider] for provider in held.allocations if provider in providers)
