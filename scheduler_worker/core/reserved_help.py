"""Explains to a client why a request fits no host: which reserved capacity prevents it, and which changes of
the request would help.

The explanation names the purposes of reservations, but neither their projects nor their hosts: clients of
other projects read the explanation.
"""

from collections.abc import Iterator, Sequence

from bus.vocabulary import Allocations
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.helping import MOST_SEARCHES, Late, Tally, helps
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import Alternative

HeldFor = Sequence[tuple[str, Sequence[Allocations]]]  # purpose of reservations, allocations of their slots


def all_helps(order: Order, choosing: Choosing, late: Late, held: HeldFor) -> tuple[str, ...]:
    """Return sentences with the reservations without which an order would fit, and with changes of the order
    that would make it fit."""
    alternative, seed, needed = order.preferred, order.request.request, order.needed
    tally = Tally(seed, MOST_SEARCHES, late, needed=needed)
    reserved = _without_reservations(alternative, choosing, tally, held)
    return (*reserved, *helps(alternative, choosing, seed, late, needed=needed))


def _without_reservations(
    alternative: Alternative, choosing: Choosing, tally: Tally, held: HeldFor
) -> Iterator[str]:
    if alternative.draw is not None or alternative.request.roles:
        return
    for purpose, allocations in held:
        with choosing.counting_as_free(*allocations):
            found = tally.count(alternative, choosing)
        if found.hosts:
            what = f"reserved for {purpose!r}" if purpose else "that is reserved"
            yield f"without the capacity {what}: {found}"
