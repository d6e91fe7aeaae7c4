"""Finds changes of a request that would make it fit: one demand is relaxed at a time, then two together."""

from collections.abc import Callable, Iterator
from itertools import islice

from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.host_counts import Found, Helps, Tally, never
from scheduler_worker.core.pairing import paired, without_rule
from scheduler_worker.core.relaxing import lessened, relaxed
from scheduler_worker.core.rule import Rule

MOST_TRIED = 24  # things to be done without, for one kind of request
MOST_SEARCHES = 240  # searches for the whole batch
MOST_PAIRED = 48  # searches for two at a time
PAIRS_SAID = 3  # pairs that are reported: then the search stops
MOST_SAID = 6


def helps(
    alternative: Alternative,
    choosing: Choosing,
    seed: str,
    late: Callable[[], bool] = never,
    *,
    needed: int = 1,
) -> tuple[str, ...]:
    """Return sentences, the most helpful first, as far as they are found before it is late.

    With each remedy there is free capacity for `needed` instances.
    """
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
    for rule in choosing.rules:
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
