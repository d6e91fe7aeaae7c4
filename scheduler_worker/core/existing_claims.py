"""Finds the host of an existing claim, and the flavor that it was made for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.claims import Held
from bus.reports import SHARES
from bus.resources import Provider
from scheduler_worker.core.rule import Alternative


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """The host on which an existing claim has its allocations, and the agent of this host."""

    root: str
    host: str
    cell: str
    agent: str


def place_of(held: Held, providers: Mapping[str, Provider]) -> ClaimPlace | None:
    """Return the host of existing allocations, or None if no agent reports any of their providers."""
    known = [providers[id_] for id_ in held.allocations if id_ in providers]
    owned = [provider for provider in known if provider.agent and provider.cell]
    if not owned:
        return None
    order = [(SHARES in one.traits, one.root not in held.allocations, one.root) for one in owned]
    first = owned[order.index(min(order))]
    return ClaimPlace(first.root, first.host, first.cell, first.agent)


def alternative_of(held: Held, alternatives: Sequence[Alternative]) -> Alternative:
    """Return the first alternative that requests exactly the allocated amounts; else the first of all."""
    holds: dict[str, int] = {}
    for resources in held.allocations.values():
        for name, amount in resources.items():
            holds[name] = holds.get(name, 0) + amount
    return next((each for each in alternatives if each.asked == holds), alternatives[0])
