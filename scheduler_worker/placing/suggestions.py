"""Searches, within time limits, for changes with which requests without a host would fit."""

from collections.abc import Hashable, Sequence
from contextlib import suppress

from bus.clock import Clock
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.narrowing import Remedies
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import RuleError
from scheduler_worker.core.tally import MOST_SEARCHES, Late, Tally

BATCH_SECONDS = 0.02  # seconds per batch, after which no further search begins
REQUEST_SECONDS = 1.0  # seconds per request; one search over large provider trees takes tenths of a second


def helps_of(
    orders: Sequence[Order], choosing: Choosing, remedies: Sequence[Remedies], clock: Clock
) -> list[tuple[str, ...]]:
    """Return for each order the sentences that suggest changes; equal orders share one search.

    An order gets no suggestions if BATCH_SECONDS pass before its search begins, or if it is restricted.
    """
    late = late_after(BATCH_SECONDS, clock)
    found: dict[Hashable, tuple[str, ...]] = {}
    suggested = []
    for order in orders:
        alternative = order.preferred
        kind = choosing.policy.kind(alternative), order.needed
        # a narrowing restricts the request to certain amounts, so the changes would not help it
        if kind not in found and alternative.restriction is None and not late():
            with suppress(RuleError):  # no suggestions if a filter or weigher fails for a changed request
                found[kind] = all_helps(order, choosing, late_after(REQUEST_SECONDS, clock), remedies)
        suggested.append(found.get(kind, ()))
    return suggested


def all_helps(order: Order, choosing: Choosing, late: Late, remedies: Sequence[Remedies]) -> tuple[str, ...]:
    """Return sentences with changes that would make an order fit."""
    tally = Tally(MOST_SEARCHES, late, needed=order.needed)
    return tuple([sentence for remedy in remedies for sentence in remedy(order, choosing, tally)])


def late_after(seconds: float, clock: Clock) -> Late:
    """Return a function that returns whether more than `seconds` have passed since this call."""
    until = clock.monotonic() + seconds
    return lambda: clock.monotonic() > until
