"""Instances that must all be on one host: a host without capacity for all of them is rejected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from bus.candidates import CandidateSource
from bus.queries import Candidate
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.rejections import Refusal

if TYPE_CHECKING:
    from scheduler_worker.core.alternative import Alternative
    from scheduler_worker.core.rule import Rule


def all_of_them(
    alternative: "Alternative",
    rules: Sequence["Rule"],
    keeps: "Rule",
    source: CandidateSource,
    facts: HostFacts,
    ways: Callable[[], Sequence[Candidate]],
) -> Refusal | None:
    """Return why a host that fits the first instance would not fit the last one.

    The refusal is that of the filter that would reject the last instance, or of `keeps`, the filter that
    requires one host.
    """
    if alternative.together is None or alternative.together.several < 2:
        return None
    others = alternative.together.several - 1
    then, last = (
        with_more(facts, alternative.asked, others),
        replace(alternative, members={facts.root: others}),
    )
    for rule in rules:
        why = rule.refuses(then, last)
        if why is not None:
            return rule, f"{why} (with {others} more of the request there)"
    room = 1 + _room(others, source, ways)
    return (keeps, f"room for {room} of {others + 1} that are to be together") if room <= others else None


def with_more(facts: HostFacts, asked: Mapping[str, int], several: int) -> HostFacts:
    """Return the facts that filters and weighers would see after this number of further builds on the
    host.
    """
    free = {name: amount - several * asked.get(name, 0) for name, amount in facts.free.items()}
    return structs.replace(facts, free=free, building=facts.building + several)


def _room(others: int, source: CandidateSource, ways: Callable[[], Sequence[Candidate]]) -> int:
    """Return how many more instances fit after the first one: by arithmetic for a single provider, otherwise
    by trying.
    """
    found = ways()
    if not found:
        return -1
    if not found[0].free_by_provider:
        (asked,) = found[0].allocations.values()
        return min(others, *(found[0].free[name] // amount - 1 for name, amount in asked.items()))
    tried: list[Candidate] = []
    try:
        while found and len(tried) < others:
            source.reserve(found[0].allocations)
            tried.append(found[0])
            found = ways()
    finally:
        for way in tried:
            source.withdraw(way.allocations)
    return len(tried) if found else len(tried) - 1
