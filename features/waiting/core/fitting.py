"""The hosts that fit waiting requests."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, CandidateSearch, Floats
from scheduler_worker.extension import (
    AllHosts,
    Alternative,
    ChoicePolicy,
    HostsNow,
    RuleError,
    capacities,
    masks_of,
)


@dataclass(frozen=True, slots=True)
class HostsFound:
    """The hosts that fit an alternative, and the hosts that only filters reject."""

    fits: Mapping[str, int]  # root of a host → most instances that fit
    refused: Collection[str] = ()  # hosts that fit, but that a filter rejects
    passing: bool = False  # whether a host is rejected for a temporary reason only
    more: bool = False  # the search stopped before all hosts were evaluated


def fitting(
    alternative: Alternative,
    search: CandidateSearch,
    now: HostsNow,
    served: Bools,
    policy: ChoicePolicy,
    enough: int,
) -> HostsFound:
    """Return the hosts that have an agent (mask `served`) and pass all filters. The search stops when
    `enough` instances fit.
    """
    positions = search.positions
    served_here = served[positions]
    admitted, lasting = served_here.copy(), served_here.copy()
    rules = policy.rules_for(alternative) if positions.size else []
    for rule, mask in masks_of(rules, AllHosts(search, now), alternative, positions.size):
        admitted &= mask
        if not rule.passes:
            lasting &= mask
    lazy = [rule for rule in rules if rule.admits is None]
    passing = bool((lasting & ~admitted).any())
    refused = [search.host(int(at)).uuid for at in positions[served_here & ~admitted]]
    asked, fits, capacity = alternative.asked, dict[str, int](), 0
    for at in positions[admitted].tolist():
        if capacity >= enough:
            return HostsFound(fits, refused, passing, more=True)
        facts = now.facts(search, at)
        refusal = next((rule for rule in lazy if rule.refuses(facts, alternative) is not None), None)
        if refusal is not None:
            refused.append(facts.root)
            passing = passing or refusal.passes
        elif search.ways(at, 1):
            several = capacities(asked, facts.free)
            fits[facts.root] = several
            capacity += several
    return HostsFound(fits, refused, passing)


def admitted_permanently(
    alternative: Alternative, search: CandidateSearch, position: int, now: HostsNow, policy: ChoicePolicy
) -> bool:
    """Return whether all filters accept a host, not counting rejections that disappear within seconds."""
    try:
        facts, rules = now.facts(search, position), policy.rules_for(alternative)
        return all(rule.passes or rule.refuses(facts, alternative) is None for rule in rules)
    except RuleError:
        return False


def distances(asked: Mapping[str, int], search: CandidateSearch) -> Floats:
    """Return how much each host of a search lacks for the amounts `asked`: the missing fraction of each
    amount, added; 0 if all are free.
    """
    far: Floats = np.zeros(search.positions.size)
    for name, amount in asked.items():
        far += np.maximum(amount - search.free(name), 0.0) / amount
    return far
