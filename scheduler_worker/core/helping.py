"""What would have made it fit: one demand is relaxed at a time, and hosts are counted that would then do."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from bus.candidates import SenselessQuery
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.relaxing import Lessened, lessened, relaxed
from scheduler_worker.core.wish import Wish

MOST_TRIED = 24  # searches for one kind of request
MOST_SAID = 6
LOOKED_AT = 48  # hosts of each, one by one; when all of these do, so do the others


@dataclass(frozen=True, slots=True)
class Found:
    """Hosts that would do: exactly so many, or at least."""

    hosts: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{self.hosts} host{'' if self.hosts == 1 else 's'}"


def helps(wish: Wish, choosing: Choosing, seed: str) -> tuple[str, ...]:
    """Sentences, the most helpful first: those by which most hosts would do. Reads, and promises nothing."""
    said: list[tuple[int, str]] = []
    for says in islice(_tried(wish, choosing, seed), MOST_TRIED):
        if says is not None:
            said.append(says)
    said.sort(key=lambda one: -one[0])
    return tuple(dict.fromkeys(text for _, text in said[:MOST_SAID]))


def _tried(wish: Wish, choosing: Choosing, seed: str) -> Iterator[tuple[int, str] | None]:
    """One for each search, or two."""
    for less in lessened(wish):
        yield _by_less(less, choosing, seed)
    for easier in relaxed(wish):
        found = count(easier.wish, choosing, seed)
        yield (found.hosts, easier.says(str(found))) if found.hosts else None
    for rule in choosing.rules:
        if rule.concerns is None or rule.concerns(wish):
            found = count(wish, choosing.without(rule.name), seed)
            yield (found.hosts, _without_rule(rule.name, found)) if found.hosts else None
    if choosing.promised(wish):
        yield 1, "wait: builds that were just sent there may leave room after all"


def _by_less(less: Lessened, choosing: Choosing, seed: str) -> tuple[int, str] | None:
    """How much may it ask for, and how many hosts would have that?"""
    if not any(group.resources for group in less.wish.question.groups):
        others = less.with_amount(1)  # a question asks for something
    else:
        others = less.wish
    ranking = _ranking(others, choosing, seed)
    if ranking is None or not len(indices := ranking.admitted()):
        return None
    most = int(ranking.free(less.resource_class)[list(indices)].max())
    # One may be sold less than is free: by halves of what there is, too.
    halves = {amount >> shift for amount in (min(most, less.asked - 1), less.asked) for shift in range(4)}
    for amount in sorted(halves, reverse=True):
        if 0 < amount <= min(most, less.asked - 1):
            found = count(less.with_amount(amount), choosing, seed)
            if found.hosts:
                said = f"would fit with {amount} {less.resource_class} instead of {less.asked}"
                return found.hosts, f"{found} {said}"
    found = _counted(ranking)
    if found.hosts and others is less.wish:
        return found.hosts, f"without {less.resource_class}: {found}"
    return None


def count(wish: Wish, choosing: Choosing, seed: str) -> Found:
    """Hosts that would do."""
    ranking = _ranking(wish, choosing, seed)
    return Found(0) if ranking is None else _counted(ranking)


def _ranking(wish: Wish, choosing: Choosing, seed: str) -> Ranking | None:
    try:
        return choosing.rank(wish, seed)
    except SenselessQuery:
        return None


def _counted(ranking: Ranking) -> Found:
    indices = ranking.admitted()
    looked_at = indices[:LOOKED_AT]
    fitting = sum(map(ranking.fits, looked_at))
    if fitting == len(looked_at):
        return Found(len(indices))
    return Found(fitting, more=len(indices) > len(looked_at) and fitting > 0)


def _without_rule(name: str, found: Found) -> str:
    match name:
        case "up":
            return f"{found} {'is' if found.hosts == 1 else 'are'} down"
        case "enabled":
            return f"{found} {'is' if found.hosts == 1 else 'are'} disabled"
        case _:
            return f"without the filter {name}: {found}"
