"""Pairs of changes that would make a request fit, if no single change does."""

from collections.abc import Iterator

from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.host_counts import Helps, Tally, amounts, asks_for_something, with_less
from scheduler_worker.core.relaxing import Lessened, lessened, relaxed
from scheduler_worker.core.rule import Rule


def paired(alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    """Yield pairs of the request's own demands, then pairs with a filter, until the searches are spent."""
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
    rules = [rule for rule in choosing.rules if rule.concerns is None or rule.concerns(alternative)]
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
    """Reduce the first amount to the largest that suffices with the second left out, then the second to what
    is free on the hosts.
    """
    for index, first in enumerate(lessened(alternative)):
        for second in list(lessened(first.alternative))[index:]:
            if tally.spent:
                return
            neither = second.alternative if asks_for_something(second.alternative) else second.with_amount(1)
            ranking = tally.ranking(neither, choosing)
            for amount in amounts(ranking, first) if ranking is not None else ():
                fits = _then(first, amount, second.resource_class, choosing, tally)
                if fits is not None:
                    yield from _beside(with_less(first, amount), fits)
                    break


def _then(first: Lessened, amount: int, other: str, choosing: Choosing, tally: Tally) -> Helps | None:
    """Return how much of the other class is possible when the first one is reduced to this amount."""
    for less in lessened(first.with_amount(amount)):
        if less.resource_class == other and (fits := tally.by_less(less, choosing)) is not None:
            return fits
    return None


def _counted(what: str, alternative: Alternative, choosing: Choosing, tally: Tally) -> Iterator[Helps]:
    found = tally.count(alternative, choosing)
    if found.hosts:
        yield Helps(found, what, f"{what}: {found}")


def _beside(what: str, other: Helps | None) -> Iterator[Helps]:
    if other is not None:
        both = f"{what} and {other.what}"
        yield Helps(other.found, both, f"{both}: {other.found}")
