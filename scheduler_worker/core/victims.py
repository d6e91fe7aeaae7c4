"""Chooses the instances to preempt for one instance of a request, as a pure search on arrays.

Of all sets of victims on one host after whose deletion the demand fits, the best has the lowest highest
priority, then the fewest instances, then the least total size, then the first host.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from bus.candidates import Floats
from bus.vocabulary import Id

SLACK = 1e-9
MOST_SETS = 200_000  # sets of one host compared exactly; beyond, small instances are left out


@dataclass(frozen=True, slots=True, eq=False)
class Replaceable:
    """An instance that may be preempted, with its amounts by class."""

    build: Id
    priority: int
    amounts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CrowdedHost:
    """A host that would accept the demand if it were empty: its free amounts and its instances."""

    at: int
    free: Floats
    instances: Sequence[Replaceable]


@dataclass(frozen=True, slots=True, eq=False)
class VictimChoice:
    """The best victims on one host, with the measure by which sets are compared."""

    at: int
    victims: tuple[Replaceable, ...]
    measure: tuple[int, int, float, int]


def choose_victims(hosts: Sequence[CrowdedHost], demand: Floats, scale: Floats) -> VictimChoice | None:
    """Return the best victims; None if no host fits the demand even without all its instances.

    `scale`: the largest capacity of each class, by which amounts of several classes are added.
    """
    best: VictimChoice | None = None
    for host in hosts:
        found = _on_host(host, demand, scale, best)
        if found is not None and (best is None or found.measure < best.measure):
            best = found
    return best


def _on_host(
    host: CrowdedHost, demand: Floats, scale: Floats, best: VictimChoice | None
) -> VictimChoice | None:
    lacks = np.maximum(demand - host.free, 0.0)
    if not (lacks > SLACK).any():
        return None  # it fits without victims
    useful = [each for each in host.instances if (np.minimum(each.amounts, lacks) > SLACK).any()]
    for highest in sorted({each.priority for each in useful}):
        if best is not None and highest > best.measure[0]:
            return None
        some = [each for each in useful if each.priority <= highest]
        if (np.sum([each.amounts for each in some], axis=0) < lacks - SLACK).any():
            continue
        victims = _fewest(some, lacks, scale)
        size = round(sum(float((each.amounts / scale).sum()) for each in victims), 9)
        return VictimChoice(host.at, victims, (highest, len(victims), size, host.at))
    return None


def _fewest(some: Sequence[Replaceable], lacks: Floats, scale: Floats) -> tuple[Replaceable, ...]:
    """Return the fewest instances, of the least size, that release what a host lacks. The caller has checked
    that all instances together release enough.
    """
    amounts = np.array([each.amounts for each in some])
    largest = np.sort(amounts, axis=0)[::-1].cumsum(axis=0)
    least = int((largest < lacks - SLACK).sum(axis=0).max()) + 1
    sizes = (amounts / scale).sum(axis=1)
    for number in range(least, len(some) + 1):
        if comb(len(some), number) > MOST_SETS:
            return _by_share(some, lacks)
        chosen = np.array(list(combinations(range(len(some)), number)), np.intp)
        chosen = chosen[(amounts[chosen].sum(axis=1) >= lacks - SLACK).all(axis=1)]
        if len(chosen):
            total = np.round(sizes[chosen].sum(axis=1), 9)
            return tuple(some[at] for at in chosen[int(np.argmin(total))])
    return tuple(some)


def _by_share(some: Sequence[Replaceable], lacks: Floats) -> tuple[Replaceable, ...]:
    """Return instances that release what a host lacks, without one that is not needed."""
    left, taken = lacks.copy(), list[Replaceable]()
    remaining = list(some)
    while (left > SLACK).any():
        needed = left > SLACK
        largest = max(remaining, key=lambda each: _share(each, left, needed))
        remaining.remove(largest)
        taken.append(largest)
        left = left - largest.amounts
    return tuple(_needed(taken, lacks))


def _share(instance: Replaceable, left: Floats, needed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(np.minimum(instance.amounts[needed] / left[needed], 1.0).sum())


def _needed(taken: list[Replaceable], lacks: Floats) -> Iterator[Replaceable]:
    kept = list(taken)
    for each in reversed(taken):
        rest = [other for other in kept if other is not each]
        if rest and (np.sum([other.amounts for other in rest], axis=0) >= lacks - SLACK).all():
            kept = rest
    yield from kept
