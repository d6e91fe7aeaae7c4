"""Ranks the allocation candidates of one host, which differ in the NUMA cells and devices that they use."""

from collections.abc import Callable, Sequence

from bus.queries import Candidate

WeightedCandidates = Sequence[tuple[float, Callable[[Candidate], float]]]  # multiplier, function


def fullness(candidate: Candidate, unused: float, left: float) -> float:
    """Return the score of a candidate, lower if it takes unused providers or leaves much of them free."""
    value = 0.0
    capacities, free_amounts = candidate.capacity_by_provider, candidate.free_by_provider
    for provider, asked in candidate.allocations.items():
        if provider not in capacities:
            continue
        capacity, free = capacities[provider], free_amounts[provider]
        is_unused, share = True, 0.0
        for name, amount in asked.items():
            has, total = free[name], capacity[name]
            if has != total:
                is_unused = False
            share += (has - amount) / (total or 1)
        value -= left * share / len(asked) + (unused if is_unused else 0.0)
    return value


def best_first(candidates: tuple[Candidate, ...], weighers: WeightedCandidates) -> tuple[Candidate, ...]:
    """Return the candidates of one host sorted by their scores, the best first; ties keep their sequence."""
    if len(candidates) < 2 or not weighers:
        return candidates
    scores = [0.0] * len(candidates)
    for multiplier, value in weighers:
        for number, candidate in enumerate(candidates):
            scores[number] -= multiplier * value(candidate)
    order = sorted(range(len(candidates)), key=scores.__getitem__)
    return tuple([candidates[number] for number in order])
