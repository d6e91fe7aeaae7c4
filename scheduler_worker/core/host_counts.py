"""Counts the hosts that would fit a relaxed request, with a limited number of searches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import SenselessQuery
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import capacities
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.relaxing import Lessened

NEVER_WITHOUT = frozenset({"VCPU", "PCPU", "MEMORY_MB"})  # every guest needs these
LOOKED_AT = 48  # hosts evaluated singly per variant; if all of them fit, the rest are assumed to fit


@dataclass(frozen=True, slots=True)
class Found:
    """Hosts that would do: exactly so many, or at least."""

    hosts: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{self.hosts} host{'' if self.hosts == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Helps:
    """Something to be done, and the hosts that would then do."""

    found: Found
    what: str  # the text as a part of a longer sentence
    says: str  # the text as a sentence


def never() -> bool:
    return False


class Tally:
    """Counts hosts until the searches or the time are used up; then the count is 0.

    Hosts without free capacity for all the `needed` instances count as none.
    """

    def __init__(
        self, seed: str, searches: int, late: Callable[[], bool] = never, *, needed: int = 1
    ) -> None:
        self.left = searches
        self.needed = needed
        self._seed = seed
        self._late = late

    @property
    def spent(self) -> bool:
        return self.left <= 0 or self._late()

    def count(self, alternative: Alternative, choosing: Choosing) -> Found:
        ranking = self.ranking(alternative, choosing)
        return Found(0) if ranking is None else self._counted(ranking)

    def ranking(self, alternative: Alternative, choosing: Choosing) -> Ranking | None:
        if self.spent:
            return None
        self.left -= 1
        try:
            return choosing.rank(alternative, self._seed)
        except SenselessQuery:
            return None

    def by_less(self, less: Lessened, choosing: Choosing) -> Helps | None:
        """Return the largest smaller amount that fits, with the number of hosts."""
        others = less.alternative if asks_for_something(less.alternative) else less.with_amount(1)
        ranking = self.ranking(others, choosing)
        if ranking is None:
            return None
        for amount in amounts(ranking, less):
            found = self.count(less.with_amount(amount), choosing)
            if found.hosts:
                what = with_less(less, amount)
                return Helps(found, what, f"{found} would fit {what}")
        found = self._counted(ranking)
        if found.hosts and others is less.alternative and less.resource_class not in NEVER_WITHOUT:
            return Helps(found, with_less(less, 0), f"{with_less(less, 0)}: {found}")
        return None

    def _counted(self, ranking: Ranking) -> Found:
        indices, examined, fitting, instances = ranking.admitted(), 0, 0, 0
        for index in indices[:LOOKED_AT]:
            if examined and self._late():
                break
            examined += 1
            if ranking.fits(index):
                fitting += 1
                instances += _instances(ranking, index) if self.needed > 1 else 1
        if instances < self.needed:
            return Found(0)
        if fitting == min(len(indices), LOOKED_AT):
            return Found(len(indices))
        return Found(fitting, more=len(indices) > examined and fitting > 0)


def _instances(ranking: Ranking, index: int) -> int:
    """Return for how many instances this host has free capacity, disregarding what hosts share."""
    way, alternative = ranking.way(index), ranking.alternative
    several = capacities(alternative.asked, way.free) if way is not None else 0
    if alternative.group is None or alternative.group.policy != "anti-affinity":
        return several
    return min(several, alternative.group.max_per_host - alternative.members.get(ranking.host(index).uuid, 0))


def asks_for_something(alternative: Alternative) -> bool:
    return any(group.resources for group in alternative.question.groups)


def amounts(ranking: Ranking, less: Lessened) -> Sequence[int]:
    """Return smaller amounts to try, the largest first."""
    indices = ranking.admitted()
    if not len(indices):
        return ()
    most = int(np.max(ranking.free(less.resource_class)[list(indices)]))
    # If fewer instances than free amounts fit, try halves of the total too.
    halves = {amount >> shift for amount in (min(most, less.asked - 1), less.asked) for shift in range(4)}
    return sorted((half for half in halves if 0 < half <= min(most, less.asked - 1)), reverse=True)


def with_less(less: Lessened, amount: int) -> str:
    groups = less.of.question.groups
    suffix = groups[less.group].suffix
    of = f" in group {suffix}" if suffix and len(groups) > 1 else ""
    if not amount:
        return f"without {less.resource_class}{of}"
    return f"with {amount} {less.resource_class} instead of {less.asked}{of}"
