"""Finds changes of a request that would make it fit, with a limited number of searches: one demand is relaxed
at a time; if that does not suffice, two together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bus.candidates import SenselessQuery
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import capacities
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.relaxing import Lessened, lessened, relaxed
from scheduler_worker.core.rule import Alternative, Rule

Late = Callable[[], bool]  # whether the time is used up

NEVER_WITHOUT = frozenset({"VCPU", "PCPU", "MEMORY_MB"})  # required by every guest
LOOKED_AT = 48  # hosts evaluated singly per variant; if all of them fit, the rest are assumed to fit
MOST_TRIED = 24  # things to be done without, for one kind of request
MOST_SEARCHES = 240  # searches for the whole batch
MOST_PAIRED = 48  # searches for two at a time
PAIRS_SAID = 3  # pairs that are reported: then the search stops
MOST_SAID = 6


@dataclass(frozen=True, slots=True)
class Found:
    """The number of hosts that a changed request would fit: exact, or at least so many."""

    hosts: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{self.hosts} host{'' if self.hosts == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Helps:
    """A change of a request that would make it fit, with the number of hosts it would fit then."""

    found: Found
    what: str  # the text as a part of a longer sentence
    says: str  # the text as a sentence


def never() -> bool:
    return False


class Tally:
    """Counts hosts that would fit `needed` instances, until the searches or the time are used up."""

    def __init__(self, seed: str, searches: int, late: Late = never, *, needed: int = 1) -> None:
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
        """Return the largest smaller amount of a resource class that would fit, with the number of hosts."""
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
    way, alternative = ranking.cache.way(index), ranking.alternative
    several = capacities(alternative.asked, way.free) if way is not None else 0
    if alternative.group is None or alternative.group.policy != "anti-affinity":
        return several
    return min(several, alternative.group.max_per_host - alternative.members.get(ranking.host(index).uuid, 0))


def asks_for_something(alternative: Alternative) -> bool:
    return any(group.resources for group in alternative.question.groups)


def amounts(ranking: Ranking, less: Lessened) -> Sequence[int]:
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


def paired(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    """Yield pairs of changes that would make a request fit: of its demands first, then with a filter."""
    yield from _both_less(alternative, choosing, tally)
    easier = list(relaxed(alternative))
    for index, one in enumerate(easier):
        for less in lessened(one.alternative):
            if tally.spent:
                return
            yield from _beside(one.what, tally.by_less(less, choosing))
        for other in list(relaxed(one.alternative))[index:]:
            if tally.spent:
                return
            yield from _counted(f"{one.what} and {other.what}", other.alternative, choosing, tally)
    rules = [rule for rule in choosing.policy.rules if rule.concerns is None or rule.concerns(alternative)]
    for index, rule in enumerate(rules):
        if tally.spent:
            return
        without = choosing.without(rule.name)
        for less in lessened(alternative):
            yield from _beside(without_rule(rule), tally.by_less(less, without))
        for one in easier:
            yield from _counted(f"{one.what} and {without_rule(rule)}", one.alternative, without, tally)
        for next_rule in rules[index + 1 :]:
            what = f"{without_rule(rule)} and {without_rule(next_rule)}"
            yield from _counted(what, alternative, without.without(next_rule.name), tally)


def without_rule(rule: Rule) -> str:
    match rule.name:
        case "up":
            return "with hosts that are down"
        case "enabled":
            return "with hosts that are disabled"
        case _:
            return f"without the filter {rule.name}"


def _both_less(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    """Yield pairs of smaller amounts: the first as far as necessary, then the second to what is free."""
    for index, first in enumerate(lessened(alternative)):
        for second in list(lessened(first.alternative))[index:]:
            if tally.spent:
                return
            neither = second.alternative if asks_for_something(second.alternative) else second.with_amount(1)
            ranking = tally.ranking(neither, choosing)
            for amount in amounts(ranking, first) if ranking is not None else ():
                less_too = lessened(first.with_amount(amount))
                other = [less for less in less_too if less.resource_class == second.resource_class]
                fits = next(filter(None, (tally.by_less(less, choosing) for less in other)), None)
                if fits is not None:
                    yield from _beside(with_less(first, amount), fits)
                    break


def _counted(what: str, alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    found = tally.count(alternative, choosing)
    if found.hosts:
        yield Helps(found, what, f"{what}: {found}")


def _beside(what: str, other: Helps | None) -> Iterator[Helps]:
    if other is not None:
        both = f"{what} and {other.what}"
        yield Helps(other.found, both, f"{both}: {other.found}")


def helps(
    alternative: Alternative, choosing: Choosing, seed: str, late: Late = never, *, needed: int = 1
) -> tuple[str, ...]:
    """Return sentences about changes after which `needed` instances would fit, the most helpful first."""
    tally = Tally(seed, MOST_SEARCHES, late, needed=needed)
    if (
        needed > 1 and tally.count(alternative, choosing).hosts
    ):  # what is short is shared, and not counted here
        return ()
    found = [helps for helps in islice(_tried(alternative, choosing, tally), MOST_TRIED) if helps is not None]
    if not found:
        found = list(
            islice(paired(alternative, choosing, Tally(seed, MOST_PAIRED, late, needed=needed)), PAIRS_SAID)
        )
    found.sort(key=lambda one: -one.found.hosts)
    return tuple(dict.fromkeys(helps.says for helps in found))[:MOST_SAID]


def _tried(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps | None]:
    for less in lessened(alternative):
        yield tally.by_less(less, choosing)
    for easier in relaxed(alternative):
        found = tally.count(easier.alternative, choosing)
        yield Helps(found, easier.what, easier.says(str(found))) if found.hosts else None
    for rule in choosing.policy.rules:
        if rule.concerns is None or rule.concerns(alternative):
            found = tally.count(alternative, choosing.without(rule.name))
            yield Helps(found, "", _without_rule(rule, found, tally.needed)) if found.hosts else None
    if choosing.promised(alternative):
        yield Helps(Found(1), "", "wait: builds that were just sent there may leave room after all")


def _without_rule(rule: Rule, found: Found, needed: int) -> str:
    if needed > 1:  # hosts that the rule admits are counted, too
        return f"{without_rule(rule)}: {found}"
    match rule.name:
        case "up":
            return f"{found} {'is' if found.hosts == 1 else 'are'} down"
        case "enabled":
            return f"{found} {'is' if found.hosts == 1 else 'are'} disabled"
        case _:
            return f"{without_rule(rule)}: {found}"
